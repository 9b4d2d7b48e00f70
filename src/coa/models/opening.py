"""From what a user names as the model (`--model`, `RunConfig.model`) to a model that can generate."""

from __future__ import annotations

import os
import sys

from coa.errors import ModelError
from coa.models.base import Model
from coa.models.connect import Mode, connect


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
