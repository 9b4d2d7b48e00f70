"""`coa run` as a user calls it, against a chat server on loopback: tasks, resuming, Ctrl-C, and early complaints."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from typer.testing import CliRunner, Result

from coa.cli import app
from coa.errors import CoaError
from coa.trajectory import Stop, Trajectory, read
from support import servers
from support.servers import FakeServer

TOOLS = """
import asyncio
from coa.tools import Observation
from coa.trajectory import Form, Shape


class Lookup:
    about = "looks a fact up."
    shape = Shape(form=Form.LINE)
    timeout_s = 60.0

    async def call(self, arguments, context):
        if "wait" in context.task.question:
            await asyncio.sleep(60)
        return Observation("Ada Lovelace")
"""
SEARCH = "<think>t</think>\n<plan>p</plan>\n<think>s</think>\n<web_search>who</web_search>"
DONE = "<think>d</think>\n<answer>Ada</answer>"


def two_turns(body: dict[str, Any]) -> str:
    return DONE if "Ada Lovelace" in str(body["messages"]) else SEARCH


class Done(NamedTuple):
    code: int | None
    out: str
    err: str


@pytest.fixture
def server() -> FakeServer:
    return FakeServer(two_turns, owner="somebody")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mytools.py").write_text(TOOLS)
    rows = [{"id": f"t{n}", "question": f"Who is {n}?", "answer": "Ada" if n % 2 else "Bob"} for n in range(6)]
    (tmp_path / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def coa(server: FakeServer, folder: Path, *arguments: object, interrupt: int | None = None, model: str = "") -> Done:
    """`interrupt`: press Ctrl-C once the server was asked so often."""

    async def go() -> Done:
        async with server.running() as url:
            given = [str(a).replace("URL", url) for a in arguments]
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "coa.cli", "run", *given,
                "--model", model or url, "--tool", "web_search=mytools:Lookup",
                cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
            if interrupt is not None:
                while len(server.asked) < interrupt:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.3)
                process.send_signal(signal.SIGINT)
            out, err = await asyncio.wait_for(process.communicate(), 120)
            return Done(process.returncode, out.decode(), err.decode())

    return asyncio.run(go())


def runs(folder: Path, name: str = "runs") -> list[Trajectory]:
    return list(read(folder / name))


def test_a_file_of_tasks_is_run_and_gone_on_with(server: FakeServer, folder: Path) -> None:
    common = ["--tasks", "tasks.jsonl", "--out", "runs", "--price-in", 1, "--price-out", 2]
    first = coa(server, folder, *common, "--limit", 4, "--concurrency", 2)
    assert first.code == 0, first.err
    assert "4 of 4 runs: 4 answered, 0 failed; 2 of 4 right" in first.out and "cost 0.000104" in first.out
    assert "runs: 4/4, 2 of 4 right (50.0%)" in first.err and "tokens/s" in first.err
    assert not any(body.get("stream") for body in server.asked), "streaming many costs CPU and shows nothing"
    asked = len(server.asked)
    second = coa(server, folder, *common, "--samples", 2)
    assert "12 of 12 runs (4 were there before): 12 answered" in second.out
    assert len(server.asked) == asked + 2 * 8
    assert sorted(t.key for t in runs(folder)) == [(f"t{n}", s) for n in range(6) for s in range(2)]
    assert all(t.usage.cost == pytest.approx(26e-6) for t in runs(folder))  # 2 calls of 7 read and 3 written


def test_failed_runs_are_told_and_tried_again(server: FakeServer, folder: Path) -> None:
    common = ["--tasks", "tasks.jsonl", "--out", "runs/mine.jsonl", "--concurrency", 1]
    server.trouble = [servers.status(400, '{"error": {"message": "too long"}}')]
    first = coa(server, folder, *common)
    assert first.code == 1 and "1 failed" in first.out and "--retry-failed" in first.out
    again = coa(server, folder, *common, "--retry-failed")
    assert again.code == 0 and "6 of 6 runs (5 were there before): 6 answered, 0 failed" in again.out
    kept = runs(folder, "runs/mine.jsonl")
    assert len({t.key for t in kept}) == len(kept) == 6 and {t.stop for t in kept} == {Stop.ANSWERED}


def test_ctrl_c_keeps_finished_runs_and_the_same_command_goes_on(server: FakeServer, folder: Path) -> None:
    rows = [{"id": "quick", "question": "Who?"}, {"id": "slow", "question": "Who, wait?"}]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    stopped = coa(server, folder, "--tasks", "tasks.jsonl", "--out", "runs", interrupt=3)
    assert stopped.code == 1 and "interrupted; the same command goes on" in stopped.out
    assert "Traceback" not in stopped.err
    assert [t.task.id for t in runs(folder)] == ["quick"]


def test_ctrl_c_keeps_the_candidates_there_are(server: FakeServer, folder: Path) -> None:
    stopped = coa(server, folder, "Who, wait?", "--best-of", 2, "--out", "runs", interrupt=2)
    assert stopped.code == 1 and "Traceback" not in stopped.err
    kept = runs(folder)
    assert [t.sample for t in kept] == [0, 1] and {t.stop for t in kept} == {Stop.INTERRUPTED}
    assert [step.agent for step in kept[0].steps][-1] == "web_search"


def test_ctrl_c_leaves_a_readable_partial_run(server: FakeServer, folder: Path) -> None:
    stopped = coa(server, folder, "Who, wait?", "--out", "runs", interrupt=1)
    assert stopped.code == 1 and "interrupted, 4 steps" in stopped.out
    assert "web_search\nwho" in stopped.out, "streamed before"
    assert runs(folder)[0].stop is Stop.INTERRUPTED


def test_each_run_has_a_deadline(server: FakeServer, folder: Path) -> None:
    done = coa(server, folder, "Who, wait?", "--budget", "seconds=1", "--out", "runs")
    assert runs(folder)[0].stop is Stop.TIME and runs(folder)[0].usage.seconds < 30, done.err


def test_the_prompts_of_the_rows_are_used_on_request(server: FakeServer, folder: Path) -> None:
    row = {"id": "1", "question": "Who?", "prompt": [{"role": "user", "content": "In their own words: who?"}]}
    (folder / "rows.jsonl").write_text(json.dumps(row) + "\n")
    done = coa(server, folder, "--tasks", "rows.jsonl", "--prompt", "row", "--json")
    assert [json.loads(line)["task"]["id"] for line in done.out.splitlines()] == ["1"]
    assert server.asked[0]["messages"] == row["prompt"]
    refused = coa(server, folder, "--tasks", "tasks.jsonl", "--prompt", "row", "--json")
    assert refused.code == 1 and "6 of 6 tasks without a prompt; the first is 't0'" in refused.err


def test_a_prompt_from_a_file_takes_the_profiles_place(server: FakeServer, folder: Path) -> None:
    (folder / "prompt.txt").write_text("Their system prompt.")
    assert coa(server, folder, "Who?", "--prompt-file", "prompt.txt").code == 0
    assert server.asked[0]["messages"][0] == {"role": "system", "content": "Their system prompt."}
    assert server.asked[0]["messages"][1] == {"role": "user", "content": "Who?"}


JUDGED = ["q", "--best-of", "2", "--select", "judge"]
EARLY = {
    "no such prompt": (["q", "--prompt-file", "none.txt"], 1, "cannot read the prompt none.txt: No such file"),
    "unwritable": (["q", "--best-of", "2", "--out", "/proc/none/x.jsonl"], 1, "cannot write /proc/none/x.jsonl"),
    "unpriced": (["q", "--budget", "cost=1"], 1, "price of a token"),
    "price not in file": (["q", "--prices", "prices.toml"], 1, "no price for the model 'tiny'; it has big"),
    "bad price": (["q", "--prices", "tasks.jsonl"], 1, "not valid TOML"),
    "no such judge": ([*JUDGED, "--judge", "URL", "--judge-name", "other"], 1, "does not serve 'other'"),
    "nothing asked": ([], 2, "give a question, or --tasks"),
    "both": (["q", "--tasks", "tasks.jsonl", "--json"], 2, "give a question, or --tasks"),
    "nowhere to go": (["--tasks", "tasks.jsonl"], 2, "--tasks needs --out"),
    "best of tasks": (["--tasks", "tasks.jsonl", "--json", "--best-of", "2"], 2, "--best-of is for one question"),
    "row of a question": (["q", "--prompt", "row"], 1, "1 of 1 task without a prompt"),
    "budget": (["q", "--budget", "minutes=3"], 2, "there is no limit 'minutes'"),
    "parquet": (["q", "--out", "x.parquet"], 1, "coa export makes Parquet"),
    "constrain": (["q", "--constrain", "maybe"], 2, "constrain: Input should be 'auto', 'always' or 'never'"),
    "samples": (["q", "--samples", "3"], 2, "--samples and --retry-failed are for --tasks"),
    "retry": (["q", "--retry-failed"], 2, "--samples and --retry-failed are for --tasks"),
    "cache file": (["q", "--cache-file", "x.db"], 2, "cache_file needs cache=record"),
    "no task": (["--tasks", "empty.jsonl", "--json"], 1, "holds no task"),
}  # fmt: skip


@pytest.mark.parametrize("case", EARLY)
def test_what_cannot_work_is_told_before_anything_is_spent(
    server: FakeServer, folder: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "prices.toml").write_text("[big]\ninput = 1\noutput = 2\n")
    (folder / "empty.jsonl").write_text("")
    monkeypatch.chdir(folder)
    arguments, code, said = EARLY[case]

    async def go() -> Result:
        async with server.running() as url:
            given = ["run", *(argument.replace("URL", url) for argument in arguments), "--model", url]
            return await asyncio.to_thread(lambda: CliRunner().invoke(app, given))

    done = asyncio.run(go())
    assert (done.exit_code, len(server.asked)) == (code, 0), done.output
    assert isinstance(done.exception, CoaError if code == 1 else SystemExit)
    assert said in " ".join(f"{done.output} {done.exception}".split())


def test_a_file_may_lie_in_the_folder_that_read_file_is_given(server: FakeServer, folder: Path) -> None:
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "a.csv").write_text("1,2\n")
    done = coa(server, folder, "Who is 1?", "--file", "a.csv", "--tool", "read_file=elsewhere", "--out", "runs")
    assert done.code == 0 and runs(folder)[0].task.files == ("a.csv",), done.err
    asked = len(server.asked)
    done = coa(server, folder, "Who is 1?", "--file", "b.csv", "--tool", "read_file=elsewhere")
    assert done.code == 1 and "b.csv is not there" in done.err and len(server.asked) == asked


def test_a_row_whose_file_is_missing_holds_up_no_other(server: FakeServer, folder: Path) -> None:
    rows = [{"id": f"t{n}", "question": f"Who is {n}?", "files": [name]} for n, name in enumerate(["a.csv", "b.csv"])]
    (folder / "a.csv").write_text("1,2\n")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    common = ["--tasks", "rows.jsonl", "--cache-file", "kept.sqlite"]
    done = coa(server, folder, *common, "--out", "runs", "--cache", "record")
    assert done.code == 0 and len(runs(folder)) == 2, done.err
    assert "1 of 2 tasks have a file that cannot be read" in done.err and "b.csv is not there" in done.err
    (folder / "a.csv").unlink()
    done = coa(server, folder, *common, "--out", "again", "--cache", "replay")
    assert done.code == 0 and len(runs(folder, "again")) == 2 and "cannot be read" not in done.err, done.err


def test_a_judge_that_fails_afterwards_does_not_cost_the_candidates(server: FakeServer, folder: Path) -> None:
    def script(body: dict[str, Any]) -> str:
        if "Several attempts" in str(body["messages"]):
            raise servers.web.HTTPBadRequest(text="the judge is broken")
        return two_turns(body)

    server.script = script
    done = coa(server, folder, "Who?", "--best-of", 3, "--select", "judge", "--judge", "URL", "--out", "runs")
    assert done.code == 0 and "the judge failed" in done.err and "answer: Ada" in done.out
    assert [t.meta.get("selected") for t in runs(folder)].count("majority") == 1 and len(runs(folder)) == 3
