"""The protocol as a grammar: what a model may write as its next step, for decoders that keep it from writing more.

One step at a time: which steps come next follows from the state of the run, what a step looks like from the profile.
"""

from coa.trajectory.grammar.gbnf import to_gbnf
from coa.trajectory.grammar.language import Grammar, language
from coa.trajectory.grammar.moves import Move, home, moves

__all__ = ["Grammar", "Move", "home", "language", "moves", "to_gbnf"]
