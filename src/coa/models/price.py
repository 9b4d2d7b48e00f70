"""Prices of tokens. Users give them: none is built in, because prices change and differ by contract."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from coa.errors import ModelError, refused
from coa.trajectory import Usage
from coa.trajectory.types import Frozen

_MILLION: Final = 1_000_000
_SHAPE: Final = '["the model\'s name"] with input = ..., output = ... and perhaps cached = ..., per million tokens'


class Price(Frozen):
    """Prices of a model per million tokens, in any currency."""

    input: float = Field(0.0, ge=0)
    """Price per million input tokens."""
    output: float = Field(0.0, ge=0)
    """Price per million output tokens."""
    cached: float | None = Field(None, ge=0)
    """Price per million input tokens that the server took from its cache; None means the price of other input."""

    def of(self, usage: Usage) -> float:
        return self.cost(usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens)

    def cost(self, prompt_tokens: int, completion_tokens: int = 0, cached_tokens: int = 0) -> float:
        cached_tokens = min(cached_tokens, prompt_tokens)
        cached = self.input if self.cached is None else self.cached
        spent = (prompt_tokens - cached_tokens) * self.input + cached_tokens * cached + completion_tokens * self.output
        return spent / _MILLION


def read_prices(path: str | Path) -> dict[str, Price]:
    """Read a TOML file with one table per model."""
    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(f"read the prices {path}", error, ModelError) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not valid TOML: {error}") from error
    prices = {}
    for name, row in data.items():
        try:
            prices[name] = Price.model_validate(row)
        except ValidationError as error:
            reason = error.errors()[0]
            field = ".".join(str(part) for part in reason["loc"])
            raise ModelError(
                f"{path}: the price of {name!r} cannot be used: {field + ': ' if field else ''}{reason['msg']}",
                hint=f"write {_SHAPE}",
            ) from error
    return prices


def price_of(name: str, path: str | Path) -> Price:
    """The price of one model in a file that `read_prices` reads."""
    prices = read_prices(path)
    if name not in prices:
        raise ModelError(
            f"{path} has no price for the model {name!r}; it has {', '.join(prices) or 'none'}", hint=f"add {_SHAPE}"
        )
    return prices[name]
