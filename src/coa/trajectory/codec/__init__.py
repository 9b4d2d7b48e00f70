r"""Text <-> steps. All stages use the same reader and the same writer.

Canonical text is `<tag>content</tag>`. Each step begins on a new line, and an observation also ends its line. The line
break belongs to the environment if either neighbour is an observation, otherwise to the model.

Writing neutralises tag-like text inside a step with a backslash (`<\answer>`), and reading removes the backslash, so no
page can forge a step, and `parse(render(steps))` gives the steps back. Reading never raises and takes linear time on
any text. Mistakes whose meaning is clear are repaired and recorded in the step. `Step.surface` keeps the characters
that were written, so `render(parse(text))` is `text` for every text.
"""

from coa.trajectory.codec.parser import Closed, Delta, Event, Opened, Parser, parse
from coa.trajectory.codec.writer import canonical, element, neutralise, pieces, readable, render

__all__ = [
    "Closed", "Delta", "Event", "Opened", "Parser", "canonical", "element", "neutralise", "parse", "pieces", "readable",
    "render",
]  # fmt: skip
