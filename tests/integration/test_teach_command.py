"""`coa teach --command`: any program, once for each task, behind the gateway."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from coa.cli import app
from coa.distill.importers.detect import read_traces
from coa.distill.teaching.program import Program, answer_in, run_command
from coa.distill.teaching.results import TeachReport
from coa.distill.teaching.stage import TeachConfig, teach
from coa.distill.team_run import TeamRun
from coa.errors import CoaError, FolderError, RecordingError
from coa.trajectory.types import Stop
from support.upstreams import ByteUpstream, always, serving

PROGRAM = """
import json, os, subprocess, sys, time, urllib.request

task = json.load(open(sys.argv[1]))
name = task["id"]


def ask(text):
    body = {"model": "tiny", "messages": [{"role": "user", "content": text}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions", json.dumps(body).encode(), headers
    )
    with urllib.request.urlopen(request) as response:
        return json.load(response)["choices"][0]["message"]["content"]


if name == "early":
    sys.exit(4)
print("thinking about", task["question"])
ask(task["question"])
print("a warning", file=sys.stderr)
if name == "broken":
    sys.exit(3)
if name == "silent":
    os._exit(0)
if name == "stuck":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    print(child.pid, flush=True)
    time.sleep(600)
print(json.dumps({"answer": ask("and then?"), "steps": 2}, indent=1 if name == "pretty" else None))
print()
"""
SERVER = "http://127.0.0.1:9"
REPLY = {
    "id": "r", "object": "chat.completion", "created": 1, "model": "tiny",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "42"}}],
    "usage": {"prompt_tokens": 10, "completion_tokens": 1, "total_tokens": 11},
}  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "team.py").write_text(PROGRAM)
    return tmp_path


@pytest.fixture
def server() -> Iterator[tuple[ByteUpstream, str]]:
    upstream = ByteUpstream(always(json.dumps(REPLY)))
    with serving(upstream) as url:
        yield upstream, url


def tasks_in(folder: Path, *ids: str) -> Path:
    path = folder / "tasks.jsonl"
    rows = [{"id": each, "question": f"What about {each}?", "answer": "42"} for each in ids]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def taught(folder: Path, url: str, *ids: str, **settings: Any) -> TeachReport:
    command = f"{sys.executable} {folder / 'team.py'} {{file}}"
    config = TeachConfig(**{"command": command, "model": url, "answer_field": "answer", **settings})
    return teach(config, tasks_in(folder, *ids), folder / "out")


def events(folder: Path, task: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out" / f"{task}.calls.jsonl").read_bytes().splitlines()]


def test_each_task_has_a_file_with_the_task_its_calls_and_the_outcome(
    place: Path, server: tuple[ByteUpstream, str]
) -> None:
    upstream, url = server
    report = taught(place, url, "a", "pretty")
    assert (report.answered, report.failed, report.usage.model_calls, report.usage.total_tokens) == (2, 0, 4, 44)
    for name in ("a", "pretty"):
        found = events(place, name)
        assert [line["event"] for line in found] == ["task", *["request", "response"] * 2, "outcome"]
        assert all(line["run"] == name for line in found if line["event"] != "response")
        assert found[0]["task"] == {"id": name, "question": f"What about {name}?", "answer": ["42"]}
        assert found[1]["body"]["messages"][0]["content"] == f"What about {name}?"
        assert (found[-1]["answer"], found[-1]["exit"], found[-1]["error"]) == ("42", 0, None)
        assert "thinking about" in found[-1]["stdout"]
    assert all(one.path == "/v1/chat/completions" for one in upstream.received)
    assert not (place / "out" / ".tasks").exists()
    assert "a warning" in (place / "out" / ".log" / "a.err").read_text()


def test_failures_are_data_and_are_run_again_only_if_asked_for(place: Path, server: tuple[ByteUpstream, str]) -> None:
    upstream, url = server
    report = taught(place, url, "a", "broken", "silent")
    assert (report.answered, report.failed) == (1, 2) and not report.complete
    assert events(place, "broken")[-1]["error"] == "the program ended with exit code 3"
    assert events(place, "broken")[-1]["exit"] == 3 and events(place, "broken")[-1]["answer"] is None
    assert "no JSON object with a field 'answer'" in events(place, "silent")[-1]["error"]
    before = len(upstream.received)
    again = taught(place, url, "a", "broken", "silent")
    assert again.resumed == 3 and len(upstream.received) == before
    (place / "team.py").write_text(PROGRAM.replace('"broken"', '"-"').replace('"silent"', '"-"'))
    last = taught(place, url, "a", "broken", "silent", retry_failed=True)
    assert (last.resumed, last.answered) == (1, 2)
    assert [line["event"] for line in events(place, "broken")] == ["task", *["request", "response"] * 2, "outcome"]


def test_failed_timed_out_and_silent_programs_are_read_as_such(place: Path, server: tuple[ByteUpstream, str]) -> None:
    _, url = server
    taught(place, url, "a", "broken", "stuck", "early", time_limit_s=1.5)
    runs = {run.task.id: run for run in read_traces(place / "out") if isinstance(run, TeamRun)}
    assert {name: (run.stop, run.answer) for name, run in runs.items()} == {
        "a": (Stop.ANSWERED, "42"), "broken": (Stop.FAILED, None), "stuck": (Stop.TIME, None),
        "early": (Stop.FAILED, None),
    }  # fmt: skip
    assert runs["broken"].failure is not None and "exit code 3" in runs["broken"].failure.message
    assert runs["a"].task.answer == ("42",) and runs["a"].usage.model_calls == 2
    assert runs["early"].usage.model_calls == 0 and runs["early"].task.question == "What about early?"


def test_a_run_that_was_killed_in_the_middle_is_run_again_from_the_beginning(
    place: Path, server: tuple[ByteUpstream, str]
) -> None:
    _, url = server
    taught(place, url, "a")
    file = place / "out" / "a.calls.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:3]) + b'{"coa_record": 1, "ev')
    report = taught(place, url, "a")
    assert (report.resumed, report.answered) == (0, 1)
    assert [line["event"] for line in events(place, "a")] == ["task", *["request", "response"] * 2, "outcome"]


def test_the_time_limit_ends_the_program_and_what_it_has_started(place: Path, server: tuple[ByteUpstream, str]) -> None:
    _, url = server
    report = taught(place, url, "stuck", time_limit_s=1.5)
    assert report.timed_out == 1
    outcome = events(place, "stuck")[-1]
    assert outcome["event"] == "outcome" and "time limit of 1.5 seconds" in outcome["error"]
    child = int(outcome["stdout"].split()[-1])
    with pytest.raises(ProcessLookupError):
        for _ in range(200):
            os.kill(child, 0)
            if Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError  # ended, and waiting for its new parent to notice
            time.sleep(0.01)


def test_a_question_is_one_argument_whatever_it_holds(tmp_path: Path, server: tuple[ByteUpstream, str]) -> None:
    _, url = server
    odd = """$(touch pwned); "quoted' {id} && rm -rf x\n-- --help"""
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": "odd", "question": odd}) + "\n")
    (tmp_path / "show.py").write_text("import json, sys\nprint(json.dumps({'answer': sys.argv[1:]}))\n")
    command = f"{sys.executable} {tmp_path / 'show.py'} --task={{question}} '{{id}} {{unknown}}'"
    config = TeachConfig(command=command, model=url, answer_field="answer")
    report = teach(config, tmp_path / "tasks.jsonl", tmp_path / "out")
    assert report.answered == 1
    outcome = events(tmp_path, "odd")[-1]
    assert json.loads(outcome["answer"]) == [f"--task={odd}", "odd {unknown}"]


def test_answers_without_a_call_of_a_model_are_pointed_out(tmp_path: Path, server: tuple[ByteUpstream, str]) -> None:
    config = TeachConfig(command="echo {question}", model=server[1])
    report = teach(config, tasks_in(tmp_path, "a", "b"), tmp_path / "out")
    assert report.answered == 2 and report.complete
    assert report.problems == {"the program answered without a call of a model; does it use OPENAI_BASE_URL?": 2}


def test_the_key_for_coa_is_what_the_program_sends_and_it_is_written_nowhere(
    place: Path, server: tuple[ByteUpstream, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    upstream, url = server
    monkeypatch.setenv("COA_API_KEY", "sk-very-secret-1")
    taught(place, url, "a")
    assert upstream.received[0].headers["authorization"] == "Bearer sk-very-secret-1"
    for file in (place / "out").rglob("*"):
        assert not file.is_file() or b"very-secret" not in file.read_bytes(), file


def test_two_programs_do_not_share_a_folder(place: Path, server: tuple[ByteUpstream, str]) -> None:
    _, url = server
    taught(place, url, "a")
    with pytest.raises(FolderError, match="command was"):
        taught(place, url, "a", command=f"{sys.executable} other.py {{id}}")
    with pytest.raises(FolderError, match="answer_field was"):
        taught(place, url, "a", answer_field=None)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (dict[str, Any](), "name the team with --team, or a program with --command"),
        ({"team": "a:b", "command": "x {id}"}, "give --team or --command, not both"),
        ({"team": "a:b", "redact": ("x",)}, "--set redact is for --command"),
        ({"command": "", "model": SERVER}, "does not say where the task goes"),
        ({"command": "python x.py {id}"}, "--command needs a model server"),
        ({"command": "python x.py", "model": SERVER}, "does not say where the task goes"),
        ({"command": "", "model": SERVER}, "does not say where the task goes"),
        ({"command": "python 'x.py {id}", "model": SERVER}, "cannot be split"),
        ({"command": "no-such-program {id}", "model": SERVER}, "there is no program 'no-such-program'"),
        ({"command": "python x.py {id}", "model": "host"}, "not the address of a server"),
        ({"command": "python x.py {id}", "model": "ftp://host"}, "not the address of a server"),
        ({"command": "python x.py {id}", "model": SERVER, "temperature": 1}, "--temperature is for --team"),
    ],
)  # fmt: skip
def test_what_cannot_be_run_is_refused_at_once_with_a_hint(
    settings: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    with pytest.raises(CoaError, match=problem) as failed:
        teach(TeachConfig(**settings), tasks_in(tmp_path, "a"), tmp_path / "out")
    assert failed.value.hint and not (tmp_path / "out" / "config.json").exists()


def test_answers_are_found_in_what_is_printed() -> None:
    assert answer_in("first\n  last \n\n", None) == "last" and answer_in(" \n", None) is None
    assert answer_in('log\n{"answer": "a"}\nlog', "answer") == "a"
    assert answer_in('{"answer": "old"}\n{"answer": "new"}\n', "answer") == "new"
    assert answer_in('log {\n{\n "answer": {"n": 3},\n "b": 1\n}\n', "answer") == '{"n": 3}'
    assert answer_in('{"answer": 42}', "answer") == "42"
    assert answer_in('{"answer": null}', "answer") is None and answer_in("[1]", "answer") is None


def test_a_program_of_another_name_is_found_only_with_words() -> None:
    with pytest.raises(RecordingError, match="does not say"):
        Program("").words()
    assert Program("{id} x").words() == ["{id}", "x"]


def test_no_task_needs_no_gateway(tmp_path: Path, server: tuple[ByteUpstream, str]) -> None:
    from coa.distill.gateway.config import RecordConfig

    report = run_command([], Program(f"{sys.executable} {{id}}"), RecordConfig(upstream=server[1]), tmp_path / "out")
    assert report.total == 0 and report.complete


def test_ctrl_c_ends_the_programs_and_the_same_command_runs_the_rest(
    place: Path, server: tuple[ByteUpstream, str]
) -> None:
    _, url = server
    tasks_in(place, "a", "stuck")
    words = ["teach", "tasks.jsonl", "--command", f"{sys.executable} team.py {{file}}", "--answer-field", "answer",
             "--model", url, "--out", "out"]  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "coa.cli", *words], cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        give_up = time.monotonic() + 60
        out = place / "out" / ".log" / "stuck.out"
        while not (out.exists() and out.read_text().count("\n") > 1 and len(events(place, "a")) == 6):
            assert time.monotonic() < give_up and process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 1 and "the same command goes on from there" in errors
    assert sorted(path.name for path in (place / "out").glob("*.jsonl")) == ["a.calls.jsonl"]
    (place / "team.py").write_text(PROGRAM.replace('"stuck"', '"-"'))
    done = subprocess.run(
        [sys.executable, "-m", "coa.cli", *words, "--json"], cwd=place, capture_output=True, text=True, timeout=120
    )
    counted = json.loads(done.stdout)
    assert (counted["resumed"], counted["answered"], done.returncode) == (1, 1, 0)


def test_where_a_failed_program_says_why_is_printed(place: Path, server: tuple[ByteUpstream, str]) -> None:
    command = f"{sys.executable} {place / 'team.py'} {{file}}"
    given = ["teach", str(tasks_in(place, "early")), "--command", command, "--model", server[1]]
    done = CliRunner().invoke(app, [*given, "--out", str(place / "out")])
    assert done.exit_code == 1 and f"what the failed ones printed is in {place / 'out' / '.log'}" in done.output
    assert (place / "out" / ".log" / "early.err").is_file()


def test_a_server_that_does_not_answer_is_named_beside_the_exit_code(place: Path) -> None:
    report = taught(place, SERVER, "a")
    (problem,) = report.problems
    assert "the program ended with exit code" in problem and "failed: http://127.0.0.1:9" in problem
