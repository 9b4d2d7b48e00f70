"""Token mode: ids in, ids and logprobs out, from vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, Sampling
from coa.models.dialects import PATHS, Answer, Dialect, request
from coa.models.server import ModelServer
from coa.trajectory import Tokenizer, Tokens
from coa.trajectory.grammar import Grammar, to_gbnf

_Listener = Callable[[str], None] | None


class CompletionsModel:
    """A model behind a server that takes and returns token ids. Streams where somebody listens; whole answers cost
    the client less. llama.cpp streams always: its whole answers lose the ids of what a stop string cut off."""

    def __init__(self, server: ModelServer, name: str, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self._server = server
        self._name = name
        self._tokenizer = tokenizer
        self._dialect = dialect

    @property
    def name(self) -> str:
        return self._name

    @property
    def tokenizer(self) -> Tokenizer:
        return self._tokenizer

    @property
    def constrained_by_default(self) -> bool:
        """What a server runs is rarely small, and a grammar costs it time."""
        return False

    @property
    def unconstrainable(self) -> str | None:
        return None

    async def generate(
        self,
        context: Context,
        *,
        stop: Sequence[str],
        sampling: Sampling,
        on_text: Callable[[str], None] | None = None,
        grammar: Grammar | None = None,
    ) -> Generation:
        if context.ids is None:
            raise ModelError("token mode needs the context as ids")
        stream = on_text is not None or self._dialect is Dialect.LLAMACPP
        rules = to_gbnf(grammar) if grammar is not None else None
        body = request(self._dialect, self._name, context.ids, stop, sampling, stream=stream, rules=rules)
        if stream:
            answer: Answer = await self._server.retry(lambda: self._streamed(body, on_text))
        else:
            answer = self._new_answer()
            answer.add(await self._server.post(PATHS[self._dialect], body))
        ids, logprobs = answer.ids, answer.logprobs
        if ids and (ids[-1] in self._tokenizer.end_ids or ids[-1] == answer.ended_by):
            ids, logprobs = ids[:-1], logprobs[:-1] if logprobs is not None else None
        text = self._tokenizer.decode(ids)
        finish = answer.finish(text, stop)
        if grammar is not None:
            self._check(text, finish, grammar)
        if on_text:
            on_text(text)
        tokens = Tokens(ids=tuple(ids), logprobs=None if logprobs is None else tuple(logprobs))
        return Generation(text, finish, answer.usage, tokens, constrained=grammar is not None)

    def _check(self, text: str, finish: Finish, grammar: Grammar) -> None:
        """A server that does not know the field ignores it, and the run would only seem to be constrained."""
        if not grammar.admits(text, whole=finish is not Finish.LENGTH):
            raise ModelError(
                f"{self._server.name} does not keep to the grammar it was sent: {text[:80]!r}",
                hint="upgrade the server, or use --constrain never",
            )

    async def close(self) -> None:
        await self._server.close()

    async def _streamed(self, body: Mapping[str, Any], on_text: _Listener) -> Answer:
        answer = self._new_answer()
        async with aclosing(self._server.stream(PATHS[self._dialect], body)) as events:
            async for event in events:
                answer.add(event)
                if on_text and answer.ids and answer.ids[-1] not in self._tokenizer.end_ids:
                    on_text(self._tokenizer.decode(answer.ids))
        return answer

    def _new_answer(self) -> Answer:
        return Answer(self._dialect, self._server.name)
