"""Requests that also ask for token ids and log probabilities.

The fields of all three servers are added at once, because each ignores those of the others:

- vLLM: `return_token_ids` gives `prompt_token_ids` in the reply and `token_ids` in each choice.
- SGLang: `return_token_ids` as vLLM; older versions `return_prompt_token_ids` and `return_meta_info`, which give
  `prompt_token_ids` and `meta_info.output_token_logprobs` in each choice.
- llama.cpp: the entries of `logprobs.content` have an `id`; it needs no field of its own.

`logprobs` itself is OpenAI's, a flag for chats and a number for completions. What the team asked for is not changed.
"""

from __future__ import annotations

from typing import Any, Final

import orjson

_IDS: Final = {"return_token_ids": True, "return_prompt_token_ids": True, "return_meta_info": True}
_ASKED: Final[dict[str, dict[str, Any]]] = {
    "chat": {"logprobs": True, **_IDS},
    "completions": {"logprobs": 1, **_IDS},
}


def with_tokens(protocol: str, body: bytes) -> bytes:
    """The request with these fields; as it is where the protocol has none, or the body is no JSON object."""
    wanted = _ASKED.get(protocol)
    if wanted is None:
        return body
    try:
        request = orjson.loads(body)
    except orjson.JSONDecodeError:
        return body
    if not isinstance(request, dict):
        return body
    missing = {name: value for name, value in wanted.items() if not request.get(name)}
    return orjson.dumps({**request, **missing}) if missing else body
