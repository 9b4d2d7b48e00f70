"""Runs as the service executes them: admitted, cancelled, kept, and never lost."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from coa.models.base import Context, Generation, Model, OnText, Sampling
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.serve.api_error import ApiError
from coa.serve.caller import Caller
from coa.serve.config import ServeConfig
from coa.serve.events import RunEnded, RunEvent
from coa.serve.request import ClientFunction, RunRequest, setting_for
from coa.serve.run import Run, RunStatus
from coa.serve.service import Service, open_service
from coa.tools import Observation
from coa.trajectory import Stop, Task, read
from support.served import AGENT, PageTool

pytestmark = pytest.mark.anyio
CALLER = Caller("tester")
ANSWER = "<answer>7</answer>"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Gate(ScriptedModel):
    """Writes nothing until it is opened."""

    def __init__(self, script: Sequence[str] | Callable[[Context], str] = lambda context: ANSWER) -> None:
        super().__init__(script)
        self.open = asyncio.Event()
        self.waiting = 0

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None
    ) -> Generation:
        if on_text is not None:
            on_text("<think>I begin")
        self.waiting += 1
        try:
            await self.open.wait()
        finally:
            self.waiting -= 1
        return await super().generate(context, stop=stop, sampling=sampling, on_text=on_text)


@asynccontextmanager
async def service_of(model: Model, folder: Path, **settings: Any) -> AsyncIterator[Service]:
    run = RunConfig(model="http://127.0.0.1:9", profile="nano")
    config = ServeConfig(run=run, name=AGENT, state=folder / "state", **settings)
    async with open_service(
        config, out=folder / "runs", models={AGENT: model}, tools={AGENT: {"web_search": PageTool()}}
    ) as service:
        yield service


def request(question: str = "q?", **settings: Any) -> RunRequest:
    return RunRequest(agent=AGENT, task=Task(id="t", question=question), **settings)


async def events_of(run: Run, start: int = 0) -> list[RunEvent]:
    return [event async for batch in run.follow(start) for event in batch]


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        await asyncio.sleep(0.002)
    raise AssertionError("it did not happen")


async def test_a_run_is_stored_and_written_before_its_client_learns_of_the_end(tmp_path: Path) -> None:
    seen = []
    async with service_of(ScriptedModel([ANSWER]), tmp_path) as service:
        run = await service.start(request(), CALLER, render=lambda run: b'{"kept": true}')
        async for batch in run.follow():
            if isinstance(batch[-1], RunEnded):
                stored = service.store.get(run.id, CALLER.key)
                assert stored is not None and stored.body == b'{"kept": true}' and stored.status == "done"
                seen = [trajectory.answer for trajectory in read(tmp_path / "runs")]
        assert seen == ["7"] and service.active == 0 and run.status is RunStatus.DONE
        assert service.store.get(run.id, "another") is None


async def test_two_followers_get_the_same_events_whenever_they_come(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path) as service:
        run = await service.start(request(), CALLER)
        early = asyncio.create_task(events_of(run))
        await until(lambda: bool(run.events))
        gate.open.set()
        first, late = await early, await events_of(run)
        assert first == late == run.events and isinstance(first[-1], RunEnded)
        assert await events_of(run, 2) == run.events[2:] and await events_of(run, len(run.events)) == []


async def test_a_silent_run_gives_heartbeats(tmp_path: Path) -> None:
    async with service_of(Gate(), tmp_path, heartbeat_s=0.01) as service:
        run = await service.start(request(), CALLER)
        beats = 0
        async for batch in run.follow():
            beats += not batch
            if beats == 3:
                break
        await run.cancel()


async def test_only_the_last_512_runs_stay_in_memory_after_their_end(tmp_path: Path) -> None:
    async with service_of(ScriptedModel(lambda context: ANSWER), tmp_path) as service:
        ids = []
        for _ in range(514):
            run = await service.start(request(store=False), CALLER)
            await run.wait()
            ids.append(run.id)
        assert [service.running(run_id, CALLER) is not None for run_id in ids] == [False] * 2 + [True] * 512


async def test_a_full_server_refuses_and_recovers(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path, max_runs=2, max_queue=1) as service:
        runs = [await service.start(request(), CALLER) for _ in range(3)]
        await until(lambda: gate.waiting == 2)
        assert [run.status for run in runs] == ["running", "running", "queued"] and service.queued == 1
        with pytest.raises(ApiError) as error:
            await service.start(request(), CALLER)
        assert error.value.status == 429 and error.value.retry_after_s
        gate.open.set()
        assert [(await run.wait()).answer for run in runs] == ["7"] * 3
        assert (await (await service.start(request(), CALLER)).wait()).answer == "7"


async def test_one_key_does_not_take_the_places_of_another(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path, key_runs=1) as service:
        first = await service.start(request(), CALLER)
        with pytest.raises(ApiError, match="limited to 1 run"):
            await service.start(request(), CALLER)
        other = await service.start(request(), Caller("another"))
        gate.open.set()
        await first.wait(), await other.wait()
        assert (await (await service.start(request(), CALLER)).wait()).answer == "7"


async def test_a_client_that_goes_away_takes_its_run_with_it(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path, max_runs=1) as service:
        run = await service.start(request(), CALLER)

        async def listen() -> None:
            async with service.streaming(run):
                await events_of(run)

        client = asyncio.create_task(listen())
        await until(lambda: gate.waiting == 1)
        client.cancel()
        await asyncio.gather(client, return_exceptions=True)
        assert run.status is RunStatus.CANCELLED and service.active == 0 and gate.waiting == 0
        (kept,) = read(tmp_path / "runs")
        assert kept.stop is Stop.INTERRUPTED and kept.steps[0].text == "I begin"


async def test_a_background_run_goes_on_without_its_client(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path) as service:
        run = await service.start(request(background=True), CALLER)
        async with service.streaming(run):
            pass
        gate.open.set()
        assert (await run.wait()).answer == "7"


async def test_a_queued_run_can_be_cancelled_and_leaves_its_place(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path, max_runs=1, max_queue=1) as service:
        first, second = [await service.start(request(), CALLER) for _ in range(2)]
        await until(lambda: gate.waiting == 1)
        await second.cancel()
        assert second.status is RunStatus.CANCELLED and service.active == 1
        gate.open.set()
        assert (await first.wait()).answer == "7"


async def test_a_run_that_is_cancelled_before_its_first_step_leaves_its_place_too(tmp_path: Path) -> None:
    async with service_of(Gate(), tmp_path, key_runs=1) as service:
        await (cancelled := await service.start(request(), CALLER)).cancel()
        assert cancelled.status is RunStatus.CANCELLED and service.active == 0
        assert isinstance((await events_of(cancelled))[-1], RunEnded)
        await (await service.start(request(), CALLER)).cancel()


async def test_stopping_lets_runs_finish_and_takes_no_more(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path) as service:
        run = await service.start(request(), CALLER)
        draining = asyncio.create_task(service.drain(30))
        await until(lambda: service.draining)
        with pytest.raises(ApiError) as error:
            await service.start(request(), CALLER)
        assert error.value.status == 503
        gate.open.set()
        await draining
        assert run.status is RunStatus.DONE


async def test_what_cannot_finish_is_saved_when_the_service_closes(tmp_path: Path) -> None:
    async with service_of(gate := Gate(), tmp_path) as service:
        run = await service.start(request(), CALLER)
        await until(lambda: gate.waiting == 1)
    assert run.status is RunStatus.CANCELLED
    assert [trajectory.stop for trajectory in read(tmp_path / "runs")] == [Stop.INTERRUPTED]


async def test_a_model_that_fails_is_a_failed_run_and_not_an_error(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([RuntimeError("out of memory")]), tmp_path) as service:
        run = await service.start(request(), CALLER)
        trajectory = await run.wait()
        assert run.status is RunStatus.FAILED and trajectory.failure is not None
        assert isinstance(run.events[-1], RunEnded)


async def test_an_unknown_agent_is_refused_by_name(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([]), tmp_path) as service:
        with pytest.raises(ApiError, match="this server has: agent") as error:
            await service.start(RunRequest(agent="other", task=Task(id="t", question="q")), CALLER)
        assert (error.value.status, error.value.code) == (404, "model_not_found")


async def test_effort_and_limits_of_a_request_only_ever_lower_the_budgets(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([]), tmp_path) as service:
        setting = service.agents[AGENT].setting
        most = setting.profile.limits
        for effort in (None, "none", "minimal", "low", "medium", "high", "xhigh"):
            for tokens in (None, 1, 100, 10**9):
                limits = setting_for(request(effort=effort, max_output_tokens=tokens), setting)[0].limits
                assert limits is not None
                assert limits.model_tokens <= min(most.model_tokens, tokens or most.model_tokens)
                assert limits.tool_calls <= most.tool_calls and limits.steps <= most.steps
        assert (setting_for(request(effort="none"), setting)[0].limits or most).tool_calls == 0
        half = setting_for(request(effort="medium"), setting)[0].limits
        assert half is not None and half.tool_calls == most.tool_calls // 2
        with pytest.raises(ApiError, match="there is no effort"):
            setting_for(request(effort="some"), setting)


WEATHER = ClientFunction(
    "getWeather",
    "says the weather",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
CALL = '<get_weather>{"city": "Vell"}</get_weather>'


async def test_a_client_tool_suspends_the_run_and_its_result_continues_it(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([CALL, ANSWER]), tmp_path) as service:
        run = await service.start(request(functions=(WEATHER,)), CALLER)
        await run.wait()
        assert run.status is RunStatus.WAITING and run.call is not None
        assert (run.call.name, run.call.arguments) == ("getWeather", {"city": "Vell"})
        assert not list(read(tmp_path / "runs")), "a run that goes on later is written when it ends"
        assert service.suspended(run.call.id, Caller("another")) is None
        held = service.suspended(run.call.id, CALLER)
        assert held is not None
        result = Observation("rain")
        rest = await service.start(request(functions=(WEATHER,), resume=held, result=result), CALLER)
        trajectory = await rest.wait()
        assert [step.agent for step in trajectory.steps] == ["get_weather", "observation", "answer"]
        assert trajectory.steps[1].text == "rain" and trajectory.answer == "7" and trajectory.usage.tool_calls == 1
        assert rest.conversation == run.conversation
        assert [kept.answer for kept in read(tmp_path / "runs")] == ["7"]


async def test_a_suspended_run_continues_after_a_restart(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([CALL]), tmp_path) as service:
        run = await service.start(request(functions=(WEATHER,)), CALLER)
        await run.wait()
        assert run.call is not None
    assert not list(read(tmp_path / "runs"))
    async with service_of(ScriptedModel([ANSWER]), tmp_path) as service:
        held = service.suspended(run.call.id, CALLER)
        assert held is not None
        rest = await service.start(request(functions=(WEATHER,), resume=held, result=Observation("sun")), CALLER)
        assert [step.text for step in (await rest.wait()).steps][1:] == ["sun", "7"]


async def test_a_suspended_run_that_is_not_stored_is_written_when_the_service_closes(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([CALL]), tmp_path) as service:
        await (await service.start(request(functions=(WEATHER,), store=False), CALLER)).wait()
    assert [kept.stop for kept in read(tmp_path / "runs")] == [Stop.WAITING]


async def test_a_function_of_the_clients_makes_no_series_of_the_metrics(tmp_path: Path) -> None:
    """Not even if the model calls it in a way that nobody can read, so that the server answers the call."""
    script = ["<get_time>\n```json\nnoon\n```\n</get_time>", "<web_search>Oslo</web_search>", ANSWER]
    async with service_of(ScriptedModel(script), tmp_path) as service:
        run = await service.start(request(functions=(ClientFunction("get_time", "The time.", {}),)), CALLER)
        trajectory = await run.wait()
        metrics = service.metrics.render().decode()
    assert trajectory.steps[0].agent == "get_time"
    assert 'tool="web_search"' in metrics and "get_time" not in metrics


async def test_a_client_tool_with_the_name_of_an_agent_gets_a_tag_of_its_own(tmp_path: Path) -> None:
    function = ClientFunction("web_search", "searches the shop", {"type": "object", "properties": {}})
    async with service_of(ScriptedModel(["<client_web_search>{}</client_web_search>"]), tmp_path) as service:
        run = await service.start(request(functions=(function,)), CALLER)
        await run.wait()
        assert run.call is not None and run.call.name == "web_search"
        with pytest.raises(ApiError, match="offered twice") as error:
            await service.start(request(functions=(function, function)), CALLER)
        assert error.value.param == "tools"


async def test_an_input_that_can_never_fit_is_refused_before_it_is_tokenised(tmp_path: Path) -> None:
    async with service_of(ScriptedModel([]), tmp_path) as service:
        with pytest.raises(ApiError, match="has room for") as error:
            await service.start(request("word " * 20_000), CALLER)
        assert (error.value.status, error.value.code) == (400, "context_length_exceeded")
