"""The protocol as a grammar: what a model may write as its next step, for constrained decoding.

It works one step at a time. The state of the run decides which steps may come next (`moves`), and the profile decides
what a step looks like (`language`, `contents`). `gbnf` writes a grammar as text for model servers.
"""

from coa.trajectory.grammar.gbnf import to_gbnf
from coa.trajectory.grammar.language import Grammar, language
from coa.trajectory.grammar.moves import Move, home, moves

__all__ = ["Grammar", "Move", "home", "language", "moves", "to_gbnf"]
