"""The HTTP client of a model server. It waits longer than that of a tool: without its model a run cannot go on.

It also decides which key a server gets. A key is sent only to the server that the user named: the one in `COA_API_KEY`
(or in the variable that a setting names) to any server, the one in `OPENAI_API_KEY` only where nobody else can read it.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlsplit

from coa.addresses import is_host, is_private, public
from coa.errors import ModelError
from coa.http import Client, Patience, Unserved

log = logging.getLogger(__name__)
PATIENCE: Final = Patience(attempts=5, timeout_s=600.0, silence_s=180.0, max_wait_s=60.0, waits_out=True)
_HINTS: Final = {
    "service": "check that the model server runs and that the address is right",
    "key": "put the key into the environment variable COA_API_KEY, or name another one with --set api_key_env=NAME",
}


DEFAULT_KEY_ENV: Final = "COA_API_KEY"
_OPENAI_KEY_ENV: Final = "OPENAI_API_KEY"


def key_for(url: str, api_key_env: str) -> str | None:
    """The key to send to a server: that in the variable, and where the default variable is not set, that for OpenAI.

    Many people have a key for OpenAI in their environment, so it is not sent over a connection that others can read.
    """
    key = os.environ.get(api_key_env, "").strip()
    if not key and api_key_env == DEFAULT_KEY_ENV:
        key = os.environ.get(_OPENAI_KEY_ENV, "").strip()
        if key and not is_private(url):
            log.info("%s is not sent to %s: the connection is not encrypted", _OPENAI_KEY_ENV, public(url))
            key = ""
    if not key.isprintable():
        raise ModelError(f"the key in {api_key_env} has a line break or another character that no key has")
    return key or None


class ModelUnserved(Unserved, ModelError):
    """A model server that did not answer, or refused."""

    def __init__(
        self, message: str, *, hint: str | None = None, error: str = "service", status: int | None = None
    ) -> None:
        super().__init__(message, hint=hint or _HINTS.get(error), error=error, status=status)


def refuse_no_address(url: str) -> None:
    if is_host(url) and urlsplit(url).scheme in ("http", "https"):
        return
    # A password with a slash in it makes the rest of the address a path.
    shown = re.sub(r"//.*@", "//", url)
    raise ModelError(
        f"{shown!r} is not the address of a server", hint="write it like http://127.0.0.1:8000 or https://host/v1"
    )


class ModelServer(Client):
    """Answers may be of any size, and a server that failed is asked again, because there is no other."""

    failure = ModelUnserved
    max_bytes = None
    redirects = True

    def __init__(self, url: str, *, key: str | None = None, patience: Patience | None = None) -> None:
        refuse_no_address(url)
        headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
        address = url.rstrip("/").removesuffix("/v1")
        super().__init__(
            public(address), address, headers=headers, secrets=[key or ""], patience=patience or PATIENCE,
            breaker=False, pool=512,
        )  # fmt: skip

    def refusal(self, status: int, message: str, path: str) -> Exception:
        return super().refusal(status, f"{message} (asked for {path})", path)
