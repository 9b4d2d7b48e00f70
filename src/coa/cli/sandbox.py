"""`coa sandbox`: run code in isolation, here or for other machines."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

from coa.cli import options
from coa.cli.output import echo, echo_json

sandbox = typer.Typer(help="Serve the sandbox to other machines, or show its isolation.", no_args_is_help=True)

Kind = Annotated[
    str | None,
    typer.Option(
        help="Isolation: auto, zygote, nsjail, bwrap, runsc, unsafe, or comma-separated URLs of sandbox servers."
    ),
]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Run code WITHOUT isolation if none is possible.")]


@sandbox.command("serve")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the token that requests must send.")
    ] = None,
    kind: Kind = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Number of runs at a time; default: one per core.")] = None,
    unsafe: Unsafe = False,
    max_wall_s: Annotated[float, typer.Option(help="Wall time that a request may ask for at most.")] = 120,
    max_cpu_s: Annotated[float, typer.Option(help="CPU time that a request may ask for at most.")] = 120,
    max_memory_mb: Annotated[int, typer.Option(help="Memory that a request may ask for at most, per worker.")] = 4096,
    max_disk_mb: Annotated[int, typer.Option(help="Disk space that a request may ask for at most.")] = 1024,
    max_processes: Annotated[int, typer.Option(help="Processes and threads that a request may ask for at most.")] = 256,
    max_output_mb: Annotated[float, typer.Option(help="Size of the largest output of a program, per stream.")] = 64,
    max_code_mb: Annotated[float, typer.Option(help="Size of the largest program, with its prelude.")] = 1,
    max_stdin_mb: Annotated[float, typer.Option(help="Size of the largest standard input.")] = 16,
    max_files_mb: Annotated[float, typer.Option(help="Largest sum of the files of a request.")] = 32,
    max_waiting: Annotated[
        int, typer.Option(help="Number of requests at a time; each test of a program is one.")
    ] = 1000,
    max_programs: Annotated[int, typer.Option(help="Number of programs that stay compiled between tests.")] = 32,
    max_connections: Annotated[
        int, typer.Option(help="Number of open connections; above it, the one idle for longest is closed.")
    ] = 1100,
) -> None:
    """Run code for other machines: POST /run, SandboxFusion's POST /run_code, GET /health.

    A request above a cap (--max-...) gets 400, or 413 where it is too large, with the name of the cap.
    """
    import asyncio
    import ipaddress

    from coa.sandbox import SandboxError, open_sandbox
    from coa.sandbox.base import MB
    from coa.sandbox.caps import Caps
    from coa.sandbox.server import serve as serve_until_cancelled

    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise SandboxError(f"{token_env} is not set", hint=f"export {token_env}=$(openssl rand -hex 16)")
    try:
        local = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = False
    if token is None and not local:
        raise SandboxError(
            f"a sandbox on {host} without a token would run anybody's code",
            hint="add --token-env NAME with the token in that environment variable, or listen on 127.0.0.1",
        )
    caps = Caps(
        wall_s=max_wall_s,
        cpu_s=max_cpu_s,
        memory_mb=max_memory_mb,
        disk_mb=max_disk_mb,
        processes=max_processes,
        output_bytes=int(max_output_mb * MB),
        code_bytes=int(max_code_mb * MB),
        stdin_bytes=int(max_stdin_mb * MB),
        files_bytes=int(max_files_mb * MB),
        waiting=max_waiting,
        programs=max_programs,
        connections=max_connections,
    )

    async def go() -> None:
        opened = await open_sandbox(kind, workers=workers, unsafe=unsafe)

        def ready(bound: int) -> None:
            echo(f"http://{host}:{bound}")
            echo(f"{opened.about}; Ctrl-C ends it", err=True)

        running = asyncio.ensure_future(serve_until_cancelled(opened, host, port, token, ready, caps))
        for stop in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(stop, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            pass
        except OSError as error:
            message = f"cannot listen on {host}:{port}: {error.strerror}"
            raise SandboxError(message, hint="choose another --port") from error

    asyncio.run(go())


@sandbox.command("show")
def show(kind: Kind = None, unsafe: Unsafe = False, as_json: options.Json = False) -> None:
    """Show which isolation is in force on this machine."""
    import asyncio

    from coa.sandbox import open_sandbox

    async def go() -> str:
        opened = await open_sandbox(kind, unsafe=unsafe)
        try:
            return opened.about
        finally:
            await opened.close()

    about = asyncio.run(go())
    if as_json:
        import orjson

        echo_json(orjson.dumps({"isolation": about}))
    else:
        echo(about)
