"""Where the weights of a model are, known before anything slow begins: a mistyped name fails within a second."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from coa import hub
from coa.addresses import public, without_passwords
from coa.errors import ModelError, nothing_at
from coa.installing import missing
from coa.models.server import refuse_no_address
from coa.models.tokenizer import BUILT_IN, built_in_like

_HINT: Final = "give a model folder, a hub id such as owner/name, nano, smollm2, or the URL of a model server"

_POOL: Final = "http://host1:8000,http://host2:8000"
_GGUF: Final = "serve it with llama.cpp (llama-server -m FILE) and give the URL of the server"


def refuse_untrainable(source: str) -> None:
    """Refuse a model whose weights cannot be trained, because they are not here."""
    if is_url(source):
        raise ModelError("a model behind a URL cannot be trained", hint=f"{_HINT.partition(', or')[0]}")


def is_url(source: str) -> bool:
    """Whether the model is on a server, or on several."""
    return source.startswith(("http://", "https://"))


def server_urls(source: str) -> list[str]:
    """The servers in `URL` or `URL,URL,...`. A comma within an address, as in a password, does not end it."""
    urls = re.split(r"\s*,\s*(?=https?://)", source.strip())
    for url in urls:
        refuse_no_address(url)
        if url.endswith(",") or "," in urlsplit(url).netloc.rpartition("@")[2]:
            shown = without_passwords(url)
            raise ModelError(f"{shown!r} is not the address of a server", hint=f"write each address in full: {_POOL}")
    bare = [_bare(url) for url in urls]
    for at, address in enumerate(bare):
        if address in bare[:at]:
            raise ModelError(f"the model server {address} is given twice", hint=f"name each server once: {_POOL}")
    return urls


def _bare(url: str) -> str:
    return public(url).rstrip("/").removesuffix("/v1")


def check_model(source: str) -> None:
    """Refuse a model that cannot be there. A hub is asked once; the server behind a URL is not."""
    if is_url(source):
        server_urls(source)
    elif ",http" in source:
        raise ModelError(
            f"{source.partition(',')[0]!r} is not the address of a server", hint=f"several models: {_POOL}"
        )
    elif source in BUILT_IN:
        refuse_incomplete(source)
    else:
        weights_place(source)


def refuse_incomplete(built_in: str) -> None:
    """Refuse `nano` and `smollm2` where the packages or the weights for them are not here. What to install for `nano`
    includes the tools of its world."""
    if missing(["smollm2"]):
        raise ModelError(f"{built_in} needs what is not installed: {missing([built_in]).named()}", needs=[built_in])


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
