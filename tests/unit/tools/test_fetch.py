"""Fetching from a site that means harm. Sockets that would leave loopback are recorded and never opened."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import zlib
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from coa.tools.web.fetch import Fetched, FetchFailed
from coa.tools.web.guard import Refused
from support.site import ARTICLE, NAME, Names, Recorder, Site, answer, bombs, endless, moved, silent, trickle


def fetch(
    path: str, pages: dict[str, Any], *, names: Names | None = None, **rules: Any
) -> tuple[Fetched | Exception, Site, Recorder]:
    """What comes of fetching a path of the site, or a whole address."""
    recorder, site = Recorder(), Site(pages)

    async def go() -> Fetched | Exception:
        async with site.running():
            fetcher = site.fetcher(names, recorder, **rules)
            try:
                return await fetcher.get(path if "://" in path else site.url + path)
            except (Refused, FetchFailed) as error:
                return error
            finally:
                await fetcher.close()

    return asyncio.run(go()), site, recorder


def refusal(result: Fetched | Exception) -> str:
    assert isinstance(result, Refused), result
    return str(result)


def failure(result: Fetched | Exception) -> str:
    assert isinstance(result, FetchFailed), result
    return str(result)


def body(result: Fetched | Exception) -> bytes:
    assert isinstance(result, Fetched), result
    return result.body


def test_a_page_comes_whole_and_nothing_of_ours_goes_out() -> None:
    result, site, recorder = fetch("/a", {"/a": answer(ARTICLE, headers={"Set-Cookie": "id=1"})})
    assert body(result) == ARTICLE.encode() and recorder.asked == ["127.0.0.1"]
    sent = site.requests[0].headers
    assert sent["Host"] == f"{NAME}:{site.port}" and not {"Cookie", "Authorization", "Referer"} & set(sent)


def test_cookies_are_not_kept_between_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    site = Site({"/a": moved("/b"), "/b": answer("x", headers={"Set-Cookie": "id=1; Path=/"})})

    async def go() -> None:
        async with site.running():
            fetcher = site.fetcher()
            await fetcher.get(site.url + "/b")
            await fetcher.get(site.url + "/a")
            await fetcher.close()

    asyncio.run(go())
    assert len(site.requests) == 3 and not any("Cookie" in request.headers for request in site.requests)


@pytest.mark.parametrize(
    "where",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://127.0.0.1/",
        "http://127.0.0.1:{port}/b",
        "http://localhost/",
        "http://[::1]/",
        "http://[::ffff:10.0.0.1]/",
        "http://metadata.google.internal/",
        "http://2130706433/",
        "//10.0.0.1/",
        "https://user:pw@example.org/",
        "http://example.org:22/",
        "file:///etc/passwd",
    ],
)
def test_a_redirect_inside_is_refused_and_nothing_connects(where: str) -> None:
    site, recorder = Site({"/b": answer("secret")}), Recorder()

    async def go() -> None:
        async with site.running():
            site.pages["/a"] = moved(where.replace("{port}", str(site.port)))
            fetcher = site.fetcher(recorder=recorder)
            with pytest.raises(Refused, match="redirects to"):
                await fetcher.get(site.url + "/a")
            await fetcher.close()

    asyncio.run(go())
    assert recorder.asked == ["127.0.0.1"] and [request.path for request in site.requests] == ["/a"]


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1"])
def test_a_public_name_that_leads_inside_is_refused(address: str) -> None:
    result, _, recorder = fetch("http://evil.test/", {}, names=Names(evil_test=[[address]]))
    assert "does not lead to a public address" in refusal(result) and recorder.asked == []


def test_one_inside_answer_among_public_ones_is_refused() -> None:
    result, _, recorder = fetch("http://evil.test/", {}, names=Names(evil_test=[["93.184.216.34", "127.0.0.1"]]))
    assert refusal(result) and recorder.asked == []


def test_a_name_is_resolved_once_and_the_connection_goes_to_that_answer() -> None:
    names = Names(evil_test=[["93.184.216.34"], ["127.0.0.1"]])
    result, _, recorder = fetch("http://evil.test/", {}, names=names)
    assert "connection failed" in failure(result), "the test's socket opens nothing out there"
    assert set(recorder.asked) == {"93.184.216.34"} and names.asked == ["evil.test"]


def test_a_name_that_is_rebound_between_two_pages_is_refused() -> None:
    names, recorder = Names(evil_test=[["93.184.216.34"], ["169.254.169.254"]]), Recorder()

    async def go() -> None:
        fetcher = Site({}).fetcher(names, recorder)
        with pytest.raises(FetchFailed):
            await fetcher.get("http://evil.test/")
        with pytest.raises(Refused):
            await fetcher.get("http://evil.test/")
        await fetcher.close()

    asyncio.run(go())
    assert "169.254.169.254" not in recorder.asked


def test_the_socket_gate_holds_even_if_resolution_were_fooled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.tools.web.guard.check_addresses", lambda *_: None)
    result, _, recorder = fetch("http://evil.test/", {}, names=Names(evil_test=[["10.0.0.1"]]))
    assert "10.0.0.1" in str(result) and recorder.asked == []
    assert isinstance(result, Refused | FetchFailed)


def test_the_peer_is_checked_even_if_the_socket_gate_were_fooled(monkeypatch: pytest.MonkeyPatch) -> None:
    site, recorder = Site({"/": answer("secret")}), Recorder()

    async def go() -> None:
        async with site.running():
            fetcher = site.fetcher(recorder=recorder)
            monkeypatch.setattr(fetcher, "_gated_socket", recorder)
            monkeypatch.setattr(fetcher._resolver, "permits", lambda *_: False)
            with pytest.raises(Refused, match="led to an address"):
                await fetcher.get(site.url + "/")
            await fetcher.close()

    asyncio.run(go())
    assert recorder.asked == ["127.0.0.1"] and site.requests == [], "the request itself was never sent"


def test_redirects_are_followed_five_times_and_no_more() -> None:
    pages: dict[str, Any] = {f"/{number}": moved(f"/{number + 1}") for number in range(6)}
    result, _, _ = fetch("/1", {**pages, "/6": answer("there")})
    assert isinstance(result, Fetched) and body(result) == b"there" and result.url.endswith("/6")
    assert len(result.redirects) == 5
    assert "more than 5 times" in failure(fetch("/0", {**pages, "/6": answer("there")})[0])
    assert "more than 5 times" in failure(fetch("/loop", {"/loop": moved("/loop")})[0])
    assert "where" in failure(fetch("/a", {"/a": answer("", status=302)})[0])


@pytest.mark.parametrize("bomb", sorted(bombs()))
def test_bombs_are_refused(bomb: str) -> None:
    assert failure(fetch(bomb, bombs())[0])


def test_a_packed_page_is_unpacked() -> None:
    raw = zlib.compressobj(wbits=-15)
    pages = {
        "/gzip": answer(gzip.compress(ARTICLE.encode()), headers={"Content-Encoding": "gzip"}),
        "/deflate": answer(zlib.compress(ARTICLE.encode()), headers={"Content-Encoding": "deflate"}),
        "/raw": answer(raw.compress(ARTICLE.encode()) + raw.flush(), headers={"Content-Encoding": "deflate"}),
        "/identity": answer(ARTICLE, headers={"Content-Encoding": "identity"}),
    }
    for path in pages:
        assert body(fetch(path, pages)[0]) == ARTICLE.encode(), path
    cut = {"/cut": answer(gzip.compress(ARTICLE.encode())[:-20], headers={"Content-Encoding": "gzip"})}
    assert "cut short" in failure(fetch("/cut", cut)[0])
    lie = {"/lie": answer(ARTICLE, headers={"Content-Encoding": "gzip"})}
    assert "cannot be unpacked" in failure(fetch("/lie", lie)[0])


def test_an_endless_body_ends_at_the_limit() -> None:
    assert "larger than 1,000,000 bytes" in failure(fetch("/e", {"/e": endless}, max_bytes=1_000_000)[0])
    declared = answer("x" * 2000)
    assert "larger than 1,000 bytes" in failure(fetch("/d", {"/d": declared}, max_bytes=1000)[0])


def test_slow_bytes_end_at_the_deadline_and_silence_before_it() -> None:
    assert "within 0.5 seconds" in failure(fetch("/t", {"/t": trickle}, total_s=0.5)[0])
    assert "nothing came for 0.2 seconds" in failure(fetch("/s", {"/s": silent}, silence_s=0.2, total_s=30)[0])


def test_a_redirect_with_an_endless_body_is_not_read() -> None:
    async def endless_redirect(request: Any) -> Any:
        from aiohttp import web

        response = web.StreamResponse(status=302, headers={"Location": "/b"})
        await response.prepare(request)
        while True:
            await response.write(b"x" * 65536)

    result, _, _ = fetch("/a", {"/a": endless_redirect, "/b": answer("there")}, total_s=10)
    assert body(result) == b"there"


@pytest.mark.parametrize(("status", "transient"), [(404, False), (403, False), (429, True), (503, True)])
def test_other_answers_are_failures_with_their_status(status: int, transient: bool) -> None:
    result, _, _ = fetch("/a", {"/a": answer("no", status=status)})
    assert str(status) in failure(result)
    assert isinstance(result, FetchFailed) and (result.status, result.transient) == (status, transient)


def test_an_unknown_host_is_told_as_such() -> None:
    assert "nowhere.test is not known" in failure(fetch("http://nowhere.test/", {})[0])


def test_checking_refuses_as_fetching_would() -> None:
    names = Names(evil_test=[["10.0.0.1"]], good_test=[["93.184.216.34"]])
    fetcher = Site({}).fetcher(names)
    assert asyncio.run(fetcher.check("http://good.test/a#b")) == "http://good.test/a"
    for url in ("http://evil.test/", "http://10.0.0.1/", "ftp://good.test/"):
        with pytest.raises(Refused):
            asyncio.run(fetcher.check(url))
    with pytest.raises(FetchFailed):
        asyncio.run(fetcher.check("http://nowhere.test/"))


def test_certificates_are_checked_and_the_name_is_sent_to_the_pinned_address(tmp_path: Path) -> None:
    seen: list[str | None] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(self_signed(tmp_path, NAME))
    context.sni_callback = lambda _, name, __: seen.append(name)

    async def go() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        site = Site({})
        site.port = port
        fetcher = site.fetcher()
        with pytest.raises(FetchFailed, match="certificate"):
            await fetcher.get(f"https://{NAME}:{port}/")
        await fetcher.close()
        server.close()

    asyncio.run(go())
    assert seen == [NAME]


def self_signed(folder: Path, name: str) -> Path:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path = folder / "both.pem"
    path.write_bytes(secret + made.public_bytes(serialization.Encoding.PEM))
    return path
