"""What a listener hears while a run goes on, and what is kept of a generation that is cut off.

A listener gets two kinds of events. Some are for show: `Opened` and `Delta` repeat the model's words while it is still
writing them, read by a parser that has seen only half of the text. The others are the record: a `Step` that the model
has completed, `Called` before a tool is called, `Observed` for a step of the environment's. The record is always read
anew from the whole generation, so listening changes nothing in the trajectory.

There is one exception. When time runs out or the caller cancels the run while the model is writing, there is no whole
generation, and what was streamed is all there is. `PartialGeneration` keeps it. It comes without token ids, so it can
be read but not trained on by RL.

A model streams only if somebody listens: for thousands of runs, the additional messages would cost much CPU time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from coa.models.base import Finish, Generation, first_stop
from coa.runtime.transcript import GenerationRequest
from coa.trajectory import Closed, Delta, Event, Opened, Parser, Profile, Step, Tokenizer, Usage


@dataclass(frozen=True, slots=True)
class Called:
    """A tool is being called."""

    agent: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Observed:
    """The environment wrote a step."""

    step: Step


ChainEvent = Opened | Delta | Called | Observed | Step
"""What a listener hears; a `Step` when one of the model's is complete."""
ChainListener = Callable[[ChainEvent], None]


class PartialGeneration:
    """What the model has streamed so far of the generation that it is writing."""

    def __init__(
        self, request: GenerationRequest, profile: Profile, listen: ChainListener, *, before: str = ""
    ) -> None:
        """`before` is the beginning of a step that this generation continues."""
        self.request = request
        self._listen = listen
        self._tools = profile.tools
        self._parser = Parser(profile)
        self._text = ""
        self._shown = ""
        """What has been passed on to the listener."""
        self._call_made = False
        self._pass_on(self._parser.feed(request.opening))
        self._parser.feed(before)

    def on_text(self, text: str) -> None:
        """Takes the text so far, which the model reports again and again, and passes on what is new.

        A call that broke off is made again. If the model then writes something else, nothing more is passed on: it
        would read as the continuation of words that are no longer there. The record has the new words.
        """
        self._text = text = text.rstrip("\ufffd")  # a character of which some bytes are still missing
        if len(text) > len(self._shown) and text.startswith(self._shown):
            self._pass_on(self._parser.feed(text[len(self._shown) :]))
            self._shown = text

    def _pass_on(self, events: Iterable[Event]) -> None:
        """Up to the end of the first tool call: what a model writes behind it is discarded."""
        for event in events:
            if isinstance(event, Closed):
                self._call_made = self._call_made or event.step.agent in self._tools
            elif not self._call_made:
                self._listen(event)

    def cut_off(self, tokenizer: Tokenizer | None, prompt_tokens: int) -> Generation | None:
        """What there is, as a generation that ended at a limit; None if nothing was streamed.

        The server did not report its usage, so the tokens are counted here, where there is a tokenizer to do it.
        """
        if not self._text:
            return None
        stopped = first_stop(self._text, self.request.stop)
        text = self._text[: stopped[0]] if stopped else self._text
        usage = Usage(model_calls=1)
        if tokenizer is not None:
            written = len(tokenizer.encode([text])[0])
            usage = Usage(prompt_tokens=prompt_tokens, completion_tokens=written, model_calls=1)
        return Generation(text, Finish.LENGTH, usage, constrained=self.request.grammar is not None)
