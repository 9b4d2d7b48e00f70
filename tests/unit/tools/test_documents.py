"""Text out of bytes of any kind, and a parser that may fail without taking anything along."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from coa.tools.documents import Document, Parsers, Unreadable
from coa.tools.documents.charset import decode
from coa.tools.documents.sniff import FileKind, image_type, kind_of
from support import papers
from support.site import ARTICLE


@pytest.fixture(scope="module")
def parsers() -> Iterator[Parsers]:
    pool = Parsers(processes=2)
    yield pool
    pool.close()


def read(parsers: Parsers, body: bytes, declared: str = "", *, name: str = "", url: str = "") -> Document:
    kind = kind_of(body, declared)
    return asyncio.run(parsers.read(kind, body, declared=declared, name=name, url=url))


def test_the_kind_is_what_the_bytes_say_not_what_the_server_says() -> None:
    assert kind_of(papers.pdf("x"), "text/html") is FileKind.PDF
    assert kind_of(papers.docx(), "application/octet-stream") is FileKind.DOCX
    assert kind_of(papers.xlsx()) is FileKind.XLSX
    assert kind_of(papers.pptx()) is FileKind.PPTX
    assert kind_of(papers.archive(a_txt=b"x")) is FileKind.ZIP
    assert kind_of(papers.PNG, "text/html") is FileKind.IMAGE and image_type(papers.PNG) == "image/png"
    assert kind_of(ARTICLE.encode(), "") is FileKind.HTML
    assert kind_of(ARTICLE.encode(), "text/plain") is FileKind.HTML
    assert kind_of(b'{"a": 1}', "application/json") is FileKind.TEXT
    assert kind_of(b"\x7fELF\x00\x00\x00", "text/html") is FileKind.UNKNOWN
    assert kind_of(b"<svg></svg>", "video/mp4") is FileKind.UNKNOWN


def test_a_page_gives_main_text_title_date_and_links(parsers: Parsers) -> None:
    page = read(parsers, ARTICLE.encode(), "text/html", url="http://site.test/vell")
    assert page.title == "The Lighthouse of Vell" and page.date == "2021-03-04"
    assert "built in 1871 by the engineer Orla Finch" in page.text and "Menu entry" not in page.text
    assert [(link.text, link.url) for link in page.links] == [("twenty-two miles", "http://site.test/range")]


def test_a_list_of_links_is_read_as_a_whole(parsers: Parsers) -> None:
    items = "".join(f"<li><a href='/{n}'>Harbour number {n} of the northern coast</a></li>" for n in range(20))
    page = read(parsers, f"<html><body><ul>{items}</ul></body></html>".encode(), "text/html", url="http://s.test/")
    assert "Harbour number 19" in page.text and len(page.links) == 20


def test_an_empty_page_is_an_empty_text(parsers: Parsers) -> None:
    assert read(parsers, b"<html><script>app()</script></html>", "text/html").text == ""
    assert read(parsers, b"", "text/html").text == ""


@pytest.mark.parametrize(
    ("body", "declared"),
    [
        ("Größe: 41 m, naïve café".encode(), "text/html; charset=utf-8"),
        ("Größe: 41 m, naïve café".encode(), "text/html; charset=iso-8859-1"),
        ("Größe: 41 m, naïve café".encode(), "text/html"),
        ("Größe: 41 m, naïve café".encode("latin-1"), "text/html; charset=latin1"),
        ("Größe: 41 m, naïve café".encode("cp1252"), "text/html; charset=us-ascii"),
        ("Größe: 41 m, naïve café".encode("utf-16"), "text/html; charset=utf-8"),
        (b"<meta charset='windows-1252'>" + "Größe: 41 m, naïve café".encode("cp1252"), "text/html"),
        (b"<meta charset='windows-1252'>" + "Größe: 41 m, naïve café".encode("cp1252"), "text/html; charset=nonsense"),
        (b"\xef\xbb\xbf" + "Größe: 41 m, naïve café".encode(), "text/html; charset=koi8-r"),
    ],
)
def test_wrong_charsets_do_not_spoil_the_text(body: bytes, declared: str) -> None:
    assert decode(body, declared).endswith("Größe: 41 m, naïve café")


def test_foreign_charsets_are_read() -> None:
    russian = "Маяк построен в 1871 году на северном мысу острова, и его свет виден издалека."
    assert decode(russian.encode("koi8-r"), "text/html; charset=koi8-r") == russian
    japanese = "灯台は千八百七十一年に建てられた。"
    assert decode(japanese.encode("iso2022_jp"), "text/html; charset=iso-2022-jp") == japanese
    assert decode(japanese.encode("shift_jis"), "text/html; charset=shift_jis") == japanese


def test_charsets_that_are_no_charsets_are_not_used() -> None:
    for name in ("zlib", "base64", "rot13", "utf-7", "idna", "punycode", "unicode_escape"):
        assert decode(b"+ADw-b+AD4- \\x41", f"text/html; charset={name}").startswith("+ADw-b"), name


def test_pdf_docx_xlsx_pptx_and_csv_give_their_text(parsers: Parsers) -> None:
    both = read(parsers, papers.pdf("The tide turns", "at nine")).text
    assert "[page 1]\nThe tide turns" in both and "[page 2]\nat nine" in both
    assert read(parsers, papers.docx()).text == '# Minutes\n\nThe council met on Tuesday.\n\nVote,"7, to 2"'
    assert read(parsers, papers.xlsx()).text == "# sheet Towers\nname,height\nVell,41\n\n# sheet Nothing\n(empty)"
    assert read(parsers, papers.pptx()).text == "[slide 1]\nHarbour\nDepth nine metres\nnotes: mention the tide"
    assert read(parsers, b"a,b\r\n1,2\r\n").text == "a,b\n1,2\n"
    assert read(parsers, b'{"a": [1]}', name="x.json").text == '{"a": [1]}'


def test_an_archive_gives_its_list_and_the_text_of_its_members(parsers: Parsers) -> None:
    inner = papers.archive(deep_txt=b"hidden")
    text = read(
        parsers, papers.archive(a_txt=b"first", b__c_pdf=papers.pdf("second"), d_bin=b"\x00\x01", e_zip=inner)
    ).text
    assert "a.txt (5 bytes)" in text and "# a.txt\nfirst" in text and "second" in text and "e.zip (" in text
    assert "hidden" not in text and "# d.bin\n(cannot be read" in text


def test_bombs_and_damage_are_told(parsers: Parsers) -> None:
    for body, why in (
        (papers.archive(zeros_txt=b"\x00" * (64 << 20)), "unpacks to"),
        (papers.archive(**{"[Content_Types]_xml": b"", "word__document_xml": b" " * (64 << 20)}), "unpacks to"),
        (papers.pdf("x")[:60], "damaged"),
        (papers.docx()[:400], "ZIP"),
        (b"PK\x03\x04 nonsense", "ZIP"),
        (papers.PNG, "image"),
        (b"\x00\x01\x02", "no readable text"),
    ):
        with pytest.raises(Unreadable, match=why):
            read(parsers, body)


def test_a_pdf_without_text_says_so(parsers: Parsers) -> None:
    scanned = read(parsers, papers.pdf(""))
    assert scanned.text == "" and "no text layer" in scanned.note


def test_a_parser_that_takes_too_long_is_ended_and_the_next_job_runs() -> None:
    pool = Parsers(processes=1, seconds=2.0)
    heavy = ("<html><body>" + "<p>word word word</p><table><tr><td>cell</td></tr></table>" * 120_000).encode()
    started = time.monotonic()
    with pytest.raises(Unreadable, match="2 seconds"):
        asyncio.run(pool.read(FileKind.HTML, heavy))
    assert time.monotonic() - started < 10
    assert asyncio.run(pool.read(FileKind.TEXT, b"fine")).text == "fine"
    pool.close()


def test_a_parser_that_needs_too_much_memory_fails_alone() -> None:
    pool = Parsers(processes=1, memory_bytes=384 << 20)
    with pytest.raises(Unreadable, match=r"memory|crashed"):
        asyncio.run(pool.read(FileKind.TEXT, b"word " * (32 << 20)))
    assert asyncio.run(pool.read(FileKind.TEXT, b"fine")).text == "fine"
    pool.close()


def test_a_worker_that_died_in_between_is_replaced(parsers: Parsers) -> None:
    read(parsers, b"one")
    for pid in parsers.pool.pids:
        os.kill(pid, signal.SIGKILL)
    assert read(parsers, b"two").text == "two"


def test_a_cancelled_job_ends_its_worker() -> None:
    pool = Parsers(processes=1, seconds=60.0)
    heavy = ("<html><body>" + "<p>word word word</p><table><tr><td>cell</td></tr></table>" * 120_000).encode()

    async def go() -> None:
        await pool.read(FileKind.TEXT, b"warm")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await pool.read(FileKind.HTML, heavy)

    asyncio.run(go())
    started = time.monotonic()
    assert asyncio.run(pool.read(FileKind.TEXT, b"fine")).text == "fine"
    assert time.monotonic() - started < 20, "the thread does not wait for the abandoned job"
    pool.close()


def test_workers_see_none_of_our_environment(parsers: Parsers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COA_API_KEY", "secret")
    read(parsers, b"x")
    for pid in parsers.pool.pids:
        with open(f"/proc/{pid}/environ", "rb") as file:
            assert b"secret" not in file.read()
    assert os.environ["COA_API_KEY"] == "secret"


def test_workers_have_no_network_where_the_kernel_allows_that(parsers: Parsers) -> None:
    trial = "import ctypes, sys; sys.exit(ctypes.CDLL(None).unshare(0x50000000) != 0)"
    if subprocess.run([sys.executable, "-c", trial]).returncode:
        pytest.skip("no user namespaces here")
    read(parsers, b"x")
    for pid in parsers.pool.pids:
        assert os.readlink(f"/proc/{pid}/ns/net") != os.readlink("/proc/self/ns/net")


def test_many_documents_at_once_each_get_their_own_text(parsers: Parsers) -> None:
    async def go() -> list[Document]:
        return await asyncio.gather(*(parsers.read(FileKind.TEXT, f"text {n}".encode()) for n in range(50)))

    assert [document.text for document in asyncio.run(go())] == [f"text {n}" for n in range(50)]
