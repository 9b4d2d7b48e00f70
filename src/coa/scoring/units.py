"""The few units that answers are given in. Others are compared by name; nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final


@dataclass(frozen=True, slots=True)
class Unit:
    dimension: str
    factor: Fraction
    """How many base units one of it is."""
    offset: Fraction = Fraction(0)
    """Added before multiplying: degrees."""

    def to_base(self, value: Fraction) -> Fraction:
        return (value + self.offset) * self.factor


PER_CENT: Final = "%"
CURRENCIES: Final[Mapping[str, str]] = {"$": "usd", "€": "eur", "£": "gbp", "¥": "yen", "₹": "inr"}
SCALES: Final[Mapping[str, int]] = {
    "": 1, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip

# names separated by blanks, the first one canonical | dimension | base units
_TABLE: Final = """
m metre meter | length | 1
km kilometre kilometer | length | 1000
cm centimetre centimeter | length | 1/100
mm millimetre millimeter | length | 1/1000
mi mile | length | 1609.344
yd yard | length | 0.9144
ft foot feet | length | 0.3048
inch inches | length | 0.0254
g gram gramme | mass | 1
kg kilogram kilogramme kilo | mass | 1000
mg milligram | mass | 1/1000
t ton tonne | mass | 1000000
lb lbs pound | mass | 453.59237
oz ounce | mass | 28.349523125
s sec second | time | 1
ms millisecond | time | 1/1000
min minute | time | 60
h hr hour | time | 3600
d day | time | 86400
week wk | time | 604800
l litre liter L | volume | 1
ml millilitre milliliter mL | volume | 1/1000
m3 | volume | 1000
m2 sqm | area | 1
km2 | area | 1000000
ha hectare | area | 10000
m/s | speed | 1
km/h kph kmh | speed | 5/18
mph | speed | 0.44704
"""

_UNITS: Final[dict[str, Unit]] = {
    "K": Unit("temperature", Fraction(1)),
    "°C": Unit("temperature", Fraction(1), Fraction("273.15")),
    "°F": Unit("temperature", Fraction(5, 9), Fraction("459.67")),
}
_NAMES: Final[dict[str, str]] = {
    "%": PER_CENT, "percent": PER_CENT, "per cent": PER_CENT, "kelvin": "K",
    "celsius": "°C", "degree celsius": "°C", "fahrenheit": "°F", "degree fahrenheit": "°F",
    "usd": "usd", "dollar": "usd", "us dollar": "usd", "u.s. dollar": "usd", "eur": "eur", "euro": "eur",
    "gbp": "gbp", "pound sterling": "gbp", "yen": "yen", "jpy": "yen", "inr": "inr", "rupee": "inr",
    "square metre": "m2", "square meter": "m2", "square kilometre": "km2", "square kilometer": "km2",
    "cubic metre": "m3", "cubic meter": "m3", **CURRENCIES, **{name: name for name in _UNITS},
}  # fmt: skip
for _line in _TABLE.strip().splitlines():
    _names, _dimension, _factor = (cell.strip() for cell in _line.split("|"))
    _first = _names.split()[0]
    _UNITS[_first] = Unit(_dimension, Fraction(_factor))
    _NAMES.update(dict.fromkeys(_names.split(), _first))

_COMMAND: Final = re.compile(r"\\(?!(?:text|textrm|mathrm|rm|circ|degree|deg|mu|Omega)(?![A-Za-z]))[A-Za-z]+")
_UNKNOWN: Final = re.compile(r"[^\W\d_]+(?:[ -][^\W\d_]+){0,2}")


def unit_name(text: str) -> str | None:
    """The unit's canonical name, its own spelling if it is an unknown word, "" for no unit, None for anything else."""
    if _COMMAND.search(text):
        return None  # 2\mathbb{Z} is not two of something
    text = " ".join(text.replace("\\text", "").replace("{", "").replace("}", "").replace("\\", "").split())
    # Plain text spells ℃ and squares differently.
    text = text.replace("° ", "°").replace("^", "")
    if not text:
        return ""
    lowered = text.casefold()
    for spelling in (text, lowered, lowered.removesuffix("s"), lowered.removesuffix(".")):
        if spelling in _NAMES:
            return _NAMES[spelling]
    if not _UNKNOWN.fullmatch(text) or (len(text) == 1 and text.islower()):
        return None  # 2n is not two of something either
    # The case matters in short symbols (mW, MW), not in words.
    return text if len(text) <= 3 else lowered.removesuffix("s")


def conversion(name: str) -> Unit | None:
    return _UNITS.get(name)
