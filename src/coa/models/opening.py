"""From the name of a model to a model that can be run."""

from __future__ import annotations

import asyncio
import os

from coa.choices import Mode, Precision
from coa.errors import ModelError
from coa.models.base import Model
from coa.models.connect import connect_all
from coa.models.places import check_model, is_url, server_urls
from coa.models.server import DEFAULT_KEY_ENV


async def open_model(
    source: str, name: str | None = None, *, mode: Mode = Mode.AUTO, tokenizer: str | None = None,
    api_key_env: str = DEFAULT_KEY_ENV, rows: int = 32, precision: Precision = Precision.AUTO,
) -> Model:  # fmt: skip
    """Open a model. Call its `close` when you are done.

    Args:
        source: URL of a server, `nano`, `smollm2`, a model folder, or a hub id. Several URLs, separated by commas, are
            servers of the same model, which share the work.
        name: Name of the model on a server that serves several.
        mode: Whether to exchange token ids with a server or to use its chat API. By default coa finds out.
        tokenizer: Tokenizer of a server's model, if coa cannot find it.
        api_key_env: Name of the environment variable that holds the server's key.
        rows: Number of runs that a model in this process decodes at a time.
        precision: Number format in which a model in this process computes.

    Returns:
        The model.

    Raises:
        CoaError: The server does not answer, or the model cannot be found or loaded.
    """
    check_model(source)
    if is_url(source):
        urls = server_urls(source)
        return await connect_all(urls, name, mode=mode, tokenizer=tokenizer, api_key_env=api_key_env)
    return await asyncio.to_thread(_load, source, rows, precision)  # it takes seconds, in which a server has to answer


def _load(source: str, rows: int, precision: Precision) -> Model:
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # set before torch is imported: waiting threads must not spin
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        from coa.models.local import load_local
    except ImportError as error:
        raise ModelError(
            f"running weights in this process needs torch and transformers ({error})",
            needs=["local"],
        ) from error
    return load_local(source, max_rows=rows, precision=precision)
