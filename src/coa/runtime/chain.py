"""The chain loop: let the model write, read what it wrote, call the tool it calls, append what comes back, go on.

Nothing that a model or a tool does raises out of `run`: a failure ends as a trajectory that tells it. Whatever budget
runs out, the run is led to an answer; the words with which it is led are the environment's and never trained.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from pydantic import JsonValue, ValidationError

from coa.errors import CoaError, ModelError
from coa.models.base import Context, Finish, Generation, Model, Sampling, first_stop
from coa.models.price import Price
from coa.runtime import wording
from coa.runtime.budget import Budget
from coa.runtime.guide import Constrain, Course, Guide, constrained, mark
from coa.tools import Observation, Tool, ToolContext, call_tool
from coa.trajectory import (
    OBSERVATION,
    Author,
    Delta,
    Failure,
    FailureSite,
    Kind,
    Ledger,
    Limits,
    Message,
    Opened,
    Parser,
    Profile,
    Reading,
    RepairKind,
    State,
    Step,
    Stop,
    Task,
    Tokens,
    Trajectory,
    TurnEnd,
    Usage,
    attribute,
    load_profile,
    observation,
)
from coa.trajectory.codec import canonical
from coa.trajectory.profile import with_tool
from coa.trajectory.shapes import read
from coa.trajectory.types import FrozenDict

NUDGES: Final = 3
"""How often a model that ends its turn without an answer is told to go on."""


@dataclass(frozen=True, slots=True)
class Called:
    """A tool is being called."""

    agent: str
    arguments: Mapping[str, JsonValue]


@dataclass(frozen=True, slots=True)
class Observed:
    """The environment wrote a step."""

    step: Step


@dataclass(frozen=True, slots=True)
class _Cut:
    """What the model wrote up to a length limit, and where the run stood before it."""

    steps: int
    state: State
    text: str
    tokens: Tokens | None
    ends_line: bool


@dataclass(slots=True)
class _Heard:
    """What a model that streams has written so far, so that it is not lost where the model is cut off."""

    stop: Sequence[str]
    given: str
    led: Stop | None
    constrained: bool
    text: str = ""


ChainEvent = Opened | Delta | Called | Observed | Step
"""What a listener hears; a `Step` when one of the model's is complete."""


async def run(
    task: Task | str,
    model: Model,
    tools: Mapping[str, Tool] | None = None,
    profile: Profile | str = "web",
    *,
    sampling: Sampling | None = None,
    limits: Limits | None = None,
    prompt: Sequence[Message] | None = None,
    price: Price | None = None,
    sample: int = 0,
    listen: Callable[[ChainEvent], None] | None = None,
    constrain: Constrain | str = Constrain.AUTO,
) -> Trajectory:
    """One attempt at one task."""
    chain = Chain(
        task,
        model,
        tools,
        profile,
        sampling=sampling,
        limits=limits,
        prompt=prompt,
        price=price,
        sample=sample,
        listen=listen,
        constrain=constrain,
    )
    return await chain.run()


class Chain:
    """One run in progress. `trajectory()` is what there is of it at any time, also after an interruption."""

    def __init__(
        self,
        task: Task | str,
        model: Model,
        tools: Mapping[str, Tool] | None = None,
        profile: Profile | str = "web",
        *,
        sampling: Sampling | None = None,
        limits: Limits | None = None,
        prompt: Sequence[Message] | None = None,
        price: Price | None = None,
        sample: int = 0,
        listen: Callable[[ChainEvent], None] | None = None,
        constrain: Constrain | str = Constrain.AUTO,
    ) -> None:
        self._task = Task(id="question", question=task) if isinstance(task, str) else task
        self._model = model
        self._tools = tools or {}
        self._profile = _knowing(load_profile(profile) if isinstance(profile, str) else profile, self._tools)
        self._sampling = sampling or Sampling()
        self._messages = tuple(prompt or self._profile.messages(self._task))
        self._sample = sample
        self._listen = listen
        self._stops = _stops(self._profile)
        self._constrained = constrained(model, Constrain(constrain))
        self._guide = Guide(self._profile, self._tools) if self._constrained is not None else None
        self._budget = Budget(limits or self._profile.limits, price, self._guide)
        self._course: Course | None = None
        self._ledger = Ledger(model.tokenizer) if model.tokenizer is not None else None
        self._steps: list[Step] = []
        self._ends: list[TurnEnd] = []
        self._text: list[tuple[Author, str]] = []
        self._state = State.begin(self._profile)
        self._made: dict[tuple[str, str], int] = {}
        self._nudges = 0
        self._cut: _Cut | None = None
        self._heard: _Heard | None = None
        self._stop = Stop.INTERRUPTED
        self._failure: Failure | None = None
        self.doing = "starting"
        """What it waits for, for whoever asks why it takes so long."""

    async def run(self) -> Trajectory:
        self._budget.start()
        try:
            async with asyncio.timeout(self._budget.limits.seconds):
                self._open()
                await self._go_on()
        except TimeoutError:
            self._stop = Stop.TIME
            self._take_heard()
            self._fall_back()
            if not self._budget.usage.model_calls:
                self._fail(f"the model did not answer once in {self._budget.limits.seconds:g} seconds")
        except asyncio.CancelledError:
            self._take_heard()
            raise
        except CoaError as error:
            self._fail(error.message)
        return self.trajectory()

    def _fail(self, message: str) -> None:
        self._stop = Stop.FAILED
        self._failure = Failure(site=FailureSite.MODEL, message=message, step=len(self._steps))

    def trajectory(self) -> Trajectory:
        tokenizer, steps, ends = self._model.tokenizer, self._steps, self._ends
        if any(step.meta.get("partial") for step in steps):  # some have no ids, and a ledger takes all or none
            steps, ends = [step.model_copy(update={"tokens": None}) for step in steps], []
        return Trajectory(
            task=self._task,
            profile=self._profile.name,
            profile_hash=self._profile.hash,
            steps=tuple(steps),
            stop=self._stop,
            failure=self._failure,
            usage=self._budget.total,
            prompt=self._messages,
            tokenizer=tokenizer.fingerprint if tokenizer is not None else None,
            ends=tuple(ends),
            sample=self._sample,
            meta={"model": self._model.name},
        )

    # ---- the loop

    def _open(self) -> None:
        if self._ledger is not None:
            self._budget.context_tokens = len(self._ledger.open(self._messages).ids)

    async def _go_on(self) -> None:
        while True:
            spent = self._budget.spent(len(self._steps))
            if spent is None and self._guide is not None:
                spent = self._plot()
            if spent is not None:
                await self._conclude(spent)
                return
            stops = self._stops if self._course is None else self._course.stop
            try:
                async with asyncio.timeout(self._budget.seconds_left):
                    generation = await self._generate(stops, self._budget.room)
            except TimeoutError:  # there is still time for an answer
                self._take_heard()
                await self._conclude(Stop.TIME)
                return
            stop = await self._act(generation, self._take(generation, stops))
            if stop is Stop.ANSWERED:
                self._stop = stop
                return
            if stop is not None:
                await self._conclude(stop)
                return

    async def _act(self, generation: Generation, steps: Sequence[Step]) -> Stop | None:
        """Do what the model's last step asks for; the reason to stop, if there is one."""
        last = steps[-1] if steps else None
        agent = self._profile.agents.get(last.agent) if last else None
        if generation.finish is Finish.LENGTH and last is not None and last.has(RepairKind.MISSING_CLOSE):
            return None  # the next call goes on in mid-step
        if agent is not None and agent.kind is Kind.ANSWER:
            return Stop.ANSWERED
        if agent is not None and agent.kind is Kind.TOOL:
            assert last is not None
            if not self._budget.calls_left:
                return Stop.TOOL_CALLS
            self._observe(await self._call(last))
            return None
        if last is not None and last.agent == OBSERVATION:
            self._observe(Observation(wording.FORGED, ok=False, meta={"error": "forged_observation"}))
            return None
        if generation.finish is Finish.LENGTH and generation.text:
            return None  # the next call goes on where this one was cut
        if generation.constrained and generation.finish is Finish.STOP and last is not None:
            return None  # a grammar is for one step; another one follows
        self._nudges += 1
        if self._nudges > NUDGES:
            return Stop.UNANSWERED
        self._observe(Observation(wording.unfinished(self._state.legal()), ok=False, meta={"error": "unfinished"}))
        return None

    async def _call(self, step: Step) -> Observation:
        reading = read(self._profile.shape(step.agent), step.text)
        if not isinstance(reading, Reading):
            return Observation(wording.slip(step.agent, reading), ok=False, meta={"error": "format"})
        tool = self._tools.get(step.agent)
        if tool is None:
            return Observation(wording.missing(step.agent, self._tools), ok=False, meta={"error": "no_such_tool"})
        key = (step.agent, repr(sorted(reading.arguments.items())))
        if key in self._made:
            return Observation(wording.repeated(self._made[key]), ok=False, meta={"error": "repeated"})
        self._made[key] = len(self._steps)
        self._tell(Called(step.agent, reading.arguments))
        self._budget.pay(Usage(tool_calls=1))
        self.doing = f"waiting for the tool {step.agent}"
        thoughts = (s.text for s in reversed(self._steps) if s.agent == self._profile.thought)
        started = time.monotonic()
        answer = await call_tool(
            tool,
            reading.arguments,
            ToolContext(self._task, next(thoughts, "")),
            max_characters=self._budget.limits.observation_characters,
            timeout_s=max(round(self._budget.seconds_left, 1), 0.0),  # the model may read it
        )
        return Observation(answer.text, answer.ok, {**answer.meta, "seconds": time.monotonic() - started})

    # ---- held to the protocol

    def _plot(self) -> Stop | None:
        """Decide what the next step may be; a reason to stop if there is no room for one."""
        assert self._guide is not None
        if self._cut is not None:
            self._course = self._rest()
            return None
        calls = self._budget.calls_left
        room = min(self._budget.held_room, 2 * self._sampling.max_tokens)
        self._course = self._guide.next(self._state, ends_line=self._ends_line(), room=room, calls=calls)
        if self._course is not None or not self._guide.leads(self._state, calls=calls):
            return None  # where the rules lead nowhere the model is left to itself
        return self._budget.scarcest(room)

    def _rest(self) -> Course | None:
        """What is left of a step that the token limit cut: end it as soon as possible."""
        course, cut = self._course, self._cut
        rest = course.whole.after(cut.text) if course is not None and cut is not None else None
        if course is None or rest is None:
            return None
        return Course(rest.closing(), course.whole, rest.distance, course.stop)

    async def _lead_home(self, reason: Stop) -> bool:
        """Let the model write the shortest legal way to the answer; False if it did not get there."""
        for _ in range(len(self._profile.agents) * 2):
            assert self._guide is not None
            calls = self._budget.calls_left
            room = self._budget.room_home(*self._guide.way_home(self._state, calls=calls))
            if self._cut is not None:
                self._course = self._rest()
            else:
                self._course = self._guide.home(self._state, ends_line=self._ends_line(), room=room, calls=calls)
            if self._course is None:
                return False
            generation = await self._generate(self._course.stop, self._course.tokens, led=reason)
            steps = self._take(generation, self._course.stop, led=reason)
            if not steps or not generation.constrained or self._state.done:
                return self._state.done
            if self._state.waiting and self._cut is None:
                self._observe(await self._call(steps[-1]))
        return False

    async def _conclude(self, reason: Stop) -> None:
        """Open the answer for the model and let it fill it in; else take its last suggestion."""
        self._stop = reason
        try:
            if self._guide is not None and await self._lead_home(reason):
                return
        except ModelError as error:
            self._fall_back(error)
            return
        self._course = self._cut = None
        opening = ("" if self._ends_line() else "\n") + "<answer>"
        self._write(Author.ENVIRONMENT, opening, len(self._steps))
        self.doing = "writing the final answer"
        try:
            generation = await self._generate(("</answer>",), self._budget.answer_room, given=opening)
        except ModelError as error:
            self._unwrite()
            self._fall_back(error)
            return
        steps = self._take(generation, ("</answer>",), given=opening)
        if not any(step.agent == "answer" and step.text.strip() for step in steps):
            self._fall_back()

    def _fall_back(self, error: ModelError | None = None) -> None:
        """The last suggestion as the answer, in the environment's name; it tells why the model gave none itself.

        Where there is no suggestion either, a model that broke is a run that failed.
        """
        texts = [
            step.text for step in self._steps if step.agent in ("suggested_answer", "answer") and step.text.strip()
        ]
        if texts and not any(step.agent == "answer" and step.text.strip() for step in self._steps):
            why = {} if error is None else {"failure": error.message}
            meta = {"fallback": "suggested_answer", **why}
            self._append(Step(agent="answer", text=texts[-1], author=Author.ENVIRONMENT, meta=meta))
        elif not texts and error is not None:
            self._fail(error.message)

    # ---- what the model wrote, what the environment writes

    async def _generate(
        self, stop: Sequence[str], room: int, *, given: str = "", led: Stop | None = None
    ) -> Generation:
        self.doing = "waiting for the model"
        sampling = self._sampling
        course = self._course
        limit = min(sampling.max_tokens, room) if course is None else course.tokens
        turns = [(author is Author.MODEL, "".join(text for _, text in group))
                 for author, group in groupby(self._text, key=lambda piece: piece[0])]  # fmt: skip
        context = Context(
            messages=self._messages,
            text="".join(text for _, text in self._text),
            ids=self._ledger.ids if self._ledger is not None else None,
            turns=turns,
        )
        setting = Sampling(sampling.temperature, sampling.top_p, sampling.top_k, limit, sampling.seed)
        # Only for a listener does a model stream: many runs would pay for it in CPU, and what is taken from a stream
        # has no ids to train on.
        heard = self._heard = _Heard(stop, given, led, self._constrained is not None and course is not None)
        on_text = None if self._listen is None else self._preview(self._listen, heard)
        began = time.monotonic()
        try:
            if self._constrained is not None and course is not None:
                generation = await self._constrained.generate(
                    context, stop=stop, sampling=setting, on_text=on_text, grammar=course.grammar
                )
            else:
                generation = await self._model.generate(context, stop=stop, sampling=setting, on_text=on_text)
        except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:  # answers of any shape
            raise ModelError(f"the model's answer cannot be used: {type(error).__name__}: {error}") from error
        self._heard = None
        self._budget.writing_s += time.monotonic() - began
        self._budget.pay(generation.usage)
        if self._ledger is None:
            self._budget.context_tokens = generation.usage.prompt_tokens + generation.usage.completion_tokens
        return generation

    def _take_heard(self) -> None:
        """What the model was writing when it was cut off, as far as it was heard: without ids, and marked as partial.

        Its tokens are counted here where there is a tokenizer; elsewhere nobody told them.
        """
        heard, self._heard = self._heard, None
        if heard is None or not heard.text:
            return
        found = first_stop(heard.text, heard.stop)
        text = heard.text[: found[0]] if found else heard.text
        tokenizer, usage = self._model.tokenizer, Usage(model_calls=1)
        if tokenizer is not None:
            usage = Usage(
                prompt_tokens=self._budget.context_tokens,
                completion_tokens=len(tokenizer.encode([text])[0]),
                model_calls=1,
            )
        self._budget.pay(usage)
        cut = Generation(text, Finish.LENGTH, usage, constrained=heard.constrained)
        self._take(cut, heard.stop, given=heard.given, led=heard.led, partial=True)

    def _take(
        self,
        generation: Generation,
        stop: Sequence[str],
        *,
        given: str = "",
        led: Stop | None = None,
        partial: bool = False,
    ) -> tuple[Step, ...]:
        """Read what was written into steps, each with the ids it was sampled as."""
        new, tokens = generation.text, generation.tokens
        before = self._cut or _Cut(
            len(self._steps), self._state, "", Tokens(ids=(), logprobs=()), self._ends_line(before=bool(given))
        )
        # What a length limit cut in two is read as one: the steps of the first half are read again with the second.
        del self._steps[before.steps :]
        self._state = before.state
        text, whole = before.text + new, _joined(before.tokens, tokens)
        found = first_stop(text, stop)
        end = found[0] if found else len(text)
        parser = Parser(self._profile, given=given, ends_line=before.ends_line)
        parser.feed(text[:end])
        parser.finish(text[end:])
        steps = parser.steps
        if whole is not None and self._ledger is not None and steps:
            steps = self._with_tokens(steps, whole, before.ends_line)
        made = dict(mark(generation.log_kept, led)) if generation.constrained else {}
        if partial:
            made["partial"] = True
        if made:
            steps = tuple(step.model_copy(update={"meta": FrozenDict({**step.meta, **made})}) for step in steps)
        for step in steps:
            self._keep(step)
            self._tell(step)
        self._cut = None
        if generation.ended is not None:
            token, logprob = generation.ended
            self._ends.append(TurnEnd(before=len(self._steps), id=token, logprob=logprob))
        if generation.finish is Finish.LENGTH and not given and not found:
            self._cut = _Cut(before.steps, before.state, text, whole, before.ends_line)
        if new:
            self._text.append((Author.MODEL, new))
        if tokens is not None and self._ledger is not None:
            self._ledger.append_sampled(tokens, step=len(self._steps) - 1, text=new)
            self._budget.context_tokens = len(self._ledger)
        elif new and self._ledger is not None:
            self._ledger.append(Author.MODEL, new, step=len(self._steps) - 1)
            self._budget.context_tokens = len(self._ledger)
        return steps

    def _with_tokens(self, steps: Sequence[Step], tokens: Tokens, ends_line: bool) -> tuple[Step, ...]:
        assert self._model.tokenizer is not None
        surfaces = []
        for step in steps:
            surface = canonical(step, self._profile, ends_line=ends_line) if step.surface is None else step.surface
            surfaces.append(surface[step.given :])
            ends_line = surface.endswith("\n") if surface else ends_line
        shares = attribute(self._model.tokenizer, tokens.ids, tokens.logprobs, surfaces)
        return tuple(step.model_copy(update={"tokens": share}) for step, share in zip(steps, shares, strict=True))

    def _observe(self, answer: Observation) -> None:
        text = self._fitting(answer.text)
        try:
            step = observation(text, meta={"ok": answer.ok, **answer.meta})
        except ValidationError:  # meta that no file can hold
            step = observation(text, meta={"ok": answer.ok})
        self._append(step)

    def _fitting(self, text: str) -> str:
        """Cut from the middle to what the context has room for, the answer's share kept back."""
        tokenizer = self._model.tokenizer
        if tokenizer is None:
            return text
        room = self._budget.observation_room
        if len(text.encode()) <= room:  # no tokenizer needs more tokens than bytes, and counting them takes long
            return text
        for _ in range(4):
            count = len(tokenizer.encode([text])[0])
            if count <= max(room, 64):
                break
            keep = max(int(len(text) * max(room, 64) / count * 0.9) // 2, 1)
            text = f"{text[:keep]}\n[cut to fit the context]\n{text[-keep:]}"
        return text

    def _append(self, step: Step) -> None:
        """A step of the environment's."""
        self._cut = None
        text = canonical(step, self._profile, ends_line=self._ends_line())
        self._keep(step)
        self._write(Author.ENVIRONMENT, text, len(self._steps) - 1)
        self._tell(Observed(step))

    def _tell(self, event: ChainEvent) -> None:
        if self._listen is not None:
            self._listen(event)

    def _preview(self, listen: Callable[[ChainEvent], None], so_far: _Heard) -> Callable[[str], None]:
        """Turns the text so far, as a model streams it, into events. Only for show: the record is read at the end, and
        from what was heard only if there is no end."""
        parser = Parser(self._profile, given=so_far.given)
        shown = 0

        def heard(text: str) -> None:
            nonlocal shown
            so_far.text = text = text.rstrip("\ufffd")  # a character that is not whole yet
            for event in parser.feed(text[shown:]):
                if isinstance(event, Opened | Delta):
                    listen(event)
            shown = max(shown, len(text))

        return heard

    def _keep(self, step: Step) -> None:
        self._steps.append(step)
        self._state, _ = self._state.advance(step)

    def _write(self, author: Author, text: str, step: int) -> None:
        self._text.append((author, text))
        if self._ledger is not None:
            self._ledger.append(author, text, step=step)
            self._budget.context_tokens = len(self._ledger)

    def _unwrite(self) -> None:
        """Take back an opening that the model never filled; the ledger of a concluded run is not used again."""
        self._text.pop()

    def _ends_line(self, *, before: bool = False) -> bool:
        """Whether the transcript is empty or ends a line; `before` looks past the opening written last."""
        texts = self._text[:-1] if before else self._text
        return not texts or texts[-1][1].endswith("\n")


def _knowing(profile: Profile, tools: Mapping[str, Tool]) -> Profile:
    """Tools that the profile does not name join it, described by themselves."""
    for tag, tool in tools.items():
        if tag not in profile.agents:
            profile = with_tool(profile, tag, title=tag, does=tool.about, shape=tool.shape)
    return profile


def _joined(one: Tokens | None, other: Tokens | None) -> Tokens | None:
    if one is None or other is None:
        return None
    logprobs = None if one.logprobs is None or other.logprobs is None else one.logprobs + other.logprobs
    return Tokens(ids=one.ids + other.ids, logprobs=logprobs)


def _stops(profile: Profile) -> tuple[str, ...]:
    """An answer, an observation of its own, a call: where the model has to wait for the environment."""
    return ("</answer>", f"<{OBSERVATION}>", *(f"</{tag}>" for tag in profile.tools))
