"""The sandbox behind HTTP: the same results, a token, several servers with one of them dead, SandboxFusion's shape."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import io
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

import aiohttp
import pytest
from aiohttp import web

from coa.sandbox import CodeVerdict, Program, ProgramLimits, ProgramResult, Sandbox, open_sandbox
from coa.sandbox.base import Script
from coa.sandbox.caps import Caps
from coa.sandbox.remote import RemoteSandbox
from coa.sandbox.server import DEFAULT, listening, make_app

TOKEN = "test-token"


def with_server(body: Callable[[str], Awaitable[None]], *, caps: Caps = DEFAULT) -> None:
    async def go() -> None:
        sandbox = await open_sandbox("zygote", workers=2)
        runner = web.AppRunner(make_app(sandbox, token=TOKEN, caps=caps))
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
            code,
            stdin="é\n",
            arguments=["--x"],
            files={"given": "file"},
            collect=["out"],
            limits=ProgramLimits(wall_s=5),
        )
        assert (result.verdict, result.text, result.files) == (CodeVerdict.OK, "é ['--x'] file\n", {"out": b"\xff"})
        binary = await sandbox.run("import sys\nsys.stdout.buffer.write(bytes(range(256)))\nsys.exit(4)")
        assert (binary.stdout, binary.verdict, binary.exit_code) == (bytes(range(256)), CodeVerdict.RE, 4)
        program = await sandbox.program("def f(x): return {'a': [x, None]}\nif __name__ == '__main__': print(input())")
        assert (await program.call("f", [1])).value == {"dict": [["a", [1, None]]]}
        broken = await sandbox.program("def (")
        assert (await broken.run("")).verdict is CodeVerdict.CE and broken.compile_error is not None
        await sandbox.close()

    with_server(body)


def test_without_the_token_nothing_runs() -> None:
    async def body(url: str) -> None:
        for token in (None, "", "wrong", TOKEN + "x"):
            sandbox = RemoteSandbox([url], token=token)
            result = await sandbox.run("print(1)")
            assert result.verdict is CodeVerdict.SANDBOX_ERROR and "401" in result.note
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
        assert lost.verdict is CodeVerdict.SANDBOX_ERROR and dead in lost.note
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
        assert verdicts.count(CodeVerdict.OK) == 3
        assert all("503" in result.note for result in results if not result.ok)
        await sandbox.close()

    with_server(body, caps=Caps(waiting=3))


def test_bad_requests_are_answered_with_the_reason() -> None:
    async def body(url: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            for path, data in (
                ("/run", b"not json"),
                ("/run", b"{}"),
                ("/run", b'{"code": "", "limits": {"wall_s": -1}}'),
                ("/run", b'{"code": "", "files": {"../x": ""}}'),
                ("/run", b'{"code": "", "files": {"a\\u0000b": ""}}'),
                ("/run", b'{"code": "", "collect": ["../x"]}'),
                (
                    "/run",
                    b'{"code": "", "function": "f", "stdin": "%s"}' % base64.b64encode(b"p" + b"-" * 50_000 + b"1"),
                ),
                ("/run", b'{"code": "", "stdin": "%%%"}'),
                ("/run", b'{"code": "", "surprise": 1}'),
                ("/run", b'{"code": "", "test": true, "function": "f", "stdin": "eA=="}'),
                ("/run_code", b'{"code": "", "language": "cobol"}'),
            ):
                async with session.post(url + path, data=data) as response:
                    assert response.status == 422, (path, data)
                    assert (await response.json())["error"]

    with_server(body)


def test_nothing_above_the_operators_caps_is_run() -> None:
    caps = Caps(
        wall_s=5, cpu_s=4, memory_mb=300, disk_mb=50, processes=20, output_bytes=1000, code_bytes=200, stdin_bytes=100
    )
    limits = {"wall_s": 5.1, "cpu_s": 5, "memory_mb": 301, "disk_mb": 51, "processes": 21, "output_bytes": 1001}
    text = base64.b64encode(b"x" * 101).decode()
    too_large: list[tuple[str, str, dict[str, object]]] = [
        ("code", "/run", {"code": "#" * 201}),
        ("code", "/run", {"code": "#" * 101, "prelude": "#" * 100, "test": True}),
        ("code", "/run", {"code": "", "arguments": ["é" * 101]}),
        ("stdin", "/run", {"code": "", "stdin": text}),
        ("stdin", "/run_code", {"code": "", "stdin": "é" * 51}),
        ("files", "/run", {"code": "", "files": {"a": text, "b": text}}),
        ("files", "/run_code", {"code": "", "files": {"a": text, "b": text}}),
        ("request", "/run", {"code": "", "stdin": base64.b64encode(bytes(3 << 20)).decode()}),
    ]
    above: list[tuple[str, str, dict[str, object]]] = [
        *[(name, "/run", dict[str, object](code="", limits={name: value})) for name, value in limits.items()],
        ("open_files", "/run", {"code": "", "limits": {"open_files": 5000}}),
        ("1234567890", "/run", {"code": "", "limits": {"output_bytes": 1234567890}}),
        ("wall_s", "/run", {"code": "", "limits": {"wall_s": "inf"}}),
        ("wall_s", "/run_code", {"code": "", "run_timeout": 6}),
        ("memory_mb", "/run_code", {"code": "", "memory_limit_MB": 301}),
    ]

    async def body(url: str) -> None:
        async with aiohttp.ClientSession(headers={"Authorization": f"Bearer {TOKEN}"}) as session:
            for status, refused in ((400, above), (413, too_large)):
                for name, path, request in refused:
                    data = io.BytesIO(json.dumps(request).encode())
                    async with session.post(url + path, data=data) as response:
                        said = (await response.json())["error"]
                        assert response.status == status and name in said and "cap of" in said, (name, path, said)
            # What nobody asked for is cut down to the caps: the sandbox's own defaults are above them here.
            for path in ("/run", "/run_code"):
                async with session.post(url + path, json={"code": "print('x' * 2000)"}) as response:
                    assert response.status == 200
                    assert "1000 bytes" in await response.text()
            async with session.post(f"{url}/run", json={"code": "print(1)", "limits": {"wall_s": 5}}) as response:
                assert (await response.json())["verdict"] == "OK"

    with_server(body, caps=dataclasses.replace(caps, files_bytes=200))


def test_a_run_above_one_servers_caps_goes_to_one_that_allows_it() -> None:
    async def body(small: str) -> None:
        async def with_both(large: str) -> None:
            sandbox = RemoteSandbox([small, large], token=TOKEN)
            asked = ProgramLimits(wall_s=9)
            assert [(await sandbox.run("print(1)", limits=asked)).verdict for _ in range(3)] == [CodeVerdict.OK] * 3
            assert (await sandbox.run("print(1)")).ok
            assert all(server.rests_until == 0 for server in sandbox._servers), "to refuse is not to fail"
            await sandbox.close()
            only = RemoteSandbox([small], token=TOKEN)
            refused = await only.run("print(1)", limits=asked)
            assert refused.verdict is CodeVerdict.SANDBOX_ERROR and "wall_s 9 is above" in refused.note
            assert (await only.run("print(1)")).ok, "the default limits are nobody's wish"
            await only.close()

        sandbox = await open_sandbox("zygote", workers=1)
        runner = web.AppRunner(make_app(sandbox, token=TOKEN))
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            await with_both(f"http://127.0.0.1:{runner.addresses[0][1]}")
        finally:
            await runner.cleanup()

    with_server(body, caps=Caps(wall_s=3))


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


class RecordingProgram(Program):
    def __init__(self, given: list[bytes]) -> None:
        self.given = given

    async def test(self, stdin: bytes, function: str | None = None, assertions: str | None = None) -> ProgramResult:
        self.given.append(stdin)
        return ProgramResult(CodeVerdict.OK)


class Recording(Sandbox):
    """Runs nothing, and keeps what it was asked to test."""

    about = "nothing"

    def __init__(self) -> None:
        self.given: list[bytes] = []
        self.started = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.result = ProgramResult(CodeVerdict.OK)

    async def run_script(self, script: Script, limits: ProgramLimits) -> ProgramResult:
        self.started += 1
        await self.may_end.wait()
        return self.result

    async def program(self, code: str, *, prelude: str = "", limits: ProgramLimits | None = None) -> Program:
        return RecordingProgram(self.given)


def with_recording(
    body: Callable[[Recording, str, aiohttp.ClientSession], Awaitable[None]],
    caps: Caps = DEFAULT,
    *,
    token: str | None = None,
) -> None:
    async def go() -> None:
        sandbox = Recording()
        async with listening(sandbox, "127.0.0.1", 0, token, caps) as port, aiohttp.ClientSession() as session:
            await body(sandbox, f"http://127.0.0.1:{port}", session)

    asyncio.run(go())


def test_arguments_reach_the_run_unread() -> None:
    """To read them takes many times their size in memory, and as long as the sender likes."""
    given = b"p[" + b"[]," * 1000 + b"not even a literal"

    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        request = {"code": "", "function": "f", "stdin": base64.b64encode(given).decode()}
        async with session.post(f"{url}/run", json=request) as response:
            assert response.status == 200
        assert sandbox.given == [given]

    with_recording(body)


def test_a_request_of_brackets_is_refused_before_it_is_read_as_json() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        for path in ("/run", "/run_code"):
            for data in (b'{"code": [' + b"[]," * 500_000, b'{"code": [' + b'"\\\\",' * 600_000):
                async with session.post(url + path, data=io.BytesIO(data)) as response:
                    assert (response.status, "outside of strings" in await response.text()) == (413, True)
        text = '[{",\\' * 300_000  # in a string they are only text
        data = json.dumps({"code": "", "stdin": text}).encode()
        async with session.post(f"{url}/run_code", data=io.BytesIO(data)) as response:
            assert response.status == 200, await response.text()

    with_recording(body)


def test_without_a_token_no_web_page_and_no_other_name_of_this_machine_is_served() -> None:
    async def statuses(url: str, session: aiohttp.ClientSession, headers: list[dict[str, str]]) -> list[int]:
        found = []
        for given in headers:
            async with session.post(f"{url}/run", data=b'{"code": ""}', headers=given) as response:
                found.append(response.status)
        return found

    web_page = [{"Origin": "http://evil.example"}, {"Origin": "null"}, {"Origin": "http://localhost:3000"}]
    names = [{"Host": name} for name in ("evil.example", "127.0.0.1.evil.example:80", "192.0.2.1", "[2001:db8::1]:80")]
    ours = [{"Host": name} for name in ("localhost", "LOCALHOST:80", "127.0.0.1", "127.0.0.1:80", "[::1]:80", "[::1]")]

    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        assert await statuses(url, session, web_page + names) == [403] * 7
        assert await statuses(url, session, ours) == [200] * 6
        async with session.get(f"{url}/health", headers=names[0]) as response:
            assert response.status == 403

    async def with_token(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        proof = {"Authorization": f"Bearer {TOKEN}"}
        assert await statuses(url, session, [{**proof, **names[0]}, names[0]]) == [200, 401]

    with_recording(body)
    with_recording(with_token, token=TOKEN)


HALF = b"POST /run HTTP/1.1\r\nHost: "


@asynccontextmanager
async def sent(url: str, *texts: bytes) -> AsyncIterator[list[asyncio.StreamReader]]:
    """A connection for each text, on which that is sent and nothing else."""
    host, _, port = url.removeprefix("http://").partition(":")
    readers, writers = [], []
    try:
        for text in texts:
            reader, writer = await asyncio.open_connection(host, int(port))
            readers.append(reader)
            writers.append(writer)
            writer.write(text)
        yield readers
    finally:
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    """Returns only when the server has closed the connection."""
    with suppress(ConnectionError):
        await reader.read()
    return True


def test_half_requests_shut_nobody_out() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        async with sent(url, *[HALF] * 20) as readers:
            async with session.post(f"{url}/run", json={"code": ""}) as response:
                assert response.status == 200
            assert all([await is_closed(reader) for reader in readers[:12]]), "the oldest make room"
            assert not any(reader.at_eof() for reader in readers[13:])

    with_recording(body, Caps(connections=8, header_s=600))


def test_a_busy_connection_is_never_closed_to_make_room() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        async def run() -> int:
            async with session.post(f"{url}/run", json={"code": ""}) as response:
                return response.status

        sandbox.may_end.clear()
        running = [asyncio.create_task(run()) for _ in range(3)]
        while sandbox.started < 3:
            await asyncio.sleep(0.01)
        async with sent(url, HALF, HALF) as readers:
            assert all([await is_closed(reader) for reader in readers])
        sandbox.may_end.set()
        assert await asyncio.gather(*running) == [200] * 3

    with_recording(body, Caps(connections=3, header_s=600))


def test_a_connection_that_does_nothing_is_closed() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        slow = b'POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"code'
        async with sent(url, b"", HALF, whole, slow) as readers:
            assert b" 408 " in await readers[3].readline()
            assert all([await is_closed(reader) for reader in readers])

    with_recording(body, Caps(header_s=0.2, idle_s=0.2, body_s=0.2))


def test_a_client_that_does_not_read_its_answer_is_given_up() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        host, _, port = url.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port))) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            sandbox.result = ProgramResult(CodeVerdict.OK, bytes(16 << 20))
            request = b'POST /run HTTP/1.1\r\nHost: localhost\r\nContent-Length: 12\r\n\r\n{"code": ""}'
            await loop.sock_sendall(client, request)
            while sandbox.started < 1:
                await asyncio.sleep(0.01)
            for _ in range(10):  # longer than an answer may lie there unread, by the clock of the server's own loop
                await asyncio.sleep(0.05)
            received = 0
            with suppress(ConnectionError):
                while data := await loop.sock_recv(client, 1 << 20):
                    received += len(data)
            assert received < 16 << 20

    with_recording(body, Caps(idle_s=0.1))


def test_the_bodies_of_all_requests_together_have_a_cap() -> None:
    async def body(sandbox: Recording, url: str, session: aiohttp.ClientSession) -> None:
        async def run(length: int) -> int:
            async with session.post(f"{url}/run", json={"code": "x" * length}) as response:
                return response.status

        assert await run(3000) == 200, "one alone is never too much"
        sandbox.may_end.clear()
        first = asyncio.create_task(run(600))
        while sandbox.started < 2:
            await asyncio.sleep(0.01)
        assert await run(600) == 503
        sandbox.may_end.set()
        assert (await first, await run(600)) == (200, 200)

    with_recording(body, Caps(held_bytes=1000))


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://127.0.0.1:9, http://127.0.0.1:9"])
def test_a_url_opens_a_remote_sandbox(url: str) -> None:
    async def go() -> None:
        sandbox = await open_sandbox(url)
        assert isinstance(sandbox, RemoteSandbox)
        await sandbox.close()

    asyncio.run(go())
