"""What every command that runs a model shares: from `--model` to a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from coa.models.opening import open_model
from coa.models.price import Price, price_of, read_prices

__all__ = ["open_model", "price_finder"]


def price_finder(
    price_in: float | None, price_cached: float | None, price_out: float | None, file: Path | None
) -> Callable[[str], Price | None]:
    """The price of a model by its name: the one given, the one in the file, or none. A bad file is told at once."""
    if (price_in, price_cached, price_out) != (None, None, None):
        price = Price(input=price_in or 0.0, cached=price_cached, output=price_out or 0.0)
        return lambda name: price
    if file is None:
        return lambda name: None
    read_prices(file)
    return lambda name: price_of(name, file)
