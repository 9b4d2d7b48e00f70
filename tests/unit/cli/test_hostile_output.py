"""Files whose every field holds escape sequences, C1 controls, turning marks, markup and forged lines, shown by every
command that prints them. Nothing of it reaches stdout or stderr as such, and nothing of it is lost without a trace."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from coa.cli import main
from coa.trajectory import Profile, Step, Task, Trajectory, Usage, load_profile, observation, write
from coa.trajectory.types import Failure, FailureSite, Message, Stop
from support.exams import ExamServer
from support.servers import FakeServer, in_thread

NAME = "x\x1b[31mred\x1b]0;title\x07 \x9b31m\x85 \u202egnp.\u2066\u200f\u061c [red]m :smile: \r\x08\x7f\nFORGED: a line"
"""Also allowed as the name of a file."""
TEXT = f"{NAME} [/] [link=http://a.example]b[/link]"
FORBIDDEN = {*map(chr, range(0x20)), *map(chr, range(0x7F, 0xA0)), *"\u202e\u2066\u200f\u061c\u2028"} - {"\n", "\t"}


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def profile() -> Profile:
    plain = load_profile("nano")
    agents = {
        tag: agent.model_copy(update={"title": TEXT, "does": TEXT, "color": f"link {TEXT}"})
        for tag, agent in plain.agents.items()
    }
    return plain.model_copy(update={"about": TEXT, "prompt": TEXT + plain.prompt, "agents": agents})


def hostile_task(number: int = 0) -> Task:
    return Task(
        id=f"{number}{TEXT}",
        question=f"{number}{TEXT}",
        answer=(TEXT, TEXT),
        files=(TEXT,),
        conversation=(Message(role="user", content=TEXT), Message(role="assistant", content=TEXT)),
        meta={"family": TEXT, "benchmark": TEXT, TEXT: TEXT},
    )


def hostile_run(profile: Profile, number: int = 0, *, failed: bool = False, agent: str = TEXT) -> Trajectory:
    steps = [Step(agent="think", text=TEXT), Step(agent="web_search", text=TEXT), observation(TEXT)]
    steps += [Step(agent=agent, text=TEXT), Step(agent="answer", text=TEXT)]
    return Trajectory(
        task=hostile_task(number),
        profile=profile.name,
        profile_hash=profile.hash,
        steps=tuple(steps),
        stop=Stop.FAILED if failed else Stop.ANSWERED,
        failure=Failure(site=FailureSite.MODEL, message=TEXT) if failed else None,
        usage=Usage(prompt_tokens=10, completion_tokens=5, model_calls=1),
        meta={"handovers": [TEXT], "scorer": TEXT},
    ).scored(TEXT, 1.0)


@pytest.fixture
def runs(profile: Profile) -> str:
    write(Path(f"{NAME}.jsonl"), [hostile_run(profile), hostile_run(profile, 1, failed=True)])
    return f"{NAME}.jsonl"


@pytest.fixture
def known(profile: Profile) -> str:
    """A run without an agent that its profile does not have, so that it has a transcript."""
    write(Path("known.jsonl"), [hostile_run(profile, agent="plan")])
    return "known.jsonl"


@pytest.fixture
def tasks() -> str:
    Path("tasks.jsonl").write_bytes(b"".join(hostile_task(n).model_dump_json().encode() + b"\n" for n in range(3)))
    return "tasks.jsonl"


class Shown:
    """What a command wrote, byte for byte."""

    def __init__(self, code: object, out: bytes, err: bytes) -> None:
        self.code, self.out, self.err = code, out.decode(), err.decode()

    def safe(self, *, where: str = "out", forged: bool = False) -> None:
        assert any(sign in getattr(self, where) for sign in ("␛", "\\x1b")), (
            f"the hostile text is not shown at all: {self.out}{self.err}"
        )
        for shown in (self.out, self.err):
            assert not FORBIDDEN & {*shown}, repr(shown)
            assert "[red]" in shown or "␛" not in shown, "markup is obeyed"
            assert forged or not any(line.startswith("FORGED") for line in shown.splitlines()), shown


@pytest.fixture
def coa(capfdbinary: pytest.CaptureFixture[bytes]) -> Iterator[Any]:
    def run(*arguments: object) -> Shown:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        sys.stdout.flush()
        sys.stderr.flush()
        return Shown(ended.value.code, *capfdbinary.readouterr())

    yield run


@pytest.mark.parametrize("more", [[], ["--full"], ["--profile", "nano"], ["--profile", "web"]])
def test_inspect_shows_every_field_of_a_run_safely(coa: Any, runs: str, more: list[str]) -> None:
    shown = coa("inspect", runs, *more)
    assert shown.code == 0, shown.err
    shown.safe()


def test_tokens_are_shown_safely(coa: Any, known: str) -> None:
    shown = coa("inspect", known, "--mask")
    assert shown.code == 0, shown.err
    shown.safe(forged=True)  # line breaks are marked
    assert "⏎\nFORGED" in shown.out


def test_the_task_id_answer_and_failure_of_an_inspected_run_are_visible(coa: Any, runs: str) -> None:
    lines = coa("inspect", runs).out.splitlines()
    assert any(line.startswith("task 0x␛[31mred␛]0;title␇") for line in lines)
    assert any(line.startswith("failed in the model: x␛[31mred␛]0;title␇") for line in lines)


def test_inspect_shows_tasks_and_the_places_of_runs_safely(coa: Any, tasks: str, profile: Profile) -> None:
    coa("inspect", tasks).safe()
    for place in ("a", NAME):
        write(Path("runs", place, "trajectories.jsonl"), [hostile_run(profile)])
    coa("inspect", "runs").safe()


def test_inspect_writes_json_as_it_is_into_a_pipe(coa: Any, runs: str, tasks: str) -> None:
    for data in (runs, tasks):
        lines = coa("inspect", data, "--json").out.split("\n")
        found = orjson.loads(lines[0])
        assert found.get("task", found)["question"] == f"0{TEXT}"
    assert "\x9b" in lines[0] and "\u202e" in lines[0]


def test_an_id_that_is_not_there_is_reported_safely(coa: Any, runs: str) -> None:
    coa("inspect", runs, "--task", "nothing").safe(where="err")


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", TEXT), ("export", TEXT, "--to", "messages"), ("cost", NAME), ("compare", NAME),
        ("score", NAME, "--scorer", "exact"),
        ("distill", NAME, "--out", "d"), ("profile", "show", NAME), ("profile", "show", f"{NAME}.toml"),
        ("tools", "call", TEXT, "x"), ("judge", NAME, NAME), ("index", "search", NAME, "x"), ("world", "show", NAME),
        ("run", "x", "--model", NAME), ("eval", NAME, "--model", "nano", "--out", "e"), ("sft", NAME),
        ("rl", "--set", "\x1b[31m\x9b[red]=1", "--out", "o"), ("run", "x", "--budget", TEXT.replace(".", "")),
        (NAME,), ("sample", "a", NAME),
        ("cost", f"--{NAME}"), ("world", NAME), ("export", "a", "--to", TEXT),
        ("sample", NAME, "--model", "x", "--out", "o.jsonl"),
    ],
    ids=lambda command: command[0][:9],
)  # fmt: skip
def test_an_error_is_printed_safely(coa: Any, command: tuple[str, ...]) -> None:
    shown = coa(*command)
    assert shown.code, "it is refused"
    shown.safe(where="err", forged=shown.code == 2)  # what typer says about a command stands in a frame


def test_a_profile_is_shown_safely(coa: Any, profile: Profile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.trajectory.profile.load_profile", lambda name: profile)
    coa("profile", "show", "hostile").safe()
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = coa("profile", "show", "hostile").out
    assert "\x1b]" not in shown and "\x1b[31mred" not in shown and "\x9b" not in shown


def test_a_profile_that_is_refused_is_reported_safely(coa: Any) -> None:
    Path("bad.toml").write_text(
        'name = "a"\nabout = "b"\nprompt = "c"\nstart = ["\\u001b[31m\\u009b[red]"]\nagents = {}\n'
    )
    coa("profile", "show", "bad.toml").safe(where="err")


def test_exported_lines_go_as_they_are_into_a_pipe(coa: Any, known: str) -> None:
    first = coa("export", known, "--to", "messages").out.split("\n")[0]
    assert "\x9b" in first and orjson.loads(first)
    coa("export", known, "--to", "messages", "--out", f"{NAME}2.jsonl").safe(where="err")


def test_costs_comparisons_and_scores_are_printed_safely(coa: Any, runs: str, profile: Profile) -> None:
    write(Path(f"other{NAME}.jsonl"), [hostile_run(profile)])
    for command in (("cost", runs), ("compare", runs, f"other{NAME}.jsonl"), ("score", runs, "--scorer", "exact")):
        coa(*command).safe()


def hostile_team(number: int) -> bytes:
    """A team as a chat log holds it, with a member that another asks."""
    call = {"id": "k", "function": {"name": TEXT, "arguments": orjson.dumps({TEXT: TEXT}).decode()}}
    asked = [
        {"role": "user", "content": f"{number}{TEXT}"},
        {"role": "assistant", "content": TEXT, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "k", "content": TEXT},
        {"role": "assistant", "content": TEXT},
    ]
    boss = {"session_id": "s1", "agent": TEXT, "task_id": f"{number}{TEXT}", "answer": TEXT, "messages": asked}
    said = [{"role": "user", "content": TEXT}, {"role": "assistant", "content": TEXT}]
    member = {"session_id": "s2", "parent_call_id": "k", "agent": TEXT, "messages": said}
    return orjson.dumps(boss) + b"\n" + orjson.dumps(member) + b"\n"


def test_distillation_and_its_reasons_are_printed_safely(coa: Any) -> None:
    Path("traces", NAME).mkdir(parents=True)
    for number in range(2):
        Path("traces", NAME, f"{NAME}{number}.jsonl").write_bytes(hostile_team(number))
    Path("traces", f"{NAME}.json").write_text("{ broken \x1b[31m \x9b")
    coa("distill", "traces", "--out", "data").safe(where="err")
    coa("profile", "from-traces", "traces").safe(where="err")
    coa("cost", "traces", f"traces/{NAME}").safe()


@pytest.mark.parametrize("columns", ["80", "200"])
def test_an_explanation_of_a_run_is_printed_safely(coa: Any, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    Path(f"{NAME}.jsonl").write_bytes(hostile_team(0))
    shown = coa("distill", f"{NAME}.jsonl", "--explain", "0x")
    assert shown.code == 0, shown.err
    shown.safe()


def test_a_run_in_the_terminal_is_shown_safely(coa: Any) -> None:
    said = f"<think>{TEXT.replace('[/]', '')}</think>\n<answer>{TEXT.replace('[/]', '')}</answer>"
    with in_thread(FakeServer(lambda body: said, owner="somebody")) as url:
        shown = coa("run", f"Who? {TEXT}", "--model", url, "--profile", "nano")
        assert shown.code == 0, shown.err
        # The chain is shown as it is written, agent by agent; the line breaks in it are the model's.
        shown.safe(forged=True)
        end = shown.out[shown.out.index("\nanswer: ") :]
        assert not any(line.startswith("FORGED") for line in end.splitlines())
        coa("run", "Who?", "--model", url, "--profile", "nano", "--best-of", "2").safe(where="err")


def test_a_failed_run_is_reported_safely(coa: Any) -> None:
    from support import servers

    server = FakeServer(lambda body: "x", owner="somebody")
    server.trouble = [servers.status(400, orjson.dumps({"error": {"message": TEXT}}).decode()) for _ in range(3)]
    with in_thread(server) as url:
        coa("run", "Who?", "--model", url, "--profile", "nano").safe(where="err")


def test_an_evaluation_is_reported_safely(coa: Any, tasks: str) -> None:
    Path(f"{NAME}.jsonl").write_bytes(Path(tasks).read_bytes())
    with in_thread(ExamServer()) as url:
        given = ("eval", f"{NAME}.jsonl", "--model", url, "--profile", "nano", "--out", f"out{NAME}")
        coa(*given).safe()
        coa(*given, "--dry-run").safe()
    coa("score", f"out{NAME}", "--scorer", "f1").safe()
    coa("inspect", f"out{NAME}").safe()


def test_json_on_a_terminal_holds_nothing_that_the_terminal_obeys(tasks: str) -> None:
    screen, terminal = pty.openpty()
    try:
        command = [sys.executable, "-m", "coa.cli", "inspect", tasks, "--json", "--limit", "1"]
        done = subprocess.run(command, stdout=terminal, stderr=subprocess.PIPE)
        drawn = os.read(screen, 100_000).decode().replace("\r\n", "\n")
    finally:
        os.close(terminal)
        os.close(screen)
    assert done.returncode == 0, done.stderr
    assert not FORBIDDEN & {*drawn} and orjson.loads(drawn)["question"] == f"0{TEXT}"


def test_the_traceback_for_debugging_is_printed_safely(coa: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_DEBUG", "1")
    coa("inspect", TEXT).safe(where="err", forged=True)
