"""Colours of profiles, which are written for a terminal, as one of the hues that the style sheet knows.

The style sheet has two shades of each hue, for a light and for a dark page, both dark or light enough to read.
"""

from __future__ import annotations

from colorsys import rgb_to_hls
from functools import cache
from typing import Final

from rich.color import Color, ColorParseError

HUES: Final = {
    "red": 0, "orange": 28, "yellow": 48, "lime": 90, "green": 135, "teal": 172, "cyan": 192, "blue": 220,
    "violet": 265, "magenta": 310,
}  # fmt: skip
"""Angle of each hue. `gray` is for what has none."""
_NAMED: Final = {"cyan": "cyan", "yellow": "yellow", "blue": "blue", "magenta": "magenta", "green": "green",
                 "red": "red", "bright_green": "teal", "bright_blue": "violet", "bright_yellow": "orange",
                 "bright_cyan": "cyan", "bright_magenta": "magenta", "bright_red": "orange"}  # fmt: skip
"""The sixteen colours of a terminal, whose bright versions must stay apart from the others."""


@cache
def hue_of(color: str) -> str:
    """The nearest hue; `gray` for white, black, grey, and what is no colour."""
    if color in _NAMED:
        return _NAMED[color]
    try:
        red, green, blue = (part / 255 for part in Color.parse(color).get_truecolor())
    except ColorParseError:
        return "gray"
    angle, _, saturation = rgb_to_hls(red, green, blue)
    if saturation < 0.15:
        return "gray"
    degrees = angle * 360
    return min(HUES, key=lambda name: min(abs(degrees - HUES[name]), 360 - abs(degrees - HUES[name])))
