"""`coa run --chat`, with questions from a pipe and from a terminal, against a scripted model server."""

from __future__ import annotations

import asyncio
import os
import pty
import re
import select
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from aiohttp import web

from coa.trajectory import Stop, read
from support.commands import ROOT
from support.servers import FakeServer, in_thread


def answering(body: dict[str, Any]) -> str:
    """Names the last thing that it was asked, and how many messages came before that."""
    asked = body["messages"][-1]["content"].splitlines()[-1]
    return f"<think>t</think>\n<answer>{asked} {len(body['messages']) - 1}</answer>"


def command(url: str, out: Path) -> list[str]:
    return [sys.executable, "-m", "coa.cli", "run", "--chat", "--model", url, "--set", "mode=chat", "--out", str(out)]


def test_questions_from_a_pipe_are_one_conversation_until_a_new_one(tmp_path: Path) -> None:
    server = FakeServer(answering, owner="someone")
    with in_thread(server) as url:
        done = subprocess.run(
            command(url, tmp_path), input="first\nsecond\n/new\n\nthird\n/quit\nfourth\n",
            capture_output=True, text=True, cwd=ROOT, timeout=120,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert re.findall(r"answer: (.*)", done.stdout) == ["first 1", "second 3", "third 1"]
    runs = list(read(tmp_path))
    assert [[turn.content for turn in run.task.conversation] for run in runs] == [[], ["first", "first 1"], []]
    assert len({run.task.id for run in runs}) == 3
    assert [m["content"] for m in server.asked[1]["messages"][1:]] == ["first", "first 1", "second"]


class Terminal:
    """A program in a terminal of its own."""

    def __init__(self, arguments: list[str]) -> None:
        self.pid, self._file = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execv(arguments[0], arguments)
        self.text = ""

    def type(self, text: str) -> None:
        os.write(self._file, text.encode())

    def until(self, pattern: str) -> None:
        """Read until this appears behind what was waited for before."""
        while not (found := re.search(pattern, self.text)):
            ready, _, _ = select.select([self._file], [], [], 60)
            assert ready, self.text
            try:
                self.text += os.read(self._file, 4096).decode(errors="replace")
            except OSError:  # it has ended
                break
        assert found, self.text
        self.text = self.text[found.end() :]

    def ended(self) -> int:
        try:
            while os.read(self._file, 4096):
                pass
        except OSError:
            pass
        os.close(self._file)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def test_ctrl_c_stops_a_run_and_leads_back_to_the_prompt(tmp_path: Path) -> None:
    server, asked, over = FakeServer(answering, owner="someone"), threading.Event(), threading.Event()

    async def hanging(request: web.Request) -> web.Response:
        asked.set()
        while not over.is_set():
            await asyncio.sleep(0.02)
        return web.Response()

    server.trouble.append(hanging)
    with in_thread(server) as url:
        terminal = Terminal(command(url, tmp_path))
        terminal.until(r"\n> ")
        terminal.type("slow\n")
        assert asked.wait(60)
        terminal.type("\x03")
        terminal.until(r"interrupted[^\0]*\n> ")
        terminal.type("quick\n")
        terminal.until(r"answer: quick 3[^\0]*\n> ")
        terminal.type("\x04")
        assert terminal.ended() == 0
        over.set()
    first, second = read(tmp_path)
    assert first.stop is Stop.INTERRUPTED and second.stop is Stop.ANSWERED
    assert server.asked[-1]["messages"][-1]["content"] == "quick"


def test_a_chat_takes_no_file_of_tasks_and_no_second_attempt(tmp_path: Path) -> None:
    (tmp_path / "tasks.jsonl").write_text('{"question": "q"}\n')
    for wrong in (["--tasks", str(tmp_path / "tasks.jsonl"), "--json"], ["--best-of", "3"]):
        done = subprocess.run(
            [sys.executable, "-m", "coa.cli", "run", "--chat", *wrong], capture_output=True, text=True, cwd=ROOT,
            input="", timeout=120,
        )  # fmt: skip
        assert done.returncode == 2 and "--chat asks one question after another" in done.stderr
