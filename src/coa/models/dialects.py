"""How to ask vLLM, SGLang and llama.cpp for ids, and how to read their answers.

One reader serves both whole answers and streams: a whole answer is a stream of one event. Field names are those of
vLLM's `return_token_ids`, SGLang's `/generate` and llama.cpp's server.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import orjson

from coa.errors import ModelError
from coa.models.base import Finish, Sampling
from coa.trajectory import Usage


class Dialect(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


PATHS: Final = {Dialect.VLLM: "/v1/completions", Dialect.SGLANG: "/generate", Dialect.LLAMACPP: "/v1/completions"}


def request(
    dialect: Dialect, name: str, ids: Sequence[int], stop: Sequence[str], sampling: Sampling, *, stream: bool,
    rules: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The body of a request for ids. `rules` is a grammar in GBNF, which all three servers accept."""
    if dialect is Dialect.SGLANG:
        wanted = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_new_tokens": sampling.max_tokens,
            "stop": stop,
            "no_stop_trim": True,
            **beyond_openai(dialect, sampling),
            **form(dialect, sampling, rules),
        }
        if sampling.seed is not None:
            wanted["sampling_seed"] = sampling.seed
        return {"input_ids": ids, "return_logprob": True, "sampling_params": wanted, "stream": stream}
    body = {"prompt": ids, **openai_body(dialect, name, stop, sampling, rules), **beyond_openai(dialect, sampling)}
    if dialect is Dialect.VLLM:
        body |= {"logprobs": 0, "return_token_ids": True, "include_stop_str_in_output": True}
    else:
        body |= {"logprobs": 1, "cache_prompt": True}
    return body | streaming() if stream else body


def openai_body(
    dialect: Dialect | None, name: str, stop: Sequence[str], sampling: Sampling, rules: str | None = None
) -> dict[str, Any]:
    """The settings that OpenAI's API has."""
    body = {
        "model": name,
        "stop": stop,
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        **form(dialect, sampling, rules),
    }
    return body if sampling.seed is None else {**body, "seed": sampling.seed}


def streaming() -> dict[str, Any]:
    """Asks an OpenAI-like server for events, the last of which has the usage."""
    return {"stream": True, "stream_options": {"include_usage": True}}


def beyond_openai(dialect: Dialect, sampling: Sampling) -> dict[str, Any]:
    """Settings that OpenAI's API does not have. Servers differ in the value that means the whole vocabulary."""
    if dialect is Dialect.SGLANG:
        return {"top_k": sampling.top_k or -1}  # it refuses 0
    if dialect is Dialect.LLAMACPP:
        return {"top_k": sampling.top_k, "min_p": 0.0}  # its default for min_p is 0.05
    return {"top_k": sampling.top_k}


_GRAMMAR: Final = {Dialect.SGLANG: "ebnf", Dialect.LLAMACPP: "grammar"}


def form(dialect: Dialect | None, sampling: Sampling, rules: str | None = None) -> dict[str, Any]:
    """Asks for text of a grammar or JSON of a schema, if one is wanted. `None` means the OpenAI standard."""
    if rules is not None and dialect is not None:
        return {_GRAMMAR[dialect]: rules} if dialect in _GRAMMAR else {"structured_outputs": {"grammar": rules}}
    if sampling.json_schema is None:
        return {}
    if dialect is Dialect.SGLANG:
        return {"json_schema": sampling.json_schema}
    schema = orjson.loads(sampling.json_schema)
    if dialect is Dialect.LLAMACPP:
        return {"json_schema": schema}
    named = {"name": "reply", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


class Answer:
    """What a server has sent so far. Call `add` with each event."""

    def __init__(self, dialect: Dialect, url: str) -> None:
        self.ids: list[int] = []
        self.usage = Usage(model_calls=1)
        self._logprobs: list[float] = []
        self._dialect = dialect
        self._url = url
        self._last: dict[str, Any] = {}
        self._reason: dict[str, Any] = {}

    @property
    def logprobs(self) -> list[float] | None:
        return self._logprobs if len(self._logprobs) == len(self.ids) else None

    @property
    def ended_by(self) -> int | None:
        """The id that ended the turn, if the server reports it."""
        named = self._reason.get("matched") if self._dialect is Dialect.SGLANG else self._last.get("stop_reason")
        return named if isinstance(named, int) and self.ids and self.ids[-1] == named else None

    def add(self, event: Any) -> None:
        if self._dialect is Dialect.SGLANG:
            self._add_sglang(event)
            return
        if isinstance(event, dict) and event.get("usage"):
            self.usage = usage_of(event)
        if self._last and isinstance(event, dict) and event.get("choices") == []:
            return  # an event that carries only the usage
        self._last = first_choice(event)
        logprobs = self._last.get("logprobs") or {}
        if self._dialect is Dialect.LLAMACPP:
            entries = logprobs.get("content") or []
            self.ids += [entry["id"] for entry in entries]
            self._logprobs += [entry["logprob"] for entry in entries]
            return
        if self._last.get("token_ids") is None:
            raise ModelError(
                f"{self._url} does not return token ids",
                hint="upgrade vLLM to 0.10.2 or later, or run in chat mode (--set mode=chat)",
            )
        self.ids += self._last["token_ids"]
        self._logprobs += logprobs.get("token_logprobs") or []

    def _add_sglang(self, event: Any) -> None:
        meta = event.get("meta_info") if isinstance(event, dict) else None
        if not meta or "output_token_logprobs" not in meta:
            raise ModelError(f"{self._url} does not answer in the format of SGLang: {str(event)[:200]}")
        pairs = meta["output_token_logprobs"]
        count = meta.get("completion_tokens", len(pairs))
        if len(pairs) >= count:  # each event repeats all tokens so far, unless the server is set to send only new ones
            self.ids, self._logprobs = [], []
        self.ids += [pair[1] for pair in pairs]
        self._logprobs += [pair[0] for pair in pairs]
        self._reason = meta.get("finish_reason") or {}
        self.usage = Usage(
            prompt_tokens=meta.get("prompt_tokens", 0),
            completion_tokens=count,
            cached_tokens=meta.get("cached_tokens", 0),
            model_calls=1,
        )

    def finish(self, text: str, stop: Sequence[str]) -> Finish:
        """Why it stopped. `text` is what its ids decode to."""
        reason = self._reason.get("type") if self._dialect is Dialect.SGLANG else self._last.get("finish_reason")
        if reason == "length":
            return Finish.LENGTH
        return Finish.STOP if any(word in text for word in stop) else Finish.END


def first_choice(answer: Any) -> dict[str, Any]:
    try:
        return dict(answer["choices"][0])
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise ModelError(f"the server answers in an unknown shape: {str(answer)[:200]}") from error


def usage_of(answer: dict[str, Any]) -> Usage:
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        model_calls=1,
    )
