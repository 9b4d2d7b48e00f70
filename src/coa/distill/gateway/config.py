"""Settings of the gateway."""

from __future__ import annotations

import re
from typing import Final

from pydantic import Field, field_validator

from coa.models.server import refuse_no_address
from coa.trajectory.types import Frozen

PORT: Final = 8790
"""Where the gateway listens unless another port is asked for."""
PROXY_HOST: Final = "127.0.0.1"


class RecordConfig(Frozen):
    """Settings of `coa record`: the server to forward calls to, and what to keep of them."""

    upstream: str
    """URL of the model server that calls are forwarded to, with or without `/v1` at its end."""
    upstream_anthropic: str | None = None
    """URL of another server for Anthropic Messages (`/v1/messages`), for teams that use both."""
    port: int | None = Field(None, ge=0, le=65535)
    """Port on 127.0.0.1 that the gateway listens on; 0 takes a free one. Default: 8790, or a free one for a program."""
    tokens: bool = False
    """Ask vLLM, SGLang or llama.cpp for token ids and log probabilities, by adding the fields that they need to each
    request. Other servers may refuse such requests."""
    redact: tuple[str, ...] = ()
    """Regular expressions whose matches in recorded content are replaced by `[redacted]`. What is forwarded stays as it
    is."""
    max_body_mb: float = Field(64.0, gt=0)
    """Largest request or response body that is recorded. Larger ones are forwarded in full and recorded in part."""
    max_memory_mb: float = Field(1024.0, gt=0)
    """Memory for bodies that are not yet on disk. Bodies that would need more are forwarded but not recorded."""

    @field_validator("redact")
    @classmethod
    def _compilable(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
        return patterns

    def check(self) -> None:
        """Refuse addresses that no request can be sent to."""
        for url in (self.upstream, self.upstream_anthropic):
            if url is not None:
                refuse_no_address(url)
