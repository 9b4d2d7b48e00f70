"""Token mode: ids go in, ids and logprobs come out, with vLLM, SGLang or llama.cpp."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import Any

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.models.dialects import FEWEST_STOPS, PATHS, Answer, Dialect, refuses_stops, request
from coa.models.server import ModelServer, ModelUnserved
from coa.trajectory import Tokenizer, Tokens
from coa.trajectory.grammar import Grammar, to_gbnf

log = logging.getLogger(__name__)


class CompletionsModel:
    """A model behind a server that takes and returns token ids.

    It streams only if `on_text` is given, because whole answers cost the client less. llama.cpp always streams: its
    whole answers lack the ids of the text that a stop string cut off. A server that takes few stop strings (vLLM takes
    four unless its `VLLM_MAX_STOP_STRINGS` says otherwise) streams too: the other strings are looked for here, and the
    connection is closed at the first one, which ends the generation on the server.
    """

    constrained_by_default = False
    """A served model is rarely small, and a grammar costs the server time."""
    unconstrainable: str | None = None

    def __init__(self, server: ModelServer, name: str, tokenizer: Tokenizer, dialect: Dialect) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self._server = server
        self._dialect = dialect
        self._most_stops: int | None = None
        """How many stop strings the server takes; None as long as it has refused none."""

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None,
        grammar: Grammar | None = None,
    ) -> Generation:  # fmt: skip
        if context.ids is None:
            raise ModelError("token mode needs the context as ids")
        rules = to_gbnf(grammar) if grammar is not None else None
        answer = await self._answer(context.ids, stop, sampling, rules, on_text)
        ids, logprobs, ended = answer.ids, answer.logprobs, None
        if ids and (ids[-1] in self.tokenizer.end_ids or ids[-1] == answer.ended_by):
            ended = (ids[-1], logprobs[-1]) if logprobs is not None else None
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
        usage = answer.usage(len(context.ids))
        return Generation(text, finish, usage, tokens, constrained=grammar is not None, ended=ended)

    async def close(self) -> None:
        await self._server.close()

    async def _answer(
        self, ids: Sequence[int], stop: Sequence[str], sampling: Sampling, rules: str | None, on_text: OnText
    ) -> Answer:
        most = self._most_stops
        try:
            return await self._ask(ids, stop, most, sampling, rules, on_text)
        except ModelUnserved as error:
            if most is not None or not refuses_stops(error, stop):
                raise
        answer = await self._ask(ids, stop, FEWEST_STOPS, sampling, rules, on_text)
        if self._most_stops is None:
            self._most_stops = FEWEST_STOPS
            log.warning(
                "%s takes at most %d stop strings and a run needs %d: answers are streamed and cut here, which costs "
                "this process time. To avoid it, start vLLM with VLLM_MAX_STOP_STRINGS=64 in its environment",
                self._server.name, FEWEST_STOPS, len(stop),
            )  # fmt: skip
        return answer

    async def _ask(
        self, ids: Sequence[int], stop: Sequence[str], most_stops: int | None, sampling: Sampling, rules: str | None,
        on_text: OnText,
    ) -> Answer:  # fmt: skip
        sent, unsent = stop[:most_stops], () if most_stops is None else stop[most_stops:]
        stream = on_text is not None or self._dialect is Dialect.LLAMACPP or bool(unsent)
        body = request(self._dialect, self.name, ids, sent, sampling, stream=stream, rules=rules)
        if stream:
            return await self._server.retry(lambda: self._streamed(body, unsent, on_text))
        answer = Answer(self._dialect, self._server.name)
        answer.add(await self._server.post(PATHS[self._dialect], body))
        return answer

    async def _streamed(self, body: Mapping[str, Any], unsent: Sequence[str], on_text: OnText) -> Answer:
        """`unsent` are the stop strings that the server does not know of; the stream is left at the first one."""
        answer = Answer(self._dialect, self._server.name)
        longest = max((len(word.encode()) for word in unsent), default=0)
        async with aclosing(self._server.stream(PATHS[self._dialect], body)) as events:
            async for event in events:
                before = len(answer.ids)
                answer.add(event)
                if unsent and (end := self._end(answer.ids, before, unsent, longest)) is not None:
                    answer.cut(end)
                    return answer
                if on_text and answer.ids and answer.ids[-1] not in self.tokenizer.end_ids:
                    on_text(self.tokenizer.decode(answer.ids))
        return answer

    def _end(self, ids: Sequence[int], seen: int, words: Sequence[str], longest: int) -> int | None:
        """The number of ids up to the one that completes a stop string, if one after the first `seen` does.

        A token has at least one byte, so as many tokens as the longest string has bytes hold all of it.
        """
        first = max(seen - longest, 0)
        for end in range(seen + 1, len(ids) + 1):
            text = self.tokenizer.decode(ids[first:end])
            if any(word in text for word in words):
                return end
        return None
