"""Spans on their way to a collector on loopback that works, is slow, is down, refuses or asks to wait: from ended runs
while others go on, and from files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import coa
from coa.choices import Target
from coa.errors import CoaError, ConfigError
from coa.http import Patience
from coa.models.scripted import ScriptedModel
from coa.rl.config import RlConfig
from coa.rl.engines.local import train
from coa.runtime.telemetry import open_sender
from coa.trajectory import Stop, Task, Trajectory, write
from coa.trajectory.formats.export import export
from coa.trajectory.formats.otlp_endpoint import OtlpConfig
from support.collectors import Collector, collecting
from support.keys import Keyed, before_rl, key_tasks, settings
from support.served import AGENT, served
from support.team_of_five import SECRETS, team_of_five
from support.tools import FakeTool, searching

SEARCH = "<think>secret thought</think>\n<web_search>secret query</web_search>"
DONE = "<think>d</think>\n<answer>Ada</answer>"
HEADERS = "OTEL_EXPORTER_OTLP_HEADERS"
QUICK = Patience(attempts=2, timeout_s=30, backoff_s=0.001)
DOWN = "http://127.0.0.1:9"


def script(context: Any) -> str:
    return DONE if "Ada Lovelace" in str(context) else SEARCH


def config(collector: Collector, **more: Any) -> coa.RunConfig:
    return coa.RunConfig(profile="nano", otlp=OtlpConfig(endpoint=collector.url, **more))


@pytest.fixture
def files(tmp_path: Path) -> str:
    write(tmp_path / "runs.jsonl", [team_of_five(sample=number) for number in range(40)])
    return str(tmp_path / "runs.jsonl")


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("coa.trajectory.formats.otlp_endpoint.PATIENCE", "coa.runtime.telemetry._PATIENCE"):
        monkeypatch.setattr(module, QUICK)


# ---- ended runs


def test_a_question_is_sent_when_it_is_answered_without_its_words() -> None:
    with collecting() as collector:
        run = coa.ask("Who?", config(collector), model=ScriptedModel(script), tools={"web_search": searching()})
    assert [span.name for span in collector.spans] == [
        "invoke_agent coa", "chat scripted", "chat scripted", "execute_tool web_search", "chat scripted",
        "chat scripted",
    ]  # fmt: skip
    [root] = collector.roots
    assert root.attributes["coa.stop"] == "answered" and root.attributes["coa.task.id"] == run.task.id
    [(path, headers)] = collector.requests
    assert path == "/v1/traces" and headers["Content-Type"] == "application/x-protobuf"
    assert headers["Content-Encoding"] == "gzip"
    sent = str(collector.spans)
    assert "secret" not in sent and "Lovelace" not in sent and "Who?" not in sent


def test_content_is_sent_when_it_is_asked_for() -> None:
    with collecting() as collector:
        coa.ask("Who?", config(collector, content=True), model=ScriptedModel(script), tools={"web_search": searching()})
    sent = str(collector.spans)
    assert "secret thought" in sent and "Ada Lovelace" in sent and "Who?" in sent


def test_every_run_of_a_batch_is_sent_once_with_its_score() -> None:
    async def score(run: Trajectory) -> Trajectory:
        return run.scored("luck", 0.5)

    async def go(collector: Collector) -> None:
        async with coa.open_setting(config(collector), model=ScriptedModel(lambda _: DONE)) as setting:
            tasks = [Task(id=f"t{number}", question="Who?") for number in range(30)]
            async for _ in coa.run_many(tasks, setting, samples=2, score=score):
                pass

    with collecting() as collector:
        asyncio.run(go(collector))
    told = [(span.attributes["coa.task.id"], span.attributes["coa.sample"]) for span in collector.roots]
    assert sorted(told) == sorted((f"t{number}", sample) for number in range(30) for sample in range(2))
    assert {span.attributes["coa.score.luck"] for span in collector.roots} == {0.5}


def test_a_run_that_is_stopped_is_sent_as_far_as_it_came() -> None:
    async def go(collector: Collector) -> None:
        begun = asyncio.Event()

        async def slow() -> str:
            begun.set()
            await asyncio.sleep(60)
            return ""

        tool = FakeTool(lambda arguments: slow(), timeout_s=60.0)
        async with coa.open_setting(
            config(collector), model=ScriptedModel(lambda _: SEARCH), tools={"web_search": tool}
        ) as setting:
            task = asyncio.create_task(coa.run("Who?", setting))
            await begun.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    with collecting() as collector:
        asyncio.run(go(collector))
    [root] = collector.roots
    assert root.attributes["coa.stop"] == Stop.INTERRUPTED and root.attributes["coa.steps"] == 2


def test_an_evaluation_sends_each_attempt_with_its_score(tmp_path: Path) -> None:
    rows = [{"id": f"t{number}", "question": "Who?", "answer": "Ada" if number else "Bob"} for number in range(3)]
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with collecting() as collector:
        chosen = coa.EvalConfig(benchmarks=(str(tmp_path / "exam.jsonl"),), run=config(collector), scorer="exact")
        coa.evaluate(chosen, tmp_path / "out", model=ScriptedModel(lambda _: DONE), tools={"web_search": searching()})
    scores = {span.attributes["coa.task.id"]: span.attributes["coa.score.exact"] for span in collector.roots}
    assert scores == {"t0": 0.0, "t1": 1.0, "t2": 1.0} and len(collector.roots) == 3
    assert collector.url not in (tmp_path / "out" / "config.json").read_text()


def test_rl_sends_each_attempt_with_its_reward_and_keeps_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS, "Authorization=Bearer%20sk-0123456789")
    made = settings(before_rl(tmp_path, steps=20), key_tasks(tmp_path / "tasks.jsonl"))
    few = {"max_steps": 1, "train_batch_size": 2, "gen_batch_size": 2, "num_mini_batches": 1, "max_num_gen_batches": 1}
    with collecting() as collector:
        chosen = RlConfig.model_validate({**made, **few, "otlp": {"endpoint": collector.url}})
        train(chosen, tmp_path / "run", tools={"web_search": Keyed()})
    attempts = [span for span in collector.roots if "coa.score.reward" in span.attributes]
    assert len(attempts) == 2 * chosen.num_generations
    assert {headers["Authorization"] for _, headers in collector.requests} == {"Bearer sk-0123456789"}
    written = b"".join(file.read_bytes() for file in (tmp_path / "run").rglob("*.json*"))
    assert b"sk-0123456789" not in written and HEADERS.encode() in written


def test_a_server_sends_each_run_with_the_conversation_that_it_belongs_to() -> None:
    with collecting() as collector:
        run = {"run": {"model": DOWN, "profile": "nano", "otlp": {"endpoint": collector.url}}}
        with served(config=run) as agent:
            first = agent.client.responses.create(model=AGENT, input="Which tower is the tallest?")
    [root] = collector.roots
    assert root.attributes["gen_ai.conversation.id"] and first.id.endswith(root.attributes["coa.task.id"])
    assert "execute_tool web_search" in {span.name for span in collector.spans}


# ---- endpoints that do not do what they should, while runs go on


def sent(
    collector: Collector | str, *, runs: int = 1, flush_s: float = 30.0, most: int = 100, wait: bool = False
) -> None:
    address = collector if isinstance(collector, str) else collector.url

    async def go() -> None:
        async with open_sender(OtlpConfig(endpoint=address), patience=QUICK, flush_s=flush_s, most=most) as heard:
            for number in range(runs):
                heard(team_of_five(sample=number))
                if wait and not isinstance(collector, str):
                    await asyncio.to_thread(collector.asked.wait, 60)

    asyncio.run(go())


def test_an_endpoint_that_is_down_costs_two_warnings_and_no_run(caplog: pytest.LogCaptureFixture) -> None:
    other = coa.RunConfig(profile="nano", otlp=OtlpConfig(endpoint=DOWN))
    assert coa.ask("Who?", other, model=ScriptedModel([DONE]), tools={"web_search": searching()}).answer == "Ada"
    first, last = (record.getMessage() for record in caplog.records)
    assert first.startswith("not all runs are sent: http://127.0.0.1:9/v1/traces did not answer in 2 attempts")
    assert last == "1 of 1 run not sent to http://127.0.0.1:9/v1/traces"


def test_a_run_ends_while_the_endpoint_is_still_silent() -> None:
    async def go(collector: Collector) -> None:
        async with coa.open_setting(config(collector), model=ScriptedModel([DONE, DONE])) as setting:
            await coa.run("Who?", setting)
            await asyncio.to_thread(collector.asked.wait, 60)
            assert (await coa.run("Who else?", setting)).answer == "Ada"
            assert not collector.spans
            collector.hold.set()

    with collecting(held=True) as collector:
        asyncio.run(go(collector))
        assert len(collector.roots) == 2


def test_a_silent_endpoint_is_not_waited_for_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    with collecting(held=True) as collector:
        sent(collector, flush_s=0.01)
        assert "1 of 1 run not sent" in caplog.text


def test_more_runs_than_the_queue_holds_are_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    with collecting(held=True) as collector:
        sent(collector, runs=5, most=2, flush_s=0.01, wait=True)
        assert "takes runs more slowly than they end" in caplog.text and "5 of 5 runs not sent" in caplog.text


def test_a_busy_endpoint_is_asked_again_and_a_refusal_is_final(caplog: pytest.LogCaptureFixture) -> None:
    with collecting((503, b""), (200, b"")) as collector:
        sent(collector)
        assert len(collector.requests) == 2 and len(collector.roots) == 1 and not caplog.text
    with collecting((500, b"broken")) as collector:
        sent(collector)
        assert len(collector.requests) == 1
        assert "answers 500: broken" in caplog.text and "1 of 1 run not sent" in caplog.text


def test_spans_that_the_endpoint_rejects_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    with collecting((200, bytes.fromhex("0a0b08031207746f6f206f6c64"))) as collector:
        sent(collector)
    assert "refused 3 spans: too old" in caplog.text


# ---- files


def test_a_file_is_sent_in_batches_and_without_content_unless_asked(files: str) -> None:
    with collecting() as collector:
        assert export(files, Target.OTLP, collector.url) == 40
        assert len(collector.requests) == 2  # 40 runs of 16 spans
    assert len(collector.roots) == 40 and len({span.id for span in collector.spans}) == 40 * 16
    told = str(collector.spans)
    assert [word for word in SECRETS if word in told] == []
    with collecting() as collector:
        export(files, Target.OTLP, f"{collector.url}/api/public/otel/v1/traces", content=True)
    assert {path for path, _ in collector.requests} == {"/api/public/otel/v1/traces"}
    told = str(collector.spans)
    assert [word for word in SECRETS if word not in told] == []


def test_sending_a_file_twice_sends_the_same_spans(files: str) -> None:
    with collecting() as collector:
        export(files, Target.OTLP, collector.url)
        first = list(collector.spans)
        export(files, Target.OTLP, collector.url)
    assert collector.spans == first + first


@pytest.mark.parametrize(
    ("status", "hint"),
    [
        (401, "put the key into OTEL_EXPORTER_OTLP_HEADERS"),
        (404, "check the path"),
        (413, "without content"),
        (400, ""),
    ],
)
def test_a_refusal_says_what_to_do_and_never_the_key(
    status: int, hint: str, files: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(HEADERS, "x-key=sk-0123456789, x-project=7")
    with collecting((status, b'{"message": "no: sk-0123456789"}')) as collector:
        with pytest.raises(CoaError) as raised:
            export(files, Target.OTLP, collector.url)
        assert len(collector.requests) == 1
    _, headers = collector.requests[0]
    assert headers["x-key"] == "sk-0123456789" and headers["x-project"] == "7"
    assert f"answers {status}: no: [key]" in raised.value.message and hint in (raised.value.hint or "")


def test_an_endpoint_that_fails_halfway_says_how_far_it_came(files: str) -> None:
    match = "answers 400: enough; 31 runs were sent before that"
    with collecting((200, b""), (400, b"enough")) as collector, pytest.raises(CoaError, match=match):
        export(files, Target.OTLP, collector.url)
    assert len(collector.roots) == 31


def test_an_endpoint_that_is_down_is_named_with_a_hint(files: str) -> None:
    with pytest.raises(CoaError, match=r"127.0.0.1:9/v1/traces did not answer in 2 attempts.*\n  hint: check that"):
        export(files, Target.OTLP, DOWN)


def test_headers_that_are_none_are_refused_without_repeating_them(files: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(HEADERS, "sk-0123456789")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_HEADERS does not hold headers") as raised:
        export(files, Target.OTLP, DOWN)
    assert "sk-" not in str(raised.value)
    with pytest.raises(ConfigError, match="does not hold headers"):
        coa.ask("Who?", coa.RunConfig(profile="nano", otlp=OtlpConfig(endpoint=DOWN)), model=ScriptedModel([DONE]))


@pytest.mark.parametrize("address", ["http://user:secret@127.0.0.1:4318", "http://", "http://127.0.0.1:notaport"])
def test_an_address_that_is_none_or_holds_a_password_is_refused(address: str, files: str) -> None:
    with pytest.raises(CoaError) as raised:
        export(files, Target.OTLP, address)
    assert "secret" not in str(raised.value) and "address" in raised.value.message
    with pytest.raises(ConfigError):
        coa.ask("Who?", model=ScriptedModel([DONE]), otlp={"endpoint": address})
