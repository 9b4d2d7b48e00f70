"""A model server in a process of its own, for tests that kill it: `python -m support.counting_server` prints its URL.

Asked for number N, the model runs a program that prints a number only the sandbox can know of, and answers with what
was printed. Each request that it has answered is a line on stdout.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any

from aiohttp import web

from support.servers import FakeServer

PROGRAM = "import time\ntime.sleep(0.1)\nprint('key-of-it', {number} * 7919 + 13)"


def found(number: int) -> int:
    return number * 7919 + 13


def say(body: dict[str, Any]) -> str:
    said = str(body["messages"])
    number = int(re.findall(r"number (\d+)\?", said)[-1])
    if printed := re.findall(r"key-of-it (\d+)", said):
        return f"<reflection>It printed.</reflection>\n<think>So.</think>\n<answer>{printed[-1]}</answer>"
    program = PROGRAM.format(number=number)
    return f"<plan>Run it.</plan>\n<think>Now.</think>\n<code>\n```py\n{program}\n```\n</code>"


class CountingServer(FakeServer):
    async def chat(self, request: web.Request) -> web.StreamResponse:
        await asyncio.sleep(0.05)
        answered = await super().chat(request)
        print("answered", flush=True)
        return answered


async def serve() -> None:
    async with CountingServer(say, owner="somebody").running() as url:
        print(url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
