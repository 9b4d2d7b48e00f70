"""Where the weights of a model are, known before anything slow begins: a mistyped name fails within a second."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from coa import hub
from coa.errors import ModelError, nothing_at
from coa.models.server import refuse_no_address
from coa.models.tokenizer import BUILT_IN, built_in_like

_HINT: Final = "give a model folder, a hub id such as owner/name, nano, smollm2, or the URL of a model server"

_GGUF: Final = "serve it with llama.cpp (llama-server -m FILE) and give the URL of the server"


def refuse_untrainable(source: str) -> None:
    """Refuse a model whose weights cannot be trained, because they are not here."""
    if is_url(source):
        raise ModelError("a model behind a URL cannot be trained", hint=f"{_HINT.partition(', or')[0]}")


def is_url(source: str) -> bool:
    return source.startswith(("http://", "https://"))


def check_model(source: str) -> None:
    """Refuse a model that cannot be there. A hub is asked once; the server behind a URL is not."""
    if not is_url(source):
        weights_place(source)
        return
    refuse_no_address(source)


def weights_place(source: str | Path) -> str:
    """`nano` and `smollm2` as they are, an existing folder, or a name that the hub has."""
    name = str(source)
    if name in BUILT_IN or Path(name).is_dir():
        return name
    if Path(name).is_file():
        raise ModelError(f"{name} is a file, not a model folder", hint=_GGUF if name.endswith(".gguf") else _HINT)
    if hub.is_path(name):
        raise nothing_at(name, "folder", ModelError)
    if near := built_in_like(name):
        raise ModelError(f"there is no model {name!r}; did you mean {near}?", hint=_HINT)
    try:
        return str(hub.find(name, "model", ModelError) or name)
    except ModelError as error:
        hint = error.hint if "/" in name else _HINT
        raise ModelError(f"there is no folder {name}, and {error.message}", hint=hint) from error
