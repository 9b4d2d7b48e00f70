"""Connects to a model server: finds out what it is and what it can do, and warns once about what it cannot do."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any, Final

from coa.addresses import public
from coa.choices import Mode
from coa.errors import ModelError, TokenizerError
from coa.http import Patience
from coa.models.base import Model
from coa.models.chat import ChatModel
from coa.models.completions import CompletionsModel
from coa.models.dialects import Dialect, dialect_of
from coa.models.pool import Connect, ModelPool, PooledServer
from coa.models.server import DEFAULT_KEY_ENV, PATIENCE, ModelServer, ModelUnserved, key_for
from coa.models.tokenizer import TextTokenizer, load_tokenizer

log = logging.getLogger(__name__)


async def connect(
    url: str, name: str | None = None, *, mode: Mode = Mode.AUTO, tokenizer: str | TextTokenizer | None = None,
    api_key_env: str = DEFAULT_KEY_ENV, patience: Patience | None = None,
    loaded: dict[str, TextTokenizer] | None = None,
) -> Model:  # fmt: skip
    """A model behind an OpenAI-compatible server. `api_key_env` names the environment variable with the key.

    `loaded` keeps tokenizers by their place, for several servers that have the same one.
    """
    server = ModelServer(url, key=key_for(url, api_key_env), patience=patience)
    try:
        return await _connect(server, name, mode, tokenizer, {} if loaded is None else loaded)
    except BaseException:
        await server.close()
        raise


async def connect_all(
    urls: Sequence[str], name: str | None = None, *, mode: Mode = Mode.AUTO,
    tokenizer: str | TextTokenizer | None = None, api_key_env: str = DEFAULT_KEY_ENV, patience: Patience | None = None,
) -> Model:  # fmt: skip
    """One model behind several servers, which share the work; behind a single one, as `connect`."""
    if len(urls) == 1:
        return await connect(urls[0], name, mode=mode, tokenizer=tokenizer, api_key_env=api_key_env, patience=patience)
    loaded: dict[str, TextTokenizer] = {}

    def connecting(url: str) -> Connect:
        return lambda patience: connect(
            url, name, mode=mode, tokenizer=tokenizer, api_key_env=api_key_env, patience=patience, loaded=loaded
        )

    pool = ModelPool([PooledServer(public(url), connecting(url)) for url in urls], patience or PATIENCE)
    await pool.open()
    return pool


async def _connect(
    server: ModelServer, name: str | None, mode: Mode, tokenizer: str | TextTokenizer | None,
    loaded: dict[str, TextTokenizer],
) -> Model:  # fmt: skip
    try:
        listed = await _models(server)
    except ModelUnserved as error:
        if name is None or mode is Mode.TOKENS or error.status not in (404, 405):
            raise
        listed = []  # a chat server need not list its models if the name is given
    names = [str(row.get("id")) for row in listed]
    if name is None:
        name = _only(server, names)
    elif names and name not in names:
        raise ModelError(f"{server.name} does not serve {name!r}; it serves {', '.join(names)}")
    dialect = dialect_of(listed)
    if mode is not Mode.CHAT and dialect is not None:
        found = await _tokenizer(server, tokenizer, name, listed, dialect, loaded)
        if isinstance(found, TextTokenizer):
            return CompletionsModel(server, name, found, dialect)
        if mode is Mode.TOKENS:
            raise ModelError(f"token mode needs the tokenizer of {name!r}: {found}", hint=_GIVE_TOKENIZER)
        lacking = "runs have no token ids, decoding cannot be constrained, and RL cannot train on the runs"
        log.warning("%s: chat mode, because %s. In chat mode %s; %s", server.name, found, lacking, _GIVE_TOKENIZER)
    if mode is Mode.TOKENS:
        raise ModelError(
            f"{server.name} is not known to take and return token ids",
            hint="serve the model with vLLM, SGLang or llama.cpp, or use --set mode=chat",
        )
    if dialect is None:
        lacking = "no token ids, no logprobs, at most 4 stop strings, and observations are sent as user messages"
        log.warning("%s: an unknown kind of server: %s", server.name, lacking)
    return ChatModel(server, name, dialect)


async def only_model(url: str, api_key_env: str = DEFAULT_KEY_ENV) -> str:
    """The name of the model of a server that has a single one."""
    server = ModelServer(url, key=key_for(url, api_key_env))
    try:
        return _only(server, [str(row.get("id")) for row in await _models(server)])
    finally:
        await server.close()


def _only(server: ModelServer, names: list[str]) -> str:
    if len(names) != 1:
        served = ", ".join(names) or "no model that it lists"
        raise ModelError(f"{server.name} serves {served}", hint="add --model-name NAME")
    return names[0]


async def _models(server: ModelServer) -> list[dict[str, Any]]:
    answer = await server.get("/v1/models")
    rows = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(rows, list):
        raise ModelError(f"{server.name}/v1/models does not list models; is this an OpenAI-compatible server?")
    return [row for row in rows if isinstance(row, dict)]


_GIVE_TOKENIZER: Final = (
    "to use token mode, add --set tokenizer=PLACE, which is the model's .gguf file, a folder with its tokenizer.json, "
    "or a hub id"
)


async def _tokenizer(
    server: ModelServer, given: str | TextTokenizer | None, name: str, listed: list[dict[str, Any]], dialect: Dialect,
    loaded: dict[str, TextTokenizer],
) -> TextTokenizer | str:  # fmt: skip
    """The given tokenizer, or that of the file, folder or hub id of the served model, or why there is none."""
    if given is not None:
        return _load(given, loaded) if isinstance(given, str) else given
    roots = [str(row["root"]) for row in listed if row.get("id") == name and row.get("root")]
    if dialect is Dialect.LLAMACPP:
        roots += await _weights(server)
    named = [] if name in [os.path.basename(root) for root in roots] else [name]
    reasons = []
    for source in dict.fromkeys([*roots, *named]):
        try:
            return _load(source, loaded)
        except TokenizerError as error:
            reasons.append(error.message.splitlines()[0])
    return "; ".join(reasons)


def _load(source: str, loaded: dict[str, TextTokenizer]) -> TextTokenizer:
    if source not in loaded:
        loaded[source] = load_tokenizer(source)
    return loaded[source]


async def _weights(server: ModelServer) -> list[str]:
    """The file that llama.cpp serves. Its model list has the name of the file only, without the folder."""
    try:
        properties = await server.get("/props")
    except ModelUnserved:
        return []
    path = properties.get("model_path") if isinstance(properties, dict) else None
    return [path] if isinstance(path, str) and path else []
