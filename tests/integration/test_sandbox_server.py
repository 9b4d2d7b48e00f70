"""The sandbox behind HTTP: the same results, a token, several servers with one of them dead, SandboxFusion's shape."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import aiohttp
import pytest
from aiohttp import web

from coa.tools.sandbox import Limits, Verdict, open_sandbox
from coa.tools.sandbox.remote import RemoteSandbox
from coa.tools.sandbox.server import make_app

TOKEN = "test-token"


def with_server(body: Callable[[str], Awaitable[None]], *, most_waiting: int = 100) -> None:
    async def go() -> None:
        sandbox = await open_sandbox("zygote", workers=2)
        runner = web.AppRunner(make_app(sandbox, token=TOKEN, most_waiting=most_waiting))
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            await body(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    asyncio.run(go())


def test_a_remote_run_is_like_a_local_one() -> None:
    async def body(url: str) -> None:
        sandbox = RemoteSandbox([url], token=TOKEN)
        code = "import sys\nopen('out', 'wb').write(b'\\xff')\nprint(input(), sys.argv[1:], open('given').read())"
        result = await sandbox.run(
            code, stdin="é\n", arguments=["--x"], files={"given": "file"}, collect=["out"], limits=Limits(wall_s=5)
        )
        assert (result.verdict, result.text, result.files) == (Verdict.OK, "é ['--x'] file\n", {"out": b"\xff"})
        binary = await sandbox.run("import sys\nsys.stdout.buffer.write(bytes(range(256)))\nsys.exit(4)")
        assert (binary.stdout, binary.verdict, binary.exit_code) == (bytes(range(256)), Verdict.RE, 4)
        program = await sandbox.program("def f(x): return {'a': [x, None]}\nif __name__ == '__main__': print(input())")
        assert (await program.call("f", [1])).value == {"dict": [["a", [1, None]]]}
        broken = await sandbox.program("def (")
        assert (await broken.run("")).verdict is Verdict.CE and broken.compile_error is not None
        await sandbox.close()

    with_server(body)


def test_without_the_token_nothing_runs() -> None:
    async def body(url: str) -> None:
        for token in (None, "", "wrong", TOKEN + "x"):
            sandbox = RemoteSandbox([url], token=token)
            result = await sandbox.run("print(1)")
            assert result.verdict is Verdict.SANDBOX_ERROR and "401" in result.note
            await sandbox.close()
        async with aiohttp.ClientSession() as session, session.get(f"{url}/health") as response:
            assert response.status == 401

    with_server(body)


def test_runs_go_to_the_server_that_lives() -> None:
    async def body(url: str) -> None:
        dead = "http://127.0.0.1:9"  # the discard port: nobody listens
        sandbox = RemoteSandbox([dead, url], token=TOKEN)
        results = await asyncio.gather(*(sandbox.run(f"print({n})") for n in range(20)))
        assert [result.text for result in results] == [f"{n}\n" for n in range(20)]
        nobody = RemoteSandbox([dead], token=TOKEN)
        lost = await nobody.run("print(1)")
        assert lost.verdict is Verdict.SANDBOX_ERROR and dead in lost.note
        await sandbox.close()
        await nobody.close()

    with_server(body)


def test_work_is_spread_over_the_servers() -> None:
    async def go() -> None:
        asked = [0, 0]

        def counting(number: int) -> web.Application:
            async def run(request: web.Request) -> web.Response:
                asked[number] += 1
                await asyncio.sleep(0.05)
                return web.json_response({"verdict": "OK"})

            app = web.Application()
            app.add_routes([web.post("/run", run)])
            return app

        async with AsyncExitStack() as stack:
            urls = []
            for number in range(2):
                runner = web.AppRunner(counting(number))
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                urls.append(f"http://127.0.0.1:{runner.addresses[0][1]}")
            sandbox = RemoteSandbox(urls)
            await asyncio.gather(*(sandbox.run("") for _ in range(20)))
            assert asked == [10, 10]
            await sandbox.close()

    asyncio.run(go())


def test_a_full_server_says_so_at_once() -> None:
    async def body(url: str) -> None:
        sandbox = RemoteSandbox([url], token=TOKEN)
        results = await asyncio.gather(*(sandbox.run("import time; time.sleep(0.3)") for _ in range(8)))
        verdicts = [result.verdict for result in results]
        assert verdicts.count(Verdict.OK) == 3
        assert all("503" in result.note for result in results if not result.ok)
        await sandbox.close()

    with_server(body, most_waiting=3)


def test_bad_requests_are_answered_with_the_reason() -> None:
    async def body(url: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            for path, data in (
                ("/run", b"not json"),
                ("/run", b"{}"),
                ("/run", b'{"code": "", "limits": {"wall_s": -1}}'),
                ("/run", b'{"code": "", "files": {"../x": ""}}'),
                ("/run", b'{"code": "", "stdin": "%%%"}'),
                ("/run", b'{"code": "", "surprise": 1}'),
                ("/run", b'{"code": "", "test": true, "function": "f", "stdin": "eA=="}'),
                ("/run_code", b'{"code": "", "language": "cobol"}'),
            ):
                async with session.post(url + path, data=data) as response:
                    assert response.status == 422, (path, data)
                    assert (await response.json())["error"]

    with_server(body)


def test_sandboxfusion_clients_are_understood() -> None:
    async def body(url: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:

            async def run(**request: object) -> dict[str, object]:
                async with session.post(f"{url}/run_code", json=request) as response:
                    assert response.status == 200
                    answer: dict[str, object] = await response.json()
                    return answer

            given = base64.b64encode(b"data").decode()
            answer = await run(
                code="print(input() + open('f').read())",
                language="python",
                stdin="x",
                compile_timeout=5,
                run_timeout=5,
                memory_limit_MB=512,
                files={"f": given},
                fetch_files=["f"],
            )
            done = answer["run_result"]
            assert isinstance(done, dict)
            assert (answer["status"], done["status"], done["return_code"], done["stdout"]) == (
                "Success",
                "Finished",
                0,
                "xdata\n",
            )
            assert answer["files"] == {"f": given}
            assert (await run(code="1/0", language="python"))["status"] == "Failed"
            late = await run(code="while 1: pass", language="python", run_timeout=0.5)
            assert isinstance(late["run_result"], dict) and late["run_result"]["status"] == "TimeLimitExceeded"

    with_server(body)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9, http://127.0.0.1:9"])
def test_a_url_opens_a_remote_sandbox(url: str) -> None:
    async def go() -> None:
        sandbox = await open_sandbox(url)
        assert isinstance(sandbox, RemoteSandbox)
        await sandbox.close()

    asyncio.run(go())
