"""`ServeConfig`: what to serve, to whom, and within which limits."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from pydantic import Field, field_validator

from coa.runtime.config import RunConfig
from coa.trajectory.types import Frozen

KEYS_ENV: Final = "COA_SERVE_KEYS"


class ServeConfig(Frozen):
    """Settings of `coa serve`: the agents, the address, keys and limits."""

    run: RunConfig = RunConfig()
    """How to run the agent, if a single one is served."""
    name: str | None = Field(None, pattern=r"^[A-Za-z0-9][A-Za-z0-9_./:-]{0,99}$")
    """Model name under which clients reach the single agent. Default: the name of its model."""
    agents: dict[str, RunConfig] = Field(default_factory=dict)
    """Several agents, each under the model name that clients use. They take the place of `run`."""
    host: str = "127.0.0.1"
    """Address to listen on. Any other than a loopback address requires a key, or `public`."""
    port: int = Field(8080, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""
    api: bool = True
    """Whether to serve the Responses and Chat Completions APIs, at /v1."""
    mcp: bool = True
    """Whether to serve MCP, at /mcp."""
    page: bool = True
    """Whether to serve the web page."""
    view: tuple[Path, ...] = ()
    """Files and folders that the viewer at /view/ shows. Default: the runs of this server, unless it has keys; with
    keys, every holder of one can see the folders that are named here."""
    public: bool = False
    """Whether to let everybody use the agents without a key, on any address. For a demo whose model and tools cost
    nothing and reach nothing, such as nano."""
    keys_env: str = KEYS_ENV
    """Environment variable with the keys that clients may use, separated by commas."""
    keys_file: Path | None = None
    """File with hashed keys, made by `coa serve --add-key NAME`."""
    hosts: tuple[str, ...] = ()
    """Host names under which clients reach the server, besides its address and localhost."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call the API from a browser, such as https://chat.example.org."""
    framed_by: tuple[str, ...] = ()
    """Origins of web pages that may show the page of this server in a frame, such as https://huggingface.co."""
    max_runs: int = Field(64, ge=1)
    """Number of runs at a time."""
    max_queue: int = Field(256, ge=0)
    """Number of runs that may wait for a free place. Further requests get status 429."""
    key_runs: int | None = Field(None, ge=1)
    """Number of runs at a time for each key."""
    key_requests_per_minute: int | None = Field(None, ge=1)
    """Number of requests per minute for each key."""
    key_tokens_per_minute: int | None = Field(None, ge=1)
    """Number of tokens, read and written, per minute for each key."""
    max_body_bytes: int = Field(16 << 20, ge=1024)
    """Size of the largest request body."""
    max_connections: int = Field(4096, ge=1)
    """Number of open connections. Further ones are closed at once."""
    header_timeout_s: float = Field(10.0, gt=0)
    """Time in which a client must send the headers of a request."""
    body_timeout_s: float = Field(30.0, gt=0)
    """Time in which a client must send the body of a request."""
    idle_timeout_s: float = Field(75.0, gt=0)
    """Time after which a connection without a request is closed."""
    stream_timeout_s: float = Field(3600.0, gt=0)
    """Longest time for which a stream stays open."""
    heartbeat_s: float = Field(10.0, gt=0, le=10)
    """A stream gets a comment after this time without an event, so that proxies keep it open."""
    shutdown_s: float = Field(30.0, ge=0)
    """Time that running runs have to finish when the server stops. The others are cancelled and saved."""
    state: Path | None = None
    """Folder for stored responses. Default: `coa/serve` in XDG_STATE_HOME or ~/.local/state."""
    store_days: float = Field(30.0, gt=0)
    """Days after which stored responses are deleted."""
    store_bytes: int = Field(1 << 30, ge=1 << 20)
    """Size of all stored responses together. The oldest are deleted first."""

    @field_validator("agents")
    @classmethod
    def _named(cls, agents: dict[str, RunConfig]) -> dict[str, RunConfig]:
        for name in agents:
            if not name or len(name) > 100 or any(character.isspace() for character in name):
                raise ValueError(f"{name!r} cannot be a model name: use letters, digits and . _ / : -")
        return agents

    def state_folder(self) -> Path:
        if self.state is not None:
            return self.state
        base = os.environ.get("XDG_STATE_HOME")
        return (Path(base) if base else Path.home() / ".local" / "state") / "coa" / "serve"
