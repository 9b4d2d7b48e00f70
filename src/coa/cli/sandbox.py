"""`coa sandbox`: run code behind walls, here or for other machines."""

from __future__ import annotations

import os
import signal
from typing import Annotated

import typer

sandbox = typer.Typer(
    help="Serve the sandbox to other machines, or see which isolation there is.", no_args_is_help=True
)

Kind = Annotated[
    str | None,
    typer.Option(help="auto, zygote, nsjail, bwrap, runsc, unsafe, or addresses of sandbox servers, with commas."),
]
Unsafe = Annotated[bool, typer.Option("--unsafe", help="Run code WITHOUT isolation where none is possible.")]


@sandbox.command("serve")
def serve(
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    token_env: Annotated[
        str | None, typer.Option(help="Environment variable that holds the token which requests must bring.")
    ] = None,
    kind: Kind = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Runs at once; default: one for each core.")] = None,
    unsafe: Unsafe = False,
) -> None:
    """Run code for others: POST /run, SandboxFusion's POST /run_code, GET /health."""
    import asyncio
    import ipaddress

    from coa.tools.sandbox import SandboxError, open_sandbox
    from coa.tools.sandbox.server import serve as serve_until_cancelled

    token = os.environ.get(token_env) if token_env else None
    if token_env and not token:
        raise SandboxError(f"{token_env} is not set", cure=f"export {token_env}=$(openssl rand -hex 16)")
    local = host == "localhost" or (_is_address(host) and ipaddress.ip_address(host).is_loopback)
    if token is None and not local:
        raise SandboxError(
            f"a sandbox on {host} without a token would run anybody's code",
            cure="add --token-env NAME with the token in that environment variable, or listen on 127.0.0.1",
        )

    async def go() -> None:
        opened = await open_sandbox(kind, workers=workers, unsafe=unsafe)

        def ready(bound: int) -> None:
            typer.echo(f"http://{host}:{bound}")
            typer.echo(f"{opened.about}; Ctrl-C ends it", err=True)

        running = asyncio.ensure_future(serve_until_cancelled(opened, host, port, token, ready))
        for stop in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(stop, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            pass
        except OSError as error:
            raise SandboxError(
                f"cannot listen on {host}:{port}: {error.strerror}", cure="take another --port"
            ) from error

    asyncio.run(go())


@sandbox.command("show")
def show(kind: Kind = None, unsafe: Unsafe = False) -> None:
    """Say which isolation is in force here."""
    import asyncio

    from coa.tools.sandbox import open_sandbox

    async def go() -> str:
        opened = await open_sandbox(kind, unsafe=unsafe)
        try:
            return opened.about
        finally:
            await opened.close()

    typer.echo(asyncio.run(go()))


def _is_address(host: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
