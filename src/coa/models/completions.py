"""Token mode: ids go in, ids and logprobs come out, with vLLM, SGLang or llama.cpp."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.models.dialects import PATHS, Answer, Dialect, request
from coa.models.server import ModelServer
from coa.trajectory import Tokenizer, Tokens
from coa.trajectory.grammar import Grammar, to_gbnf


class CompletionsModel:
    """A model behind a server that takes and returns token ids.

    It streams only if `on_text` is given, because whole answers cost the client less. llama.cpp always streams: its
    whole answers lack the ids of the text that a stop string cut off.
    """

    constrained_by_default = False
    """A served model is rarely small, and a grammar costs the server time."""
    unconstrainable: str | None = None

    def __init__(self, server: ModelServer, name: str, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self._server = server
        self._dialect = dialect

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None,
        grammar: Grammar | None = None,
    ) -> Generation:  # fmt: skip
        if context.ids is None:
            raise ModelError("token mode needs the context as ids")
        stream = on_text is not None or self._dialect is Dialect.LLAMACPP
        rules = to_gbnf(grammar) if grammar is not None else None
        body = request(self._dialect, self.name, context.ids, stop, sampling, stream=stream, rules=rules)
        if stream:
            answer: Answer = await self._server.retry(lambda: self._streamed(body, on_text))
        else:
            answer = Answer(self._dialect, self._server.name)
            answer.add(await self._server.post(PATHS[self._dialect], body))
        ids, logprobs = answer.ids, answer.logprobs
        if ids and (ids[-1] in self.tokenizer.end_ids or ids[-1] == answer.ended_by):
            ids, logprobs = ids[:-1], logprobs[:-1] if logprobs is not None else None
        text = self.tokenizer.decode(ids)
        finish = answer.finish(text, stop)
        if grammar is not None and not grammar.admits(text, whole=finish is not Finish.LENGTH):
            # A server that does not know the field ignores it, and the run would only seem to be constrained.
            raise ModelError(
                f"{self._server.name} does not keep to the grammar that it was sent: {text[:80]!r}",
                hint="upgrade the server, or use --set constrain=never",
            )
        if on_text:
            on_text(text)
        tokens = Tokens(ids=tuple(ids), logprobs=None if logprobs is None else tuple(logprobs))
        return Generation(text, finish, answer.usage(len(context.ids)), tokens, constrained=grammar is not None)

    async def close(self) -> None:
        await self._server.close()

    async def _streamed(self, body: Mapping[str, Any], on_text: OnText) -> Answer:
        answer = Answer(self._dialect, self._server.name)
        async with aclosing(self._server.stream(PATHS[self._dialect], body)) as events:
            async for event in events:
                answer.add(event)
                if on_text and answer.ids and answer.ids[-1] not in self.tokenizer.end_ids:
                    on_text(self.tokenizer.decode(answer.ids))
        return answer
