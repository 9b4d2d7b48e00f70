"""Addresses with a user and a password, the keys that servers get, and addresses that are none."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from coa.addresses import is_private, without_passwords
from coa.cli import app
from coa.errors import ModelError
from coa.folder import claim
from coa.http import Patience
from coa.models.connect import connect
from coa.models.server import key_for
from coa.trajectory import Trajectory
from support.runs import run
from support.servers import FakeServer, in_thread

QUICK = Patience(attempts=2, timeout_s=5, backoff_s=0.01)
PASSWORD = "s3cret/word"
BASIC = "Basic " + base64.b64encode(f"ada:{PASSWORD}".encode()).decode()


class Guarded(FakeServer):
    """Serves those who know the password, and answers others with what they sent."""

    def __init__(self) -> None:
        super().__init__(lambda body: "<answer>Ada</answer>", owner="somebody")
        self.sent: list[str | None] = []

    async def models(self, request: web.Request) -> web.Response:
        self._check(request)
        return await super().models(request)

    async def _body(self, request: web.Request) -> Any:
        self._check(request)
        return await super()._body(request)

    def _check(self, request: web.Request) -> None:
        self.sent.append(request.headers.get("Authorization"))
        if self.sent[-1] != BASIC:
            raise web.HTTPUnauthorized(text=f"wrong: {self.sent[-1]}, not ada:{PASSWORD} or {PASSWORD}")


def with_password(url: str, password: str = "s3cret%2Fword") -> str:
    return url.replace("http://", f"http://ada:{password}@")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Guarded:
    for name in ("COA_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return Guarded()


@pytest.fixture
def url(server: Guarded) -> Iterator[str]:
    with in_thread(server) as address:
        yield address


def ask(url: str, **options: Any) -> Trajectory:
    async def go() -> Trajectory:
        model = await connect(url, patience=QUICK, **options)
        try:
            return await run("Who?", model, {}, "nano")
        finally:
            await model.close()

    return asyncio.run(go())


def coa(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def hides_the_password(text: str) -> bool:
    return not any(form in text for form in (PASSWORD, "s3cret", BASIC.removeprefix("Basic ")))


@pytest.mark.parametrize("key", [None, "sk-key"])
def test_the_password_in_an_address_is_basic_authentication_and_comes_before_a_key(
    key: str | None, url: str, server: Guarded, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if key:
        monkeypatch.setenv("COA_API_KEY", key)
    made = ask(with_password(url))
    assert made.answer == "Ada" and set(server.sent) == {BASIC}
    assert hides_the_password(made.to_json()) and hides_the_password(caplog.text)


def test_a_refusal_does_not_show_the_password_that_the_server_repeats(url: str) -> None:
    server_said = with_password(url, "wr0ng%2Fword")
    with pytest.raises(ModelError, match="answers 401") as refused:
        ask(server_said)
    assert "wr0ng" not in str(refused.value)


def test_no_file_and_no_output_of_an_evaluation_has_a_password(url: str, tmp_path: Path) -> None:
    rows = [{"id": str(n), "question": "Who?", "answer": "Ada"} for n in range(2)]
    (tmp_path / "exam.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out, model = tmp_path / "out", with_password(url)
    common = ("--model", model, "--set", f"judge={model}", "--set", "run.profile=nano", "--out", out)
    for more in ((), ("--dry-run",)):
        done = coa("eval", tmp_path / "exam.jsonl", *common, *more)
        assert done.exit_code in (0, 1) and hides_the_password(done.output + done.stderr + str(done.exception))
    written = [path for path in out.rglob("*") if path.is_file()]
    assert any(path.name == "config.json" for path in written)
    for path in written:
        assert hides_the_password(path.read_bytes().decode("latin-1")), path


def test_a_run_folder_goes_on_although_its_config_has_no_password(tmp_path: Path) -> None:
    record = {"url": f"http://ada:{PASSWORD.replace('/', '%2F')}@host:8000/v1", "more": ["see https://x:y@z/"]}
    claim(tmp_path, "teach", record)
    assert json.loads((tmp_path / "config.json").read_text()) == {
        "stage": "teach", "url": "http://host:8000/v1", "more": ["see https://z/"],
    }  # fmt: skip
    claim(tmp_path, "teach", record)


def test_only_addresses_lose_what_stands_before_an_at_sign() -> None:
    kept = 'mail me@here.org, http://host/@user, "https://host/a@b", a@b http://host'
    assert without_passwords(kept) == kept
    assert without_passwords("coa run --model HTTPS://u:p@h/v1 x@y") == "coa run --model HTTPS://h/v1 x@y"


@pytest.mark.parametrize(
    ("coa_key", "openai_key", "name", "url", "sent"),
    [
        ("a", "b", "COA_API_KEY", "https://api.example.org/v1", "a"),
        ("a", "b", "COA_API_KEY", "http://api.example.org/v1", "a"),
        ("", "b", "COA_API_KEY", "https://api.example.org/v1", "b"),
        (None, "b", "COA_API_KEY", "http://127.0.0.1:8000", "b"),
        (None, "b", "COA_API_KEY", "http://localhost:8000", "b"),
        (None, "b\n", "COA_API_KEY", "http://[::1]:8000", "b"),
        (None, "b", "COA_API_KEY", "http://api.example.org/v1", None),
        (None, "b", "COA_API_KEY", "http://10.0.0.5:8000", None),
        ("a", "b", "MY_KEY", "https://api.example.org/v1", None),
        (None, None, "COA_API_KEY", "https://api.example.org/v1", None),
    ],
)
def test_the_key_for_openai_is_used_if_no_other_is_set_and_nobody_else_can_read_it(
    coa_key: str | None, openai_key: str | None, name: str, url: str, sent: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in (("COA_API_KEY", coa_key), ("OPENAI_API_KEY", openai_key)):
        monkeypatch.delenv(variable, raising=False)
        if value is not None:
            monkeypatch.setenv(variable, value)
    assert key_for(url, name) == sent


def test_a_key_with_a_line_break_is_a_plain_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_API_KEY", "one\ntwo")
    with pytest.raises(ModelError, match="the key in COA_API_KEY has a line break") as refused:
        key_for("http://127.0.0.1:8000", "COA_API_KEY")
    assert "two" not in str(refused.value)


def test_the_key_for_openai_reaches_a_server_on_this_machine(
    url: str, server: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    with pytest.raises(ModelError, match="answers 401") as refused:
        ask(url)
    assert server.sent == ["Bearer sk-openai"] and "sk-openai" not in str(refused.value)
    assert "COA_API_KEY" in str(refused.value)


def test_an_encrypted_address_is_private_and_a_plain_one_is_not() -> None:
    assert is_private("https://u:p@host") and not is_private("http://127.0.0.1.example.org")


@pytest.mark.parametrize(
    "url",
    ["http://", "https:///v1", "http://:8000", "http://host:port/v1", "http://[", "http://ada:s3cret/word@host/v1"],
)
def test_what_is_no_address_is_an_error_at_once(url: str) -> None:
    done = coa("run", "Who?", "--model", url)
    assert isinstance(done.exception, ModelError)
    assert "is not the address of a server" in done.exception.message and "http://127.0.0.1:8000" in str(done.exception)
    assert hides_the_password(str(done.exception))
