"""Records one run of one smolagents team.

`Recorder` wraps parts of every agent in the team and puts the originals back at the end: the agent's `run`, its step
callbacks, the execution of its tool calls, the tools that its code sees, and every model behind them (`taps.py`). What
the wrappers observe is collected in one `OpenRun` for each run of an agent (`open_run.py`). Two things about the team
change while it is recorded: calls of one managed agent wait for each other, because it has one memory; and the limit of
30 seconds that smolagents sets for code is lifted for agents that manage others, because a sub-agent takes longer and
the step would fail while the sub-agent is still working. A recording that would be wrong or incomplete is refused.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import count
from typing import Any

from smolagents.agents import AgentGenerationError, MultiStepAgent, RunResult
from smolagents.local_python_executor import MAX_EXECUTION_TIME_SECONDS, LocalPythonExecutor
from smolagents.memory import FinalAnswerStep, MemoryStep
from smolagents.models import Model

from coa.distill.importers.content import FINISHING, plain
from coa.distill.importers.wrapped import unwrapped_task
from coa.distill.recorder.open_run import OpenRun, SeenModel, SeenTool
from coa.distill.recorder.taps import HERE, Here, ModelTap, RecordedCodeTool, at, bound_arguments
from coa.distill.team_run import RECORDED, LeftOut, Source, TeamRun
from coa.errors import RecordingError
from coa.trajectory.types import Failure, FailureSite, Stop, Task, Usage

log = logging.getLogger(__name__)
_MARK = "_coa_recorder"


def record(agent: Any, task: Task, **options: Any) -> TeamRun:
    """Run a team at a task and return what it did. A failed run is a result; one that cannot be recorded raises."""
    with Recorder(agent, task) as recorder:
        return recorder.run(**options)


class Recorder:
    """Records one run of a smolagents team from inside: `with coa.Recorder(agent, task) as recorder: recorder.run()`.

    `snapshot` returns what is recorded so far and may be called from any thread. `spending` is called with the usage
    of each model call when it ends.
    """

    def __init__(self, agent: Any, task: Task, *, spending: Callable[[Usage], None] | None = None) -> None:
        if not isinstance(agent, MultiStepAgent):
            raise RecordingError(
                f"the team is a {type(agent).__name__}, not a smolagents agent",
                hint="let the factory return a CodeAgent or a ToolCallingAgent",
            )
        self.task = task
        self._spending = spending
        self.lock = threading.RLock()
        self._root = agent
        self._agents = _tree(agent)
        self._locks = {id(member): threading.Lock() for member in self._agents}
        self._active: dict[int, OpenRun] = {}
        self._numbers = count(1)
        self._root_run: OpenRun | None = None
        self._refusal: RecordingError | None = None
        self._left_out: list[LeftOut] = []
        self._orphans: list[SeenModel] = []
        self._undo: list[Callable[[], None]] = []

    def __enter__(self) -> Recorder:
        try:
            for agent in self._agents:
                self._wrap(agent)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        while self._undo:
            self._undo.pop()()

    def run(self, **options: Any) -> TeamRun:
        stop, failure = Stop.ANSWERED, None
        try:
            self._root.run(self.task.question_in_context, **options)
        except RecordingError:
            raise
        except Exception as error:
            # The team failed. Other teams go on, and the failure is kept as data.
            site = FailureSite.MODEL if isinstance(error, AgentGenerationError) else FailureSite.RUNTIME
            stop, failure = Stop.FAILED, Failure(site=site, message=f"{type(error).__name__}: {error}")
        return self.snapshot(stop, failure)

    def snapshot(self, stop: Stop, failure: Failure | None = None) -> TeamRun:
        """What was recorded so far, as a team run."""
        with self.lock:
            if self._refusal is not None:
                raise self._refusal
            root = self._root_run
            if root is None:
                raise RecordingError("the team has not begun", hint="the factory must return an agent that can run")
            done = root.finish()
            if stop is Stop.ANSWERED:
                stop = Stop.STEPS if root.limited else stop if done.answer is not None else Stop.UNANSWERED
            what, reason = "a model call from a thread that the team started", "it is not known which agent made it"
            orphans = (
                LeftOut(what=what, reason=reason, usage=item.usage or Usage(model_calls=1)) for item in self._orphans
            )
            return TeamRun(
                task=self.task, root=done, source=Source(format=RECORDED), stop=stop, failure=failure,
                left_out=(*self._left_out, *root.left_out, *orphans), meta={"library": "smolagents"},
            )  # fmt: skip

    def spent(self) -> Usage:
        """What the run has cost so far, whether or not it was recorded faithfully."""
        with self.lock:
            root = self._root_run.finish() if self._root_run is not None else None
            orphans = Usage.sum(item.usage for item in self._orphans if item.usage is not None)
            if root is None:
                return orphans
            return orphans + TeamRun(task=self.task, root=root, source=Source(format=RECORDED)).usage

    def called(self, item: SeenModel) -> None:
        if self._spending is not None:
            self._spending(item.usage or Usage(model_calls=1))

    def orphan(self, item: SeenModel, alone: bool) -> None:
        """A model call from a thread that carries no context."""
        with self.lock:
            if alone:
                self._orphans.append(item)
            else:
                reason = "a model that several running teams share was called from a thread that a team started, so it "
                hint = "give each team its own model, or run one team at a time"
                self._refuse(f"{reason}is not known for which of them", hint)

    # -- wrapping the team -------------------------------------------------------------------------------------------

    def _wrap(self, agent: Any) -> None:
        if getattr(agent, _MARK, None) is not None:
            raise RecordingError(
                f"the agent {_name(agent)!r} is being recorded already, so it belongs to two running teams",
                hint="let the factory build new agents at each call; models and tools may be shared",
            )
        self._set(agent, _MARK, self)
        self._set(agent, "run", self._recorded_run(agent))
        if hasattr(agent, "execute_tool_call"):
            self._set(agent, "execute_tool_call", self._recorded_call(agent))
        self._listen_to_steps(agent)
        self._wrap_executor(agent)
        for model in _models(agent):
            ModelTap.open(model, self)
            self._undo.append(lambda model=model: ModelTap.close(model, self))  # type: ignore[misc]

    def _set(self, thing: Any, name: str, value: Any) -> None:
        """Set an attribute of the instance; `__exit__` restores what was there before."""
        had, before = name in vars(thing), vars(thing).get(name)
        setattr(thing, name, value)

        def undo() -> None:
            if had:
                setattr(thing, name, before)
            else:
                delattr(thing, name)

        self._undo.append(undo)

    def _listen_to_steps(self, agent: Any) -> None:
        def stepped(step: Any, agent: Any) -> None:
            run = self._active.get(id(agent))
            if run is None or isinstance(step, FinalAnswerStep):
                return
            with self.lock:
                self._refuse_stragglers(run)
                run.step(step)

        agent.step_callbacks.register(MemoryStep, stepped)
        self._undo.append(lambda: agent.step_callbacks._callbacks[MemoryStep].remove(stepped))

    def _wrap_executor(self, agent: Any) -> None:
        executor = getattr(agent, "python_executor", None)
        if executor is None:
            return
        if not isinstance(executor, LocalPythonExecutor):
            reason = f"{type(executor).__name__} runs it elsewhere; the code and its output are kept"
            self._left_out.append(LeftOut(what=f"tools called inside the code of {_name(agent)}", reason=reason))
            return
        if agent.managed_agents and executor.timeout_seconds == MAX_EXECUTION_TIME_SECONDS:
            self._set(executor, "timeout_seconds", None)
        send = executor.send_tools

        def send_wrapped(tools: dict[str, Any]) -> None:
            send({name: self._code_tool(agent, name, tool) for name, tool in tools.items()})

        self._set(executor, "send_tools", send_wrapped)

    # -- what the wrappers do ----------------------------------------------------------------------------------------

    def _recorded_run(self, agent: Any) -> Callable[..., Any]:
        original = agent.run

        def run(task: str, stream: bool = False, reset: bool = True, **kwargs: Any) -> Any:
            if stream:
                raise RecordingError("a streamed run is not recorded", hint="call run without stream=True")
            opened = self._open(agent, task)
            if kwargs.get("images"):
                self._left_out.append(LeftOut(what="images of the task", reason="text only", place=opened.id))
            try:
                with at(Here(self, opened, None)):
                    result = original(task, stream=False, reset=reset, **kwargs)
                output = result.output if isinstance(result, RunResult) else result
                opened.answer = None if output is None else str(output)
                return result
            except BaseException as error:
                opened.error = f"{type(error).__name__}: {error}"
                raise
            finally:
                with self.lock:
                    opened.closed = True
                    self._active.pop(id(agent), None)

        return run

    def _open(self, agent: Any, task: str) -> OpenRun:
        with self.lock:
            name = _name(agent)
            if id(agent) in self._active:
                reason = f"the agent {name!r} was called while it was running, and both calls share one memory"
                raise self._refuse(reason, "give the team an agent for each use")
            here = HERE.get()
            asked = here.call.arguments.get("task") if here is not None and here.call is not None else None
            request = asked if isinstance(asked, str) else unwrapped_task(task)
            opened = OpenRun(f"{name}-{next(self._numbers)}", agent, name, request, agent.system_prompt)
            if agent is self._root and self._root_run is None:
                self._root_run = opened
            elif here is None:
                reason = f"the agent {name!r} was called from a thread that does not say for which agent"
                raise self._refuse(reason, "start threads in tools with contextvars.copy_context().run")
            elif here.call is not None:
                here.call.runs.append(opened)
            else:
                # Called by Python code of the team, such as a step callback: no model wrote this call.
                seen = SeenTool(name, {"task": request}, in_code=False, member=True, done=True, runs=[opened])
                here.run.seen.append(seen)
            self._active[id(agent)] = opened
            return opened

    def _recorded_call(self, agent: Any) -> Callable[..., Any]:
        original = agent.execute_tool_call

        def execute_tool_call(tool_name: str, arguments: Any) -> Any:
            given = arguments if isinstance(arguments, dict) else {"text": arguments}
            return self._observed(agent, tool_name, given, partial(original, tool_name, arguments), in_code=False)

        return execute_tool_call

    def _code_tool(self, agent: Any, name: str, tool: Any) -> Any:
        if name in FINISHING:
            return tool

        def call(tool: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            given = bound_arguments(tool, args, kwargs)
            return self._observed(agent, name, given, partial(tool, *args, **kwargs), in_code=True)

        return RecordedCodeTool(tool, call)

    def _observed(
        self, agent: Any, name: str, arguments: dict[str, Any], call: Callable[[], Any], *, in_code: bool
    ) -> Any:
        """Call a tool or a member of the team, and note the call in the agent's run."""
        run = self._active.get(id(agent))
        if run is None:
            return call()
        member = agent.managed_agents.get(name)
        item = SeenTool(name, plain(arguments), in_code=in_code, member=member is not None)
        with self.lock:
            run.seen.append(item)
        try:
            # Each agent has one memory: a second call waits until the first one has returned.
            with self._locks[id(member)] if member is not None else nullcontext(), at(Here(self, run, item)):
                result = call()
                item.text = _shown(result)
            return result
        except BaseException as error:
            item.ok, item.text = False, str(error) or type(error).__name__
            raise
        finally:
            item.done = True

    def _refuse_stragglers(self, run: OpenRun) -> None:
        for item in run.seen:
            if isinstance(item, SeenTool) and any(not below.closed for below in item.runs):
                limit = 'executor_kwargs={"timeout_seconds": None}'
                self._refuse(
                    f"a step of {run.name!r} ended while its sub-agent {item.name!r} was still running",
                    f"let tools wait for the agents they start, and code run to its end: {limit}",
                )

    def _refuse(self, reason: str, hint: str) -> RecordingError:
        with self.lock:
            full = f"this run cannot be recorded faithfully: {reason}"
            self._refusal = self._refusal or RecordingError(full, hint=hint)
            return self._refusal


def _tree(root: Any) -> list[Any]:
    """All agents below one, each once. A team that contains itself would wait for itself."""
    found: list[Any] = []

    def visit(agent: Any, above: tuple[Any, ...]) -> None:
        if any(agent is other for other in above):
            raise RecordingError(f"the agent {_name(agent)!r} manages itself", hint="break the circle in the factory")
        if not any(agent is other for other in found):
            found.append(agent)
        for member in agent.managed_agents.values():
            if not isinstance(member, MultiStepAgent):
                raise RecordingError(f"the managed agent {_name(member)!r} is no smolagents agent")
            visit(member, (*above, agent))

    visit(root, ())
    names = [_name(agent) for agent in found]
    for name in names:
        if names.count(name) > 1:
            raise RecordingError(f"two agents are named {name!r}", hint="give each agent a different name")
    return found


def _models(agent: Any) -> list[Any]:
    """The agent's model and those its tools hold."""
    held = [agent.model, *(value for tool in agent.tools.values() for value in vars(tool).values())]
    models: list[Any] = []
    for value in held:
        if (isinstance(value, Model) or value is agent.model) and not any(value is other for other in models):
            models.append(value)
    return models


def _name(agent: Any) -> str:
    return str(getattr(agent, "name", None) or "manager")


def _shown(result: Any) -> str:
    """As smolagents shows a result to the model."""
    kind = type(result).__name__
    return f"[{kind}]" if kind in ("AgentImage", "AgentAudio", "Image") else str(result).strip()
