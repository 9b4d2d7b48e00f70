"""A model that takes exams: what it does depends on the number in the question, so that every count is known.

Of ten questions it answers five rightly and three wrongly, ends one without an answer, and breaks at one.
"""

from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path
from typing import Any

from aiohttp import web

from support.servers import FakeServer


def number_in(text: str) -> int:
    found = re.findall(r"person (\d+)", text)
    return int(found[-1]) if found else 0


def write_tasks(path: Path, count: int) -> Path:
    rows = [
        {"id": f"t{n}", "question": f"Who is person {n}?", "answer": f"Ada {n}", "level": n % 2} for n in range(count)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


class ExamServer(FakeServer):
    """Also judges, and chooses among attempts, where it is asked to."""

    def __init__(self, *, slow_s: float = 0.0) -> None:
        super().__init__(self.say, owner="somebody")
        self.well = False
        """It no longer breaks."""
        self.babbles = False
        """As a judge it says nothing of use."""
        self.picks = 2
        """The attempt that it chooses among several."""
        self._slow, self._rng = slow_s, random.Random(0)

    async def chat(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.text())
        if self._slow:
            await asyncio.sleep(self._rng.random() * self._slow)
        if number_in(str(body["messages"])) % 10 == 9 and not self.well and "Compare" not in str(body["messages"]):
            return web.json_response({"error": {"message": "broken"}}, status=400)
        return await super().chat(request)

    def say(self, body: dict[str, Any]) -> str:
        prompt = str(body["messages"])
        number = number_in(prompt)
        if "Compare an answer" in prompt:
            right = f"Ada {number}" in prompt.split("answer: ")[-1]
            return (
                "hm" if self.babbles else json.dumps({"reason": "read", "verdict": "correct" if right else "incorrect"})
            )
        if "Several attempts" in prompt:
            return f"[{self.picks}]"
        if number % 10 == 8:
            return ""
        # With a seed, every second attempt at a task whose number ends in 4 is wrong.
        wrong = 5 <= number % 10 <= 7 or (number % 10 == 4 and body.get("seed", 0) % 2)
        return f"<think>So.</think>\n<answer>{'Bob' if wrong else 'Ada'} {number}</answer>"
