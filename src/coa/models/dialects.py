"""How to ask vLLM, SGLang and llama.cpp for ids, and how to read their answers.

One reader serves both whole answers and streams: a whole answer is a stream of one event. Field names are those of
vLLM's `return_token_ids`, SGLang's `/generate` and llama.cpp's server.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import orjson

from coa.errors import ModelError
from coa.models.base import Finish, Sampling
from coa.models.server import ModelUnserved
from coa.trajectory import Usage


class Dialect(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


def dialect_of(models: Iterable[Mapping[str, Any]]) -> Dialect | None:
    """Which server it is: the three name themselves in their lists of models (`/v1/models`)."""
    owners = {str(row.get("owned_by", "")).lower() for row in models}
    return next((dialect for dialect in Dialect if dialect.value in owners), None)


FEWEST_STOPS: Final = 4
"""Every server takes as many stop strings as OpenAI does."""


def refuses_stops(error: ModelUnserved, stop: Sequence[str]) -> bool:
    """Whether a server may have refused a request because it has too many stop strings, as vLLM and OpenAI do."""
    return len(stop) > FEWEST_STOPS and error.status in (400, 422) and "stop" in error.message


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
        self._usage: object = None
        self._logprobs: list[Any] = []
        self._dialect = dialect
        self._url = url
        self._last: dict[str, Any] = {}
        self._reason: dict[str, Any] = {}

    @property
    def logprobs(self) -> list[float] | None:
        """None unless every id has one that is a finite number."""
        whole = len(self._logprobs) == len(self.ids)
        return self._logprobs if whole and _all_finite(self._logprobs) else None

    def usage(self, prompt_tokens: int) -> Usage:
        """As the server reports it. The ids that went in and came out are counted here if it does not."""
        usage, readable = usage_of(self._usage)
        if readable:
            return usage
        return Usage(prompt_tokens=prompt_tokens, completion_tokens=len(self.ids), model_calls=1)

    @property
    def ended_by(self) -> int | None:
        """The id that ended the turn, if the server reports it."""
        named = self._reason.get("matched") if self._dialect is Dialect.SGLANG else self._last.get("stop_reason")
        return named if isinstance(named, int) and self.ids and self.ids[-1] == named else None

    def add(self, event: Any) -> None:
        try:
            ids, logprobs = self._read(event)
        except (AttributeError, IndexError, KeyError, TypeError):
            ids, logprobs = [None], []
        if not (set(map(type, ids)) <= {int} and min(ids, default=0) >= 0):
            raise ModelError(f"{self._url} answers in an unknown shape: {str(event)[:200]}")
        self.ids += ids
        self._logprobs += logprobs

    def cut(self, length: int) -> None:
        """Keep that many ids, the last of which ends with a stop string that the server did not know of."""
        del self.ids[length:], self._logprobs[length:]
        self._last = {**self._last, "finish_reason": "stop", "stop_reason": None}

    def _read(self, event: Any) -> tuple[list[Any], list[Any]]:
        """The new ids of an event and their logprobs."""
        if self._dialect is Dialect.SGLANG:
            return self._read_sglang(event)
        if isinstance(event, dict) and event.get("usage"):
            self._usage = event["usage"]
        if self._last and isinstance(event, dict) and event.get("choices") == []:
            return [], []  # an event that carries only the usage
        self._last = first_choice(event)
        logprobs = self._last.get("logprobs") or {}
        if self._dialect is Dialect.LLAMACPP:
            entries = logprobs.get("content") or []
            return [entry["id"] for entry in entries], [entry["logprob"] for entry in entries]
        if self._last.get("token_ids") is None:
            raise ModelError(
                f"{self._url} does not return token ids",
                hint="upgrade vLLM to 0.10.2 or later, or run in chat mode (--set mode=chat)",
            )
        return list(self._last["token_ids"]), list(logprobs.get("token_logprobs") or [])

    def _read_sglang(self, event: Any) -> tuple[list[Any], list[Any]]:
        meta = event.get("meta_info") if isinstance(event, dict) else None
        if not meta or "output_token_logprobs" not in meta:
            raise ModelError(f"{self._url} does not answer in the format of SGLang: {str(event)[:200]}")
        pairs = meta["output_token_logprobs"]
        # Each event repeats all tokens so far, unless the server is set to send only new ones.
        if len(pairs) >= (_count(meta.get("completion_tokens")) or 0):
            self.ids, self._logprobs = [], []
        self._reason = meta.get("finish_reason") or {}
        self._usage = {**meta, "prompt_tokens_details": meta}
        return [pair[1] for pair in pairs], [pair[0] for pair in pairs]

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


_MOST_TOKENS: Final = 1 << 40
"""No call uses this many, so a larger count is an error of the server."""


def usage_of(reported: object) -> tuple[Usage, bool]:
    """What a server reports as `usage`, and whether both counts of tokens could be read. What is not a count is 0."""
    row = reported if isinstance(reported, dict) else {}
    details = row.get("prompt_tokens_details")
    prompt, completion = _count(row.get("prompt_tokens")), _count(row.get("completion_tokens"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    usage = Usage(
        prompt_tokens=prompt or 0,
        completion_tokens=completion or 0,
        cached_tokens=min(cached or 0, prompt or 0),
        model_calls=1,
    )
    return usage, prompt is not None and completion is not None


def _all_finite(values: Iterable[Any]) -> bool:
    try:
        return all(map(math.isfinite, values))
    except (TypeError, OverflowError):  # something that is no number, or none that a float can hold
        return False


def _count(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST_TOKENS:
        return None
    return int(value)
