r"""Text <-> steps. One reader and one writer, for every stage.

Canonical text is `<tag>content</tag>`, one step a line: a step begins on a new line and an observation also ends its
line. The line break belongs to the environment when either neighbour is an observation, else to the model.

Writing neutralises tag-like text inside a step with a backslash (`<\answer>`), reading takes it away again, so no page
can forge a step and `parse(render(steps))` gives the steps back. Reading never raises and takes linear time on any
text. Unambiguous slips are repaired and noted on the step; `Step.surface` keeps what was really written, so that
`render(parse(text))` is `text`, whatever the text.
"""

from coa.trajectory.codec.parser import Closed, Delta, Event, Opened, Parser, parse
from coa.trajectory.codec.writer import Piece, canonical, neutralise, pieces, readable, render

__all__ = [
    "Closed",
    "Delta",
    "Event",
    "Opened",
    "Parser",
    "Piece",
    "canonical",
    "neutralise",
    "parse",
    "pieces",
    "readable",
    "render",
]
