"""One run of an agent, from the question to the trajectory. Start reading here.

A run is a loop. The model writes until it needs the environment: it has called a tool, it has answered, or it has come
to a limit. What it wrote is read into steps, and the last step decides what happens. An answer ends the run. A tool
call gets the tool's observation. A step that a token limit cut off is continued. A model that ended its turn without an
answer gets a note with the agents that may act next. Then the model writes on behind what the environment wrote: to the
model, the whole run is one assistant turn.

A model that forgets the closing tag of a tool call writes on and invents the result. Where its text shows that the
call is over, the call is cut there and made, and what was written behind it is discarded (`transcript.py`).

A tool may be the client's to answer (`ClientTool`). Its call ends `run` with `Stop.WAITING`, and `Chain.resume` goes on
with the client's answer as if a tool had given it at once: with the same ids, protocol state and budgets.

When a budget runs out (steps, tokens, context, money, time), the run is led to an answer, for which a share of the
budget is kept back. A tool call that is only half written is withdrawn. The model is given `<answer>` to fill in; if it
does not, its last `<suggested_answer>` counts, or else a result that it has stated in passing. What the environment
writes is never trained.

Nothing that a model or a tool does raises out of `run`. A failure ends as a trajectory that says what went wrong.

Each part of a run has a file beside this one: `transcript.py` is what was written so far and by whom, `budget.py` what
may still be spent, `constrained.py` what a model that is held to the protocol may write next, `streaming.py` what a
listener hears, `wording.py` the notes to the model.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from pydantic import JsonValue, ValidationError

from coa.errors import CoaError, ModelError, ToolError
from coa.models.base import Finish, Generation, Sampling
from coa.runtime import wording
from coa.runtime.budget import Budget
from coa.runtime.constrained import ProtocolConstraint, constrained
from coa.runtime.live import LiveWriter
from coa.runtime.setting import Setting
from coa.runtime.streaming import Called, ChainEvent, ChainListener, Observed, PartialGeneration
from coa.runtime.transcript import GenerationRequest, Transcript
from coa.tools import ClientTool, Observation, ToolContext, call_tool
from coa.trajectory import (
    OBSERVATION,
    Author,
    Failure,
    FailureSite,
    Form,
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
    profile_of,
)
from coa.trajectory.shapes import read, stated_result, write
from coa.trajectory.shorten import shorten
from coa.trajectory.types import clean_text

MAX_NUDGES: Final = 3
"""How often a model that ends its turn without an answer, or forges an observation, is asked to go on. Counted anew
after each tool call."""


async def run(
    task: Task | str, setting: Setting, *, sample: int = 0, listen: ChainListener | None = None
) -> Trajectory:
    """Run one attempt at one task.

    Args:
        task: The task, or its question.
        setting: The model, tools and limits, from `open_setting`.
        sample: Number of this attempt among several at the same task.
        listen: Receives each event of the run as it happens.

    Returns:
        The run. If the model or the environment failed, it has `stop=FAILED` and a `failure`; nothing is raised.
    """
    chain = Chain(task, setting, sample=sample, listen=listen)
    try:
        return await chain.run()
    finally:
        chain.leave_feed()


class _Waited(NamedTuple):
    """A run that waited for the client, and the client's answer."""

    run: Trajectory
    answer: Observation


class _WritingTime:
    """Entered for each call of the model, which it cuts off with `TimeoutError` when it is time to answer.

    That is the same moment for all calls of a run, so they share one timer.
    """

    def __init__(self) -> None:
        self._over = False
        self._call: asyncio.Timeout | None = None

    @contextmanager
    def of(self, budget: Budget) -> Iterator[None]:
        timer = asyncio.get_running_loop().call_later(max(budget.seconds_left, 0.0), self._end)
        try:
            yield
        finally:
            timer.cancel()

    def _end(self) -> None:
        self._over = True
        if self._call is not None:
            self._call.reschedule(asyncio.get_running_loop().time())

    async def __aenter__(self) -> None:
        self._call = asyncio.timeout(0 if self._over else None)
        await self._call.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        call, self._call = self._call, None
        assert call is not None
        await call.__aexit__(*error)  # which raises TimeoutError if it has cut the call off


class Chain:
    """One run in progress. `trajectory()` is what there is of it at any time, also after an interruption."""

    def __init__(
        self,
        task: Task | str,
        setting: Setting,
        *,
        sample: int = 0,
        listen: ChainListener | None = None,
        waited: _Waited | None = None,
    ) -> None:
        self._task = Task(id="question", question=task) if isinstance(task, str) else task
        self._model, self._tools, self._sampling = setting.model, setting.tools, setting.sampling
        recorded = waited.run if waited is not None else None
        if recorded is not None and recorded.profile_hash is not None:
            self._profile = setting.with_tools(profile_of(recorded))
        else:
            self._profile = setting.profile_of(self._task)
        self._sample, self._listen, self._waited = sample, listen, waited
        self._attachments = setting.attachments
        prompt = recorded.prompt if recorded is not None else None
        self._own_prompt = prompt or setting.prompt(self._task)
        prompt = tuple(self._own_prompt or self._profile.messages(self._task))
        self._feed, self._finished = setting.live, setting.finished
        self._live: LiveWriter | None = None
        heard = self._written if listen is not None or self._feed is not None else None
        self._transcript = Transcript(self._profile, self._model.tokenizer, prompt, heard)
        model = constrained(self._model, setting.constrain)
        self._constraint = ProtocolConstraint(model, self._profile, self._tools) if model is not None else None
        path = self._constraint.longest_path() if self._constraint is not None else None
        self._budget = Budget(setting.limits or self._profile.limits, setting.price, self._transcript, path)
        self._stop_strings, self._pauses = _stop_strings(self._profile), _pauses(self._profile)
        self._calls_made: dict[tuple[str, str], int] = {}
        self._nudges = 0
        self._partial: PartialGeneration | None = None
        self._stop = Stop.INTERRUPTED
        self._failure: Failure | None = None
        self._writing_time = _WritingTime()
        self._start_budget()
        self.doing = "starting"
        """What it waits for, for whoever asks why it takes so long."""

    @classmethod
    def resume(
        cls, trajectory: Trajectory, answer: Observation, setting: Setting, *, listen: ChainListener | None = None
    ) -> Chain:
        """A run that goes on where `trajectory` waits for the client's tool, with what the tool answered.

        `setting` is that of the first part. The time in between does not count. A trajectory that was put together from
        elsewhere needs no token ids; its text is tokenised then.
        """
        chain = cls(
            trajectory.task, setting, sample=trajectory.sample, listen=listen, waited=_Waited(trajectory, answer)
        )
        last = trajectory.steps[-1] if trajectory.steps else None
        if trajectory.stop is not Stop.WAITING or last is None or last.agent not in chain._profile.tools:
            raise ToolError(
                f"the run of task {trajectory.task.id!r} does not wait for a tool of the client's",
                hint="resume a trajectory whose `stop` is `waiting` and whose last step is the call of a tool",
            )
        return chain

    @property
    def usage(self) -> Usage:
        """What the model calls and tool calls that have ended took."""
        return self._budget.usage

    async def run(self) -> Trajectory:
        self._start_budget()
        self._join_feed()
        try:
            async with asyncio.timeout(self._budget.seconds_to_end):
                with self._writing_time.of(self._budget):
                    self._stop = self._open() or await self._loop()
                if self._stop not in (Stop.ANSWERED, Stop.WAITING):
                    await self._conclude(self._stop)
        except TimeoutError:
            self._stop = Stop.TIME
            self._keep_partial()
            self._fall_back()
            if not self._budget.usage.model_calls:
                self._fail(f"the model did not answer once in {self._budget.limits.seconds:g} seconds")
        except asyncio.CancelledError:
            self._keep_partial()
            self._finished(self.trajectory())
            raise
        except CoaError as error:
            self._fail(error.message)
        trajectory = self.trajectory()
        if trajectory.stop is not Stop.WAITING:
            self._finished(trajectory)
        return trajectory

    def leave_feed(self) -> None:
        """To be called when the run is over and kept: others no longer see it as running."""
        if self._live is not None:
            self._live.end()

    def trajectory(self) -> Trajectory:
        tokenizer = self._model.tokenizer
        steps, ends = self._transcript.recorded()
        if self._waited is not None and not steps:  # it has not begun to go on
            steps, ends = self._waited.run.steps, self._waited.run.ends
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
            meta=self._meta(),
        )

    def _meta(self) -> dict[str, JsonValue]:
        discarded = self._transcript.discarded_tokens
        meta: dict[str, JsonValue] = {"model": self._model.name}
        if discarded:
            meta["discarded_tokens"] = discarded
        if self._stop is Stop.WAITING:  # what `resume` cannot read from the steps
            meta["waiting"] = {"context_tokens": self._transcript.tokens, "writing_s": self._budget.writing_s}
        return meta

    # ---- the beginning

    def _start_budget(self) -> None:
        if self._waited is None:
            self._budget.start()
        else:
            run = self._waited.run
            self._budget.resume(run.usage, float(_number(run.meta.get("waiting"), "writing_s")))

    def _join_feed(self) -> None:
        if self._feed is not None:
            steps = self._waited.run.steps if self._waited is not None else ()
            self._live = self._feed.begin(
                self._task, self._profile, self._sample, model=self._model.name, prompt=self._own_prompt, steps=steps
            )

    def _open(self) -> Stop | None:
        """Write the prompt, and all of a run that goes on; the reason to stop if that run was led to its answer."""
        if self._waited is None:
            self._transcript.open()
            return None
        run, answer = self._waited
        self._transcript.restore(run, int(_number(run.meta.get("waiting"), "context_tokens")))
        self._transcript.discarded_tokens = int(_number(run.meta, "discarded_tokens"))
        for index, step in enumerate(run.steps, start=1):
            reading = read(self._profile.shape(step.agent), step.text) if step.agent in self._tools else None
            if isinstance(reading, Reading) and step.author is Author.MODEL:
                self._calls_made.setdefault(_call_key(step, reading), index)
        text = shorten(answer.text, self._budget.limits.observation_characters)
        self._observe(Observation(text, answer.ok, answer.meta))
        led = run.steps[-1].meta.get("led")
        return Stop(led) if isinstance(led, str) and led in set(Stop) else None

    # ---- the loop

    async def _loop(self) -> Stop:
        """Let the model write and act on what it wrote, until there is a reason to stop."""
        while True:
            reason = self._budget.spent(len(self._transcript.steps))
            if reason is not None:
                return reason
            request = self._next_request()
            if isinstance(request, Stop):
                return request
            try:
                async with self._writing_time:
                    generation = await self._generate(request)
            except TimeoutError:  # a tenth of the time is left for the answer
                self._keep_partial()
                return Stop.TIME
            spent = request.max_tokens < self._sampling.max_tokens  # the limit is the budget's
            if spent and self._constraint is not None and self._constraint.cut_inside(generation, request):
                self._transcript.discarded_tokens += generation.usage.completion_tokens
                return self._budget.scarcest(request.max_tokens)
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
        room = min(self._sampling.max_tokens, self._budget.room)
        return GenerationRequest(self._stop_strings, room, pauses=self._pauses)

    async def _generate(self, request: GenerationRequest) -> Generation:
        """Let the model write; what it wrote is not in the transcript yet."""
        self.doing = "waiting for the model"
        context, wanted = self._transcript.context(request.opening), self._sampling
        sampling = Sampling(wanted.temperature, wanted.top_p, wanted.top_k, request.max_tokens, wanted.seed)
        on_text = None
        if self._listen is not None:
            unfinished = self._transcript.unfinished
            before = unfinished.text if unfinished is not None else ""
            self._partial = PartialGeneration(request, self._profile, self._listen, before=before)
            on_text = self._partial.on_text
        stop = (*request.stop, *request.pauses)
        began = time.monotonic()
        try:
            if self._constraint is not None and request.grammar is not None:
                generation = await self._constraint.model.generate(
                    context, stop=stop, sampling=sampling, on_text=on_text, grammar=request.grammar
                )
            else:
                generation = await self._model.generate(context, stop=stop, sampling=sampling, on_text=on_text)
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
        unfinished = self._transcript.unfinished is not None
        if last is not None and unfinished and last.has(RepairKind.MISSING_CLOSE):
            return None  # the next generation continues this step
        if agent is not None and agent.kind is Kind.ANSWER:
            return Stop.ANSWERED
        if last is not None and agent is not None and agent.kind is Kind.TOOL:
            if not self._budget.calls_left:
                return Stop.TOOL_CALLS
            answer = await self._call(last)
            if answer is None:
                return Stop.WAITING
            self._observe(answer)
            self._nudges = 0
            return None
        forged = last is not None and last.agent == OBSERVATION
        if unfinished and generation.text:
            return None  # cut off between two steps; the next generation continues there
        if last is not None and generation.constrained and generation.finish is Finish.STOP and not forged:
            return None  # a grammar allows one step at a time; the next generation is the next step
        self._nudges += 1
        if self._nudges > MAX_NUDGES:
            return Stop.UNANSWERED
        if forged:
            self._observe(Observation(wording.FORGED, ok=False, meta={"error": "forged_observation"}))
            return None
        note = wording.unfinished(self._transcript.state.legal(), self._stated_result())
        self._observe(Observation(note, ok=False, meta={"error": "unfinished"}))
        return None

    async def _call(self, step: Step) -> Observation | None:
        """The answer to a tool call: the tool's, or a note that says why there is none; None if the client answers."""
        reading = read(self._profile.shape(step.agent), step.text)
        if not isinstance(reading, Reading):
            return Observation(wording.slip(step.agent, reading), ok=False, meta={"error": "format"})
        tool = self._tools.get(step.agent)
        if tool is None:
            return Observation(wording.missing(step.agent, self._tools), ok=False, meta={"error": "no_such_tool"})
        call = _call_key(step, reading)
        if call in self._calls_made and not isinstance(tool, ClientTool):  # a client's function may answer anew
            return Observation(wording.repeated(self._calls_made[call]), ok=False, meta={"error": "repeated"})
        self._calls_made[call] = len(self._transcript.steps)
        self._transcript.write_unfinished()  # the call is complete, so its step is heard before `Called`
        self._notify(Called(step.agent, reading.arguments))
        self._budget.pay(Usage(tool_calls=1))
        if isinstance(tool, ClientTool):
            return None
        self.doing = f"waiting for the tool {step.agent}"
        thoughts = (s.text for s in reversed(self._transcript.steps) if s.agent == self._profile.thought)
        began = time.monotonic()
        answer = await call_tool(
            tool,
            reading.arguments,
            ToolContext(self._task, next(thoughts, ""), self._attachments),
            max_characters=self._budget.limits.observation_characters,
            timeout_s=max(round(self._budget.seconds_left, 1), 0.0),  # the model may read it
        )
        return Observation(answer.text, answer.ok, {**answer.meta, "seconds": time.monotonic() - began})

    def _observe(self, answer: Observation) -> None:
        """Write an observation for the model to read."""
        text = self._fitting(clean_text(answer.text))
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
        self._show(self._transcript.steps[-1])
        self._notify(Observed(step))

    def _written(self, step: Step) -> None:
        """The model has completed a step."""
        self._show(step)
        self._notify(step)

    def _show(self, step: Step) -> None:
        if self._live is not None:
            self._live.step(step, self._budget.usage)

    def _notify(self, event: ChainEvent) -> None:
        if self._listen is not None:
            self._listen(event)

    # ---- the end of a run that has not come to an answer by itself

    async def _conclude(self, reason: Stop) -> None:
        """Get an answer out of what there is: written by the model, else its last suggestion or stated result."""
        self._transcript.withdraw_call()
        try:
            if self._constraint is not None and await self._follow_path_to_answer(self._constraint, reason):
                return
            request = self._answer_request()
            generation = await self._generate(request)
        except ModelError as error:
            self._fall_back(error)
            return
        self._transcript.append_generation(generation, request)
        self._fall_back()

    def _answer_request(self) -> GenerationRequest:
        """For the answer: the rest of one that has been begun, or a new one that is opened for the model."""
        transcript, room = self._transcript, min(self._sampling.max_tokens, self._budget.answer_room)
        if transcript.unfinished is not None and transcript.steps and transcript.steps[-1].agent == "answer":
            return GenerationRequest(("</answer>",), room)
        if (result := self._stated_result()) is not None:
            self._observe(Observation(wording.conclude(result), meta={"concluding": True}))
        return GenerationRequest(("</answer>",), room, opening=transcript.append_opening("answer"))

    def _stated_result(self) -> str | None:
        """The last result that the model has stated outside of an answer, spelled as an answer."""
        form = self._profile.shape("answer").form
        if form not in (Form.TEXT, Form.LINE, Form.BOXED):
            return None
        for step in reversed(self._transcript.steps):
            agent = self._profile.agents.get(step.agent)
            if step.author is not Author.MODEL or agent is None or agent.kind is Kind.TOOL:
                continue
            if (result := stated_result(step.text)) is not None:
                return write(self._profile.shape("answer"), {"text": result})
        return None

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
                answer = await self._call(steps[-1])
                if answer is None:
                    self._stop = Stop.WAITING
                    return True
                self._observe(answer)
        return False

    def _fall_back(self, error: ModelError | None = None) -> None:
        """If there is no answer, take the last suggestion or stated result, in the environment's name, and record why.

        Where there is neither, a model that broke is a run that failed.
        """
        texts = {step.agent: step.text for step in self._transcript.steps if step.text.strip()}
        if "answer" in texts:
            return
        source, text = "suggested_answer", texts.get("suggested_answer")
        if text is None:
            source, text = "stated_result", self._stated_result()
        if text is not None:
            why = {} if error is None else {"failure": error.message}
            self._append(Step(agent="answer", text=text, author=Author.ENVIRONMENT, meta={"fallback": source, **why}))
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


def _call_key(step: Step, reading: Reading) -> tuple[str, str]:
    """Equal for two calls that ask the same."""
    return step.agent, repr(sorted(reading.arguments.items()))


def _number(values: object, name: str) -> int | float:
    """A number in a record that somebody else may have written; 0 if it has none."""
    value = values.get(name) if isinstance(values, Mapping) else None
    return value if isinstance(value, int | float) else 0


def _pauses(profile: Profile) -> tuple[str, ...]:
    """Where a program without a closing tag is over: its fence is closed, and another agent begins."""
    if not any(profile.shape(tag).fenced for tag in profile.tools):
        return ()
    return tuple(f"```{blank}<{tag}>" for tag in profile.agents for blank in ("\n", "\n\n"))


def _stop_strings(profile: Profile) -> tuple[str, ...]:
    """Where the model has to wait for the environment: after an answer or a call, and when it forges an observation."""
    return ("</answer>", f"<{OBSERVATION}>", *(f"</{tag}>" for tag in profile.tools))
