"""Token mode: ids in, ids and logprobs out. vLLM, SGLang and llama.cpp each have their own way to say it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import orjson

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.http import Transport
from coa.trajectory import Tokenizer, Tokens, Usage


class Dialect(StrEnum):
    VLLM = "vllm"
    SGLANG = "sglang"
    LLAMACPP = "llamacpp"


class CompletionsModel:
    """A model behind a server that takes and returns token ids."""

    def __init__(self, transport: Transport, name: str, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self._transport = transport
        self._name = name
        self._tokenizer = tokenizer
        self._dialect = dialect

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    async def generate(
        self,
        context: Context,
        *,
        stop: Sequence[str],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
    ) -> Generation:
        if context.ids is None:
            raise ModelError("token mode needs the context as ids")
        ask = {Dialect.VLLM: self._vllm, Dialect.SGLANG: self._sglang, Dialect.LLAMACPP: self._llamacpp}[self._dialect]
        ids, logprobs, finish, usage = await ask(context.ids, stop, sampling, on_text)
        end = self._tokenizer.end_of_turn
        if ids and ids[-1] == end:
            ids, logprobs = ids[:-1], logprobs[:-1] if logprobs is not None else None
        text = self._tokenizer.decode(ids)
        if on_text:
            on_text(text)
        tokens = Tokens(ids=tuple(ids), logprobs=None if logprobs is None else tuple(logprobs))
        return Generation(text, finish, usage, tokens)

    async def close(self) -> None:
        await self._transport.close()

    async def _vllm(self, ids: Sequence[int], stop: Sequence[str], sampling: Sampling, on_text: _Listener) -> _Answer:
        answer = await self._transport.post(
            "/v1/completions",
            {
                **_common(self._name, ids, stop, sampling),
                "top_k": sampling.top_k,
                "logprobs": 0,
                "return_token_ids": True,
                "include_stop_str_in_output": True,
                **response_format(sampling),
            },
        )
        choice = first_choice(answer)
        if choice.get("token_ids") is None:
            raise ModelError(
                f"{self._transport.url} does not return token ids",
                cure="upgrade vLLM to 0.10.2 or later, or run in chat mode (--mode chat)",
            )
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs")
        return choice["token_ids"], logprobs, _finish(choice, stop), usage_of(answer)

    async def _sglang(self, ids: Sequence[int], stop: Sequence[str], sampling: Sampling, on_text: _Listener) -> _Answer:
        answer = await self._transport.post(
            "/generate",
            {
                "input_ids": list(ids),
                "return_logprob": True,
                "sampling_params": {
                    "temperature": sampling.temperature,
                    "top_p": sampling.top_p,
                    "top_k": sampling.top_k,
                    "max_new_tokens": sampling.max_tokens,
                    "stop": list(stop),
                    "no_stop_trim": True,
                    **({} if sampling.json_schema is None else {"json_schema": sampling.json_schema}),
                },
            },
        )
        meta = answer.get("meta_info") if isinstance(answer, dict) else None
        if not meta or "output_token_logprobs" not in meta:
            raise ModelError(f"{self._transport.url} answers in a shape that is not SGLang's: {str(answer)[:200]}")
        pairs = meta["output_token_logprobs"]
        reason = meta.get("finish_reason") or {}
        finish = Finish.LENGTH if reason.get("type") == "length" else Finish.END
        if reason.get("type") == "stop" and isinstance(reason.get("matched"), str):
            finish = Finish.STOP
        usage = Usage(
            prompt_tokens=meta.get("prompt_tokens", 0),
            completion_tokens=meta.get("completion_tokens", len(pairs)),
            cached_tokens=meta.get("cached_tokens", 0),
            model_calls=1,
        )
        return [pair[1] for pair in pairs], [pair[0] for pair in pairs], finish, usage

    async def _llamacpp(
        self, ids: Sequence[int], stop: Sequence[str], sampling: Sampling, on_text: _Listener
    ) -> _Answer:
        """Streamed: whole answers lose the ids of what the stop string cut off."""
        body = {
            **_common(self._name, ids, stop, sampling),
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "logprobs": 1,
            "stream": True,
            "cache_prompt": True,
        }
        if sampling.json_schema is not None:
            body["json_schema"] = orjson.loads(sampling.json_schema)

        async def attempt() -> _Answer:
            tokens: list[int] = []
            logprobs: list[float] = []
            last: dict[str, Any] = {}
            usage = Usage(model_calls=1)
            async for event in self._transport.stream("/v1/completions", body):
                if "error" in event:
                    raise ModelError(f"{self._transport.url} fails: {event['error']}")
                last = first_choice(event)
                for entry in (last.get("logprobs") or {}).get("content", []):
                    tokens.append(entry["id"])
                    logprobs.append(entry["logprob"])
                if event.get("usage"):
                    usage = usage_of(event)
                if on_text and tokens[-1:] != [self._tokenizer.end_of_turn]:
                    on_text(self._tokenizer.decode(tokens))
            return tokens, logprobs, _finish(last, stop, self._tokenizer.decode(tokens)), usage

        return await self._transport.retry(attempt)  # type: ignore[no-any-return]


_Listener = Callable[[str], None] | None
_Answer = tuple[list[int], list[float] | None, Finish, Usage]


def _common(name: str, ids: Sequence[int], stop: Sequence[str], sampling: Sampling) -> dict[str, Any]:
    body = {
        "model": name,
        "prompt": list(ids),
        "stop": list(stop),
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
    }
    return body if sampling.seed is None else {**body, "seed": sampling.seed}


def response_format(sampling: Sampling) -> dict[str, Any]:
    """The standard's way to ask for JSON of a schema; nothing where none is asked for."""
    if sampling.json_schema is None:
        return {}
    schema = {"name": "reply", "strict": True, "schema": orjson.loads(sampling.json_schema)}
    return {"response_format": {"type": "json_schema", "json_schema": schema}}


def first_choice(answer: Any) -> dict[str, Any]:
    try:
        choice = answer["choices"][0]
    except (KeyError, IndexError, TypeError) as error:
        raise ModelError(f"the server answers in an unknown shape: {str(answer)[:200]}") from error
    if not isinstance(choice, dict):
        raise ModelError(f"the server answers in an unknown shape: {str(answer)[:200]}")
    return choice


def _finish(choice: dict[str, Any], stop: Sequence[str], text: str | None = None) -> Finish:
    if choice.get("finish_reason") == "length":
        return Finish.LENGTH
    if isinstance(choice.get("stop_reason"), str):
        return Finish.STOP
    written = text if text is not None else str(choice.get("text") or "")
    return Finish.STOP if any(word in written for word in stop) else Finish.END


def usage_of(answer: dict[str, Any]) -> Usage:
    usage = answer.get("usage") or {}
    details = usage.get("prompt_tokens_details") or {}
    return Usage(
        prompt_tokens=usage.get("prompt_tokens") or 0,
        completion_tokens=usage.get("completion_tokens") or 0,
        cached_tokens=details.get("cached_tokens") or 0,
        model_calls=1,
    )
