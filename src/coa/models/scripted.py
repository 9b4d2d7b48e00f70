"""A model that replies with given texts, for tests, demos and benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from coa.errors import ModelError
from coa.models.base import Context, Finish, Generation, OnText, Sampling, first_stop
from coa.trajectory import Tokenizer, Tokens, Usage

Script = Callable[[Context], str | Exception]


class ScriptedModel:
    """Answers each call with the next line of the script, or with what a function returns for the context.

    With a tokenizer it produces real ids, so that everything that needs ids can be tried without weights.
    """

    def __init__(
        self, script: Sequence[str | Exception] | Script, *, tokenizer: Tokenizer | None = None, name: str = "scripted"
    ) -> None:
        self.name = name
        self.tokenizer = tokenizer
        self.calls: list[Context] = []
        self._script = script

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        line = self._next(context)
        if isinstance(line, Exception):
            raise line
        found = first_stop(line, stop)
        text = line[: found[0]] if found else line
        finish = Finish.STOP if found else Finish.END
        tokens, count = None, len(text.split())
        if self.tokenizer:
            ids = self.tokenizer.encode([text])[0]
            if len(ids) > sampling.max_tokens:
                finish, ids = Finish.LENGTH, ids[: sampling.max_tokens]
                text = self.tokenizer.decode(ids)
            tokens, count = Tokens(ids=tuple(ids), logprobs=(-0.1,) * len(ids)), len(ids)
        elif count > sampling.max_tokens:
            finish, text, count = Finish.LENGTH, " ".join(text.split()[: sampling.max_tokens]), sampling.max_tokens
        if on_text:
            on_text(text)
        read = len(context.ids) if context.ids is not None else len(context.text.split())
        usage = Usage(prompt_tokens=read, completion_tokens=count, model_calls=1)
        return Generation(text, finish, usage, tokens)

    async def close(self) -> None:
        pass

    def _next(self, context: Context) -> str | Exception:
        self.calls.append(context)
        if callable(self._script):
            return self._script(context)
        if len(self.calls) > len(self._script):
            return ModelError(f"the script has {len(self._script)} lines, and this is call {len(self.calls)}")
        return self._script[len(self.calls) - 1]
