"""One run of an agent, from the question to the trajectory. Start reading here.

A run is a loop. The model writes until it needs the environment: it has called a tool, it has answered, or it has come
to a limit. What it wrote is read into steps, and the last step decides what happens. An answer ends the run. A tool
call gets the tool's observation. A step that a token limit cut off is continued. A model that ended its turn without an
answer gets a note with the agents that may act next. Then the model writes on behind what the environment wrote: to the
model, the whole run is one assistant turn.

When a budget runs out (steps, tokens, context, money, time), the run is led to an answer: the model is given `<answer>`
to fill in, and if it does not, its last `<suggested_answer>` counts. What the environment writes is never trained.

Nothing that a model or a tool does raises out of `run`. A failure ends as a trajectory that says what went wrong.

Each part of a run has a file beside this one: `transcript.py` is what was written so far and by whom, `budget.py` what
may still be spent, `constrained.py` what a model that is held to the protocol may write next, `streaming.py` what a
listener hears, `wording.py` the notes to the model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Final

from pydantic import ValidationError

from coa.errors import CoaError, ModelError
from coa.models.base import Finish, Generation, Sampling
from coa.runtime import wording
from coa.runtime.budget import Budget
from coa.runtime.constrained import ProtocolConstraint, constrained
from coa.runtime.setting import Setting
from coa.runtime.streaming import Called, ChainEvent, ChainListener, Observed, PartialGeneration
from coa.runtime.transcript import GenerationRequest, Transcript
from coa.tools import Observation, Tool, ToolContext, call_tool
from coa.trajectory import (
    OBSERVATION,
    Author,
    Failure,
    FailureSite,
    Kind,
    Profile,
    Reading,
    RepairKind,
    Step,
    Stop,
    Task,
    Trajectory,
    Usage,
    observation,
)
from coa.trajectory.profile import with_tool
from coa.trajectory.shapes import read
from coa.trajectory.shorten import shorten

MAX_NUDGES: Final = 3
"""How often a model that ends its turn without an answer is asked to go on."""


async def run(
    task: Task | str, setting: Setting, *, sample: int = 0, listen: ChainListener | None = None
) -> Trajectory:
    """One attempt at one task. `sample` numbers the attempts at the same task; `listen` hears the run as it happens."""
    return await Chain(task, setting, sample=sample, listen=listen).run()


class Chain:
    """One run in progress. `trajectory()` is what there is of it at any time, also after an interruption."""

    def __init__(
        self, task: Task | str, setting: Setting, *, sample: int = 0, listen: ChainListener | None = None
    ) -> None:
        self._task = Task(id="question", question=task) if isinstance(task, str) else task
        self._model, self._tools, self._sampling = setting.model, setting.tools, setting.sampling
        self._profile = _with_tools(setting.profile_of(self._task), self._tools)
        self._sample, self._listen = sample, listen
        prompt = tuple(setting.prompt(self._task) or self._profile.messages(self._task))
        self._transcript = Transcript(self._profile, self._model.tokenizer, prompt, listen)
        model = constrained(self._model, setting.constrain)
        self._constraint = ProtocolConstraint(model, self._profile, self._tools) if model is not None else None
        path = self._constraint.longest_path() if self._constraint is not None else None
        self._budget = Budget(setting.limits or self._profile.limits, setting.price, self._transcript, path)
        self._stop_strings = _stop_strings(self._profile)
        self._calls_made: dict[tuple[str, str], int] = {}
        self._nudges = 0
        self._partial: PartialGeneration | None = None
        self._stop = Stop.INTERRUPTED
        self._failure: Failure | None = None
        self.doing = "starting"
        """What it waits for, for whoever asks why it takes so long."""

    @property
    def usage(self) -> Usage:
        """What the model calls and tool calls that have ended took."""
        return self._budget.usage

    async def run(self) -> Trajectory:
        self._budget.start()
        try:
            async with asyncio.timeout(self._budget.limits.seconds):
                self._transcript.open()
                self._stop = await self._loop()
                if self._stop is not Stop.ANSWERED:
                    await self._conclude(self._stop)
        except TimeoutError:
            self._stop = Stop.TIME
            self._keep_partial()
            self._fall_back()
            if not self._budget.usage.model_calls:
                self._fail(f"the model did not answer once in {self._budget.limits.seconds:g} seconds")
        except asyncio.CancelledError:
            self._keep_partial()
            raise
        except CoaError as error:
            self._fail(error.message)
        return self.trajectory()

    def trajectory(self) -> Trajectory:
        tokenizer = self._model.tokenizer
        steps, ends = self._transcript.recorded()
        return Trajectory(
            task=self._task,
            profile=self._profile.name,
            profile_hash=self._profile.hash,
            steps=tuple(steps),
            stop=self._stop,
            failure=self._failure,
            usage=self._budget.total,
            prompt=self._transcript.prompt,
            tokenizer=tokenizer.fingerprint if tokenizer is not None else None,
            ends=tuple(ends),
            sample=self._sample,
            meta={"model": self._model.name},
        )

    # ---- the loop

    async def _loop(self) -> Stop:
        """Let the model write and act on what it wrote, until there is a reason to stop."""
        while True:
            spent = self._budget.spent(len(self._transcript.steps))
            if spent is not None:
                return spent
            request = self._next_request()
            if isinstance(request, Stop):
                return request
            try:
                async with asyncio.timeout(self._budget.seconds_left):
                    generation = await self._generate(request)
            except TimeoutError:  # a tenth of the time is left for the answer
                self._keep_partial()
                return Stop.TIME
            steps = self._transcript.append_generation(generation, request)
            stop = await self._act(generation, steps)
            if stop is not None:
                return stop

    def _next_request(self) -> GenerationRequest | Stop:
        """What the model may write next; a reason to stop if the protocol's next step does not fit into the budget."""
        if self._constraint is not None:
            request = self._constraint.next_request(self._transcript, self._budget, self._sampling.max_tokens)
            if request is not None:
                return request
        return GenerationRequest(self._stop_strings, min(self._sampling.max_tokens, self._budget.room))

    async def _generate(self, request: GenerationRequest) -> Generation:
        """Let the model write; what it wrote is not in the transcript yet."""
        self.doing = "waiting for the model"
        context, wanted = self._transcript.context(), self._sampling
        sampling = Sampling(wanted.temperature, wanted.top_p, wanted.top_k, request.max_tokens, wanted.seed)
        on_text = None
        if self._listen is not None:
            self._partial = PartialGeneration(request, self._profile, self._listen)
            on_text = self._partial.on_text
        began = time.monotonic()
        try:
            if self._constraint is not None and request.grammar is not None:
                generation = await self._constraint.model.generate(
                    context, stop=request.stop, sampling=sampling, on_text=on_text, grammar=request.grammar
                )
            else:
                generation = await self._model.generate(context, stop=request.stop, sampling=sampling, on_text=on_text)
        except (CoaError, TimeoutError):
            raise
        except Exception as error:  # the border to code of any origin, and to answers of any shape
            raise ModelError(f"the model's answer cannot be used: {type(error).__name__}: {error}") from error
        self._partial = None
        self._budget.writing_s += time.monotonic() - began
        self._budget.pay(generation.usage)
        return generation

    async def _act(self, generation: Generation, steps: Sequence[Step]) -> Stop | None:
        """Do what the model's last step asks for; the reason to stop, if there is one."""
        last = steps[-1] if steps else None
        agent = self._profile.agents.get(last.agent) if last else None
        if last is not None and generation.finish is Finish.LENGTH and last.has(RepairKind.MISSING_CLOSE):
            return None  # the next generation continues this step
        if agent is not None and agent.kind is Kind.ANSWER:
            return Stop.ANSWERED
        if last is not None and agent is not None and agent.kind is Kind.TOOL:
            if not self._budget.calls_left:
                return Stop.TOOL_CALLS
            self._observe(await self._call(last))
            return None
        if last is not None and last.agent == OBSERVATION:
            self._observe(Observation(wording.FORGED, ok=False, meta={"error": "forged_observation"}))
            return None
        if generation.finish is Finish.LENGTH and generation.text:
            return None  # cut off between two steps; the next generation continues there
        if last is not None and generation.constrained and generation.finish is Finish.STOP:
            return None  # a grammar allows one step at a time; the next generation is the next step
        self._nudges += 1
        if self._nudges > MAX_NUDGES:
            return Stop.UNANSWERED
        legal = self._transcript.state.legal()
        self._observe(Observation(wording.unfinished(legal), ok=False, meta={"error": "unfinished"}))
        return None

    async def _call(self, step: Step) -> Observation:
        """The answer to a tool call: the tool's, or a note that says why there is none."""
        reading = read(self._profile.shape(step.agent), step.text)
        if not isinstance(reading, Reading):
            return Observation(wording.slip(step.agent, reading), ok=False, meta={"error": "format"})
        tool = self._tools.get(step.agent)
        if tool is None:
            return Observation(wording.missing(step.agent, self._tools), ok=False, meta={"error": "no_such_tool"})
        call = (step.agent, repr(sorted(reading.arguments.items())))
        if call in self._calls_made:
            return Observation(wording.repeated(self._calls_made[call]), ok=False, meta={"error": "repeated"})
        self._calls_made[call] = len(self._transcript.steps)
        self._notify(Called(step.agent, reading.arguments))
        self._budget.pay(Usage(tool_calls=1))
        self.doing = f"waiting for the tool {step.agent}"
        thoughts = (s.text for s in reversed(self._transcript.steps) if s.agent == self._profile.thought)
        began = time.monotonic()
        answer = await call_tool(
            tool,
            reading.arguments,
            ToolContext(self._task, next(thoughts, "")),
            max_characters=self._budget.limits.observation_characters,
            timeout_s=max(round(self._budget.seconds_left, 1), 0.0),  # the model may read it
        )
        return Observation(answer.text, answer.ok, {**answer.meta, "seconds": time.monotonic() - began})

    def _observe(self, answer: Observation) -> None:
        """Write an observation for the model to read."""
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
        room = max(self._budget.observation_room, 64)
        return shorten(text, room, count=lambda part: len(tokenizer.encode([part])[0]))

    def _append(self, step: Step) -> None:
        """Write a step in the environment's name."""
        self._transcript.append_step(step)
        self._notify(Observed(step))

    def _notify(self, event: ChainEvent) -> None:
        if self._listen is not None:
            self._listen(event)

    # ---- the end of a run that has not come to an answer by itself

    async def _conclude(self, reason: Stop) -> None:
        """Get an answer out of what there is: written by the model, else its last suggestion."""
        try:
            if self._constraint is not None and await self._follow_path_to_answer(self._constraint, reason):
                return
            opening = self._transcript.append_opening("answer")
            room = min(self._sampling.max_tokens, self._budget.answer_room)
            request = GenerationRequest(("</answer>",), room, opening)
            generation = await self._generate(request)
        except ModelError as error:
            self._fall_back(error)
            return
        self._transcript.append_generation(generation, request)
        self._fall_back()

    async def _follow_path_to_answer(self, constraint: ProtocolConstraint, reason: Stop) -> bool:
        """Let a constrained model write the shortest legal path to the answer; False if it did not get there."""
        transcript = self._transcript
        for _ in range(len(self._profile.agents) * 2):
            request = constraint.request_toward_answer(transcript, self._budget, reason)
            if request is None:
                return False
            generation = await self._generate(request)
            steps = transcript.append_generation(generation, request)
            if not steps or not generation.constrained or transcript.state.done:
                return transcript.state.done
            if transcript.state.waiting and transcript.unfinished is None:
                self._observe(await self._call(steps[-1]))
        return False

    def _fall_back(self, error: ModelError | None = None) -> None:
        """If there is no answer, take the last suggestion, in the environment's name, and record why.

        Where there is no suggestion either, a model that broke is a run that failed.
        """
        texts = {step.agent: step.text for step in self._transcript.steps if step.text.strip()}
        if "answer" in texts:
            return
        if "suggested_answer" in texts:
            why = {} if error is None else {"failure": error.message}
            meta = {"fallback": "suggested_answer", **why}
            text = texts["suggested_answer"]
            self._append(Step(agent="answer", text=text, author=Author.ENVIRONMENT, meta=meta))
        elif error is not None:
            self._fail(error.message)

    def _keep_partial(self) -> None:
        """Keep what the model was writing when it was cut off, as far as it was streamed."""
        partial, self._partial = self._partial, None
        if partial is None:
            return
        generation = partial.cut_off(self._model.tokenizer, self._budget.context_tokens)
        if generation is not None:
            self._budget.pay(generation.usage)
            self._transcript.append_generation(generation, partial.request, partial=True)

    def _fail(self, message: str) -> None:
        self._stop = Stop.FAILED
        self._failure = Failure(site=FailureSite.MODEL, message=message, step=len(self._transcript.steps))


def _with_tools(profile: Profile, tools: Mapping[str, Tool]) -> Profile:
    """Tools that the profile does not name join it, described by themselves."""
    for tag, tool in tools.items():
        if tag not in profile.agents:
            profile = with_tool(profile, tag, title=tag, does=tool.about, shape=tool.shape)
    return profile


def _stop_strings(profile: Profile) -> tuple[str, ...]:
    """Where the model has to wait for the environment: after an answer or a call, and when it forges an observation."""
    return ("</answer>", f"<{OBSERVATION}>", *(f"</{tag}>" for tag in profile.tools))
