"""The pages and files of the web application, and the headers that keep what they show from running.

Whatever a page shows may have been written by a stranger: questions, answers, web pages, names. So scripts come from
files only, and the browser refuses to make markup or code out of any text (Trusted Types).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from importlib import resources
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from coa.version import __version__

HEADERS: Final[Mapping[str, str]] = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""For every page and file; the server adds `nosniff` to all its answers. `no-cache` lets a browser keep a file, but ask
whether it has changed."""

_TYPES: Final = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


class _File(NamedTuple):
    body: bytes
    media_type: str
    tag: str


def page(template: str, **values: str) -> Response:
    """A template of `templates/` as a response. Values are escaped."""
    return HTMLResponse(rendered(template, **values), headers=dict(HEADERS))


def rendered(template: str, **values: str) -> str:
    return _templates().get_template(template).render(version=__version__, **values)


def static_files() -> Mapping[str, bytes]:
    """Scripts, styles and pictures by their names, for a folder that another server shows."""
    return {name: file.body for name, file in _files().items()}


def static_routes() -> list[BaseRoute]:
    """Scripts, styles and pictures: all files of `static/`, by their names."""
    return [Route("/static/{name}", _static)]


async def _static(request: Request) -> Response:
    file = _files().get(request.path_params["name"])
    if file is None:
        raise HTTPException(404)
    headers = {**HEADERS, "ETag": file.tag}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)


@cache
def _templates() -> Environment:
    return Environment(loader=PackageLoader("coa.web"), autoescape=True, undefined=StrictUndefined)


@cache
def _files() -> dict[str, _File]:
    found = {}
    for file in resources.files("coa.web").joinpath("static").iterdir():
        kind = _TYPES.get(file.name[file.name.rfind(".") :])
        if kind is not None:
            body = file.read_bytes()
            found[file.name] = _File(body, kind, f'"{blake2b(body, digest_size=12).hexdigest()}"')
    return found
