"""What every command that runs a model shares: from `--model` to a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

from coa.choices import Mode
from coa.errors import ModelError
from coa.models.base import Model
from coa.models.connect import connect
from coa.models.price import Price, price_of, read_prices


async def open_model(
    source: str,
    name: str | None = None,
    *,
    mode: Mode = Mode.AUTO,
    tokenizer: str | None = None,
    api_key_env: str = "COA_API_KEY",
    rows: int = 32,
) -> Model:
    """A server's URL, `smollm2`, a model folder, or a hub id. `rows`: how many runs at most go on at a time."""
    if source.startswith(("http://", "https://")):
        return await connect(source, name, mode=mode, tokenizer=tokenizer, api_key_env=api_key_env)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from coa.models.local import load_local
    except ImportError as error:
        raise ModelError(
            f"running weights in this process needs torch and transformers ({error})",
            hint=f"{sys.executable} -m pip install 'chain-of-agents[local]', or give the URL of a model server",
        ) from error
    return load_local(source, max_rows=rows)


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
