"""Requests that also ask for token ids and log probabilities.

Which fields that takes depends on the server, which names itself in its list of models:

- vLLM: `return_token_ids` and `logprobs`. The reply has `prompt_token_ids`, and each choice `token_ids` and `logprobs`.
- SGLang: `return_token_ids`, `return_prompt_token_ids`, `return_meta_info` and `logprobs`. Each choice has
  `prompt_token_ids`, `token_ids` and `meta_info.output_token_logprobs`.
- llama.cpp: `logprobs` and `top_logprobs`. Each choice has `logprobs.content`, with an `id` for each token. The ids of
  the prompt are not to be had.

SGLang refuses all but `logprobs` for streamed chats, and llama.cpp refuses `logprobs` for streamed chats with tools.
There the request stays as it is, because a team whose calls fail is worse than a record without ids. What the team asks
for itself is never changed.
"""

from __future__ import annotations

from typing import Any

import orjson

from coa.models.dialects import Dialect


def with_tokens(dialect: Dialect, protocol: str, body: bytes) -> bytes:
    """The request with these fields; as it is where there are none for it, or where it is no JSON object."""
    if protocol not in ("chat", "completions"):
        return body
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(request, dict):
        return body
    wanted = _fields(dialect, request, chat=protocol == "chat")
    missing = {name: value for name, value in wanted.items() if not request.get(name)}
    return orjson.dumps({**request, **missing}) if missing else body


def _fields(dialect: Dialect, request: dict[str, Any], *, chat: bool) -> dict[str, Any]:
    stream = bool(request.get("stream"))
    if dialect is Dialect.LLAMACPP:
        if chat and stream and request.get("tools"):
            return {}
        return {"logprobs": True, "top_logprobs": 1} if chat else {"logprobs": 1}
    fields: dict[str, Any] = {"logprobs": True} if chat else {"logprobs": 1}
    if dialect is Dialect.VLLM or not chat:
        return {**fields, "return_token_ids": True}
    ids = {"return_token_ids": True, "return_prompt_token_ids": True, "return_meta_info": True}
    return fields if stream else {**fields, **ids}
