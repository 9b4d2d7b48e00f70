"""The HTTP client of a model server. It waits longer than that of a tool: without its model a run cannot go on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coa.errors import ModelError
from coa.http import Client, Patience, Unserved, public

PATIENCE: Final = Patience(attempts=5, timeout_s=600.0, silence_s=180.0, max_wait_s=60.0, waits_out=True)
_HINTS: Final = {
    "service": "check that the model server runs and that the address is right",
    "key": "put the key of the server into an environment variable (--set api_key_env=NAME)",
}


class ModelUnserved(Unserved, ModelError):
    """A model server that did not answer, or refused."""

    def __init__(
        self, message: str, *, hint: str | None = None, error: str = "service", status: int | None = None
    ) -> None:
        super().__init__(message, hint=hint or _HINTS.get(error), error=error, status=status)


class ModelServer(Client):
    """Answers may be of any size, and a server that failed is asked again, because there is no other."""

    failure = ModelUnserved
    max_bytes = None
    redirects = True

    def __init__(self, url: str, *, key: str | None = None, patience: Patience | None = None) -> None:
        headers: Mapping[str, str] = {"Authorization": f"Bearer {key}"} if key else {}
        address = url.rstrip("/").removesuffix("/v1")
        super().__init__(
            public(address), address, headers=headers, secrets=[key or ""], patience=patience or PATIENCE,
            breaker=False, pool=512,
        )  # fmt: skip

    def refusal(self, status: int, message: str, path: str) -> Exception:
        return super().refusal(status, f"{message} (asked for {path})", path)
