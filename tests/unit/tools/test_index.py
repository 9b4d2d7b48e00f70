"""The local index: what goes in is found, bad rows are named, and half an index is never taken for one."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from typer.testing import CliRunner

from coa.cli import app
from coa.errors import StoreError
from coa.tools.index import Index, IndexedDocument, Sources, build, snippet, split
from coa.tools.index.manifest import LANGUAGES, read_manifest

invoke = CliRunner().invoke
NQ = Path(__file__).parents[4] / "shared" / "data" / "nq.jsonl"


def found(index: Index, query: str, k: int = 5) -> list[str]:
    return [hit.passage.id for hit in index.search(query, k)]


def test_words_are_found_by_their_stem_accents_and_case_aside(tmp_path: Path) -> None:
    build(
        [IndexedDocument("a", "Röntgen", "He discovered rays."), IndexedDocument("b", "", "Nothing.")], tmp_path / "i"
    )
    index = Index(tmp_path / "i")
    assert found(index, "RONTGEN") == ["a"] and found(index, "discovery of a ray") == ["a"]
    assert found(index, "") == found(index, "?! | ()") == []


@pytest.mark.parametrize("language", ["none", *LANGUAGES])
def test_every_language_can_be_indexed(tmp_path: Path, language: str) -> None:
    build(
        [IndexedDocument("a", "Titel", "Das Wort steht hier."), IndexedDocument("b", "", "x")],
        tmp_path / "i",
        language=language,
    )
    assert found(Index(tmp_path / "i"), "das Wort") == ["a"]


def test_a_name_made_of_stop_words_is_found(tmp_path: Path) -> None:
    build([IndexedDocument("a", "The Who", "A band of the sixties."), IndexedDocument("b", "x", "y")], tmp_path / "i")
    assert found(Index(tmp_path / "i"), "the who") == ["a"]


@pytest.mark.parametrize(
    "query", ['"unclosed', "a AND", "title:x", "(((", "x^9", "-a", "*", "\x00", "\ud800", "a " * 10_000]
)
def test_no_query_is_a_syntax_error(tmp_path: Path, query: str) -> None:
    build([IndexedDocument("a", "t", "a x")], tmp_path / "i")
    Index(tmp_path / "i").search(query)


def test_equal_passages_come_in_the_order_of_their_ids_in_every_build(tmp_path: Path) -> None:
    documents = [IndexedDocument(f"{n:02}", "same", "equal words") for n in range(12)]
    for turn in range(3):
        random.Random(turn).shuffle(documents)
        build(documents, tmp_path / str(turn))
        assert found(Index(tmp_path / str(turn)), "equal", 3) == ["00", "01", "02"]


def test_an_index_may_be_searched_from_many_threads(tmp_path: Path) -> None:
    build([IndexedDocument(str(n), f"word{n}", f"text of number {n}") for n in range(500)], tmp_path / "i")
    index = Index(tmp_path / "i")
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda n: found(index, f"word{n}", 1), range(500))) == [[str(n)] for n in range(500)]


# ---- passages

WORDS = st.lists(st.sampled_from(["a", "bb", "c.", "d!", "\n\n", "\n", "e? "]), max_size=400).map(" ".join)


@settings(max_examples=200, deadline=None)
@given(WORDS, st.integers(1, 30))
def test_cutting_loses_no_word_and_keeps_to_the_limit(text: str, words: int) -> None:
    passages = list(split(IndexedDocument("d", "t", text), words))
    assert [word for passage in passages for word in passage.text.split()] == text.split()
    assert all(len(passage.text.split()) <= words for passage in passages)
    assert len({passage.id for passage in passages}) == len(passages)


def test_texts_are_cut_between_paragraphs_then_sentences() -> None:
    text = "One two three. Four five six.\n\nSeven eight nine ten."
    assert [p.text for p in split(IndexedDocument("d", "t", text), 6)] == [
        "One two three. Four five six.",
        "Seven eight nine ten.",
    ]
    assert [p.text for p in split(IndexedDocument("d", "t", "One two three. Four five."), 3)] == [
        "One two three.",
        "Four five.",
    ]
    assert [p.id for p in split(IndexedDocument("d", "t", "a b c d"), 2)] == ["d#0", "d#1"]
    assert [p.id for p in split(IndexedDocument("d", "t", "a b c d"), 0)] == ["d"]


def test_a_snippet_shows_where_the_words_are() -> None:
    text = "start " * 200 + "the north light was first lit in 1871 " + "end " * 200
    shown = snippet(text, ["light", "1871"], 120)
    assert "north light was first lit in 1871" in shown and shown.startswith("... ") and len(shown) < 140
    assert snippet("short", ["zebra"]) == "short"


# ---- sources


def test_jsonl_parquet_and_folders_make_the_same_kind_of_index(tmp_path: Path) -> None:
    rows = [
        {"id": 7, "title": "Ada", "text": "program", "url": "https://a.example/", "date": "1843"},
        {"_id": "x", "contents": '"Babbage"\nengine'},
        {"content": "only words"},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress((tmp_path / "a.jsonl").read_bytes()))
    parquet.write_table(
        pa.Table.from_pylist([{"id": "p", "title": "Parquet", "text": "columns"}]), tmp_path / "c.parquet"
    )
    pages = tmp_path / "site" / "deep"
    pages.mkdir(parents=True)
    (pages / "page.html").write_text("<html><head><title>Lamp</title></head><body><p>A tall tower.</p></body></html>")
    (pages / "note.md").write_text("intro\n# Heading\nbody")
    (pages / "plain.txt").write_bytes(b"caf\xe9 text")
    (pages / ".hidden.txt").write_text("no")
    (pages / "image.png").write_bytes(b"no")
    paths = [tmp_path / name for name in ("a.jsonl", "b.jsonl.gz", "c.parquet", "site")]
    sources = Sources(paths, base_url="https://site.example")
    documents = list(sources)
    assert documents[:6] == [
        IndexedDocument("7", "Ada", "program", "https://a.example/", "1843"),
        IndexedDocument("x", "Babbage", "engine"),
        IndexedDocument("a.jsonl:3", "", "only words"),
        IndexedDocument("7", "Ada", "program", "https://a.example/", "1843"),
        IndexedDocument("x", "Babbage", "engine"),
        IndexedDocument("b.jsonl.gz:3", "", "only words"),
    ]
    assert documents[6] == IndexedDocument("p", "Parquet", "columns")
    by_id = {document.id: document for document in documents[7:]}
    assert set(by_id) == {"deep/page.html", "deep/note.md", "deep/plain.txt"}
    assert by_id["deep/page.html"].title == "Lamp" and "A tall tower." in by_id["deep/page.html"].text
    assert by_id["deep/page.html"].url == "https://site.example/deep/page.html"
    assert by_id["deep/note.md"].title == "Heading" and by_id["deep/plain.txt"].title == "plain"
    assert sources.read_bytes == sources.total_bytes and not sources.bad


def test_bad_rows_are_counted_and_named_and_the_rest_is_indexed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines = [
        '{"text": "good one"}',
        "{broken",
        "[1]",
        '{"title": "no text"}',
        '{"text": 5}',
        '{"text": " "}',
        '{"text": "\\ud800"}',
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(lines) + "\n" + "{broken\n" * 10)
    (tmp_path / "cut.jsonl.gz").write_bytes(gzip.compress(b'{"text": "x"}\n' * 1000)[:-20])
    (tmp_path / "no.parquet").write_bytes(b"not parquet")
    manifest = build(Sources([tmp_path]), tmp_path / "i")
    assert manifest.left_out == {
        "it is not JSON": 12,  # half a character included
        "it is not a JSON object": 1,
        "it has none of the fields text, contents, content, passage, body": 1,
        "its text or title is not a string": 1,
        "its text is empty": 1,
        "the file cannot be read to its end": 2,
    }
    assert found(Index(tmp_path / "i"), "good") == ["a.jsonl:1"]
    assert "a.jsonl, line 2: it is not JSON" in caplog.text and caplog.text.count("left out") <= 7


def test_nothing_to_index_is_an_error_that_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n{}\n")
    with pytest.raises(StoreError, match="nothing to index: 2 times it has none of the fields"):
        build(Sources([tmp_path / "a.jsonl"]), tmp_path / "i")
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]
    (tmp_path / "empty").mkdir()
    for wrong in (tmp_path / "empty", tmp_path / "none", Path(sys.executable)):
        with pytest.raises(StoreError):
            Sources([wrong])


# ---- all or nothing


def test_an_index_is_replaced_only_when_told_and_other_folders_never(tmp_path: Path) -> None:
    build([IndexedDocument("a", "", "old")], tmp_path / "i")
    with pytest.raises(StoreError, match="--force"):
        build([IndexedDocument("b", "", "new")], tmp_path / "i")
    assert found(Index(tmp_path / "i"), "old") == ["a"]
    build([IndexedDocument("b", "", "new")], tmp_path / "i", replace=True)
    assert found(Index(tmp_path / "i"), "new") == ["b"] and [path.name for path in tmp_path.iterdir()] == ["i"]
    (tmp_path / "precious").mkdir()
    with pytest.raises(StoreError, match="is not a search index"):
        build([IndexedDocument("b", "", "new")], tmp_path / "precious", replace=True)


def test_the_same_corpus_has_the_same_hash(tmp_path: Path) -> None:
    one = build([IndexedDocument("a", "t", "x")], tmp_path / "1").hash
    assert build([IndexedDocument("a", "t", "x")], tmp_path / "2").hash == one
    assert build([IndexedDocument("a", "t", "y")], tmp_path / "3").hash != one


def test_a_build_that_fails_or_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    def documents(error: BaseException) -> object:
        yield IndexedDocument("a", "t", "x")
        raise error

    for error in (KeyboardInterrupt(), RuntimeError("boom")):
        with pytest.raises(type(error)):
            build(documents(error), tmp_path / "i")  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


KILLED = """
import sys, time
from coa.tools.index import IndexedDocument, build
def documents():
    for n in range(10**9):
        if n == 20_000:
            print("half", flush=True)
            time.sleep(60)
        yield IndexedDocument(str(n), "title", f"text {n} " * 20)
build(documents(), sys.argv[1])
"""


def test_a_killed_build_is_not_taken_for_an_index_and_is_cleaned_up_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "i"
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "half\n"
    build([IndexedDocument("a", "", "other")], tmp_path / "other")
    assert len(list(tmp_path.iterdir())) == 3, "a build that still runs is not swept away"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    (rest,) = [path for path in tmp_path.iterdir() if path.name.startswith(".i.") and path.is_dir()]
    for folder in (out, rest):
        with pytest.raises(StoreError, match="is not a search index"):
            Index(folder)
    build([IndexedDocument("a", "", "whole")], out)
    assert found(Index(out), "whole") == ["a"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["i", "other"]


def test_a_damaged_index_is_said_to_be_one(tmp_path: Path) -> None:
    build([IndexedDocument(str(n), "t", f"x {n}") for n in range(100)], tmp_path / "i")
    manifest = tmp_path / "i" / "manifest.json"
    whole = manifest.read_text()
    for text, said in (("{", "cannot be read"), (whole.replace('"format": 1', '"format": 99'), "format 99"),
                       (whole.replace('"passages": 100', '"passages": 101'), "damaged")):  # fmt: skip
        manifest.write_text(text)
        with pytest.raises(StoreError, match=said):
            Index(tmp_path / "i")
    manifest.write_text(whole)
    (tmp_path / "i" / "meta.json").write_text("{}")
    with pytest.raises(StoreError, match="damaged"):
        Index(tmp_path / "i")


# ---- quality


def corpus() -> tuple[list[IndexedDocument], list[tuple[str, str]]]:
    """Passages and (query, id of the passage that answers it).

    Of the NQ rows where they are at hand: a passage holds a question's words and its answer among words of others.
    """
    rng = random.Random(0)
    if NQ.exists():
        rows = [json.loads(line) for line in NQ.read_text().splitlines()]
    else:
        vocabulary = [f"w{n}" for n in range(3000)]
        rows = [
            {"question": " ".join(rng.choices(vocabulary, k=8)), "answer": [rng.choice(vocabulary)]}
            for _ in range(3000)
        ]
    words = " ".join(row["question"] for row in rows).split()
    documents, queries = [], []
    for number, row in enumerate(rows):
        asked = row["question"].split()
        kept = [word for word in asked if rng.random() < 0.5] or asked[:1]
        text = rng.choices(words, k=40) + kept + row["answer"][0].split()
        rng.shuffle(text)
        documents.append(IndexedDocument(str(number), "", " ".join(text)))
        queries.append((row["question"], str(number)))
    return documents, queries


@pytest.mark.parametrize("language", ["none", "english"])
def test_recall_is_that_of_bm25s(tmp_path: Path, language: str) -> None:
    """Without stemming against its own way of cutting words; with stemming, which it leaves to others, on our terms."""
    bm25s = pytest.importorskip("bm25s")
    documents, queries = corpus()
    build(documents, tmp_path / "i", passage_words=0, language=language)
    index = Index(tmp_path / "i")
    ours = sum(wanted in found(index, query) for query, wanted in queries) / len(queries)

    def terms(texts: list[str]) -> object:
        if language == "none":
            return bm25s.tokenize(texts, stopwords="en", show_progress=False)
        return [index.terms(text) for text in texts]

    other = bm25s.BM25()
    other.index(terms([document.text for document in documents]), show_progress=False)
    rows, _ = other.retrieve(terms([query for query, _ in queries]), k=5, show_progress=False)
    hits = [int(wanted) in set(map(int, row)) for (_, wanted), row in zip(queries, rows, strict=True)]
    theirs = sum(hits) / len(hits)
    assert 0.3 < ours < 1.0, "the corpus must be neither hopeless nor trivial"
    assert ours >= theirs - 0.01, f"recall@5 {ours:.3f}, bm25s {theirs:.3f}"


# ---- the command line


def test_an_index_is_built_and_searched_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "1", "title": "Ada", "text": "first program\\u001b[2J"}\n{bad\n')
    out = str(tmp_path / "i")
    done = invoke(app, ["index", "build", str(tmp_path / "a.jsonl"), "--out", out])
    assert done.exit_code == 0 and "1 passage of 1 document " in done.stdout
    assert "left out 1: it is not JSON" in done.stderr
    shown = invoke(app, ["index", "search", out, "program"])
    assert "1. Ada  [1]" in shown.stdout and "\x1b" not in shown.stdout
    row = json.loads(invoke(app, ["index", "search", out, "program", "--json"]).stdout)
    assert row["title"] == "Ada" and row["score"] > 0
    again = ["index", "build", str(tmp_path / "a.jsonl"), "--out", out, "--force"]
    assert json.loads(invoke(app, [*again, "--json"]).stdout)["passages"] == 1
    assert read_manifest(tmp_path / "i").left_out == {"it is not JSON": 1}
    refused = invoke(app, [*again, "--language", "klingon"])
    assert isinstance(refused.exception, StoreError) and "english" in str(refused.exception)
    called = invoke(app, ["tools", "call", "wiki_search", "program", "--tool", f"wiki_search={out}"])
    assert called.exit_code == 0 and "1. Ada" in called.stdout


def test_of_many_equal_passages_the_first_ids_come_whatever_order_they_were_written_in(tmp_path: Path) -> None:
    """More of them than are asked for at first, by several writers at once."""
    ids = [f"p{number:04}" for number in range(700)]
    for seed in range(3):
        random.Random(seed).shuffle(ids)
        build((IndexedDocument(at, at, "city") for at in ids), tmp_path / str(seed), language="none")
        found = Index(tmp_path / str(seed)).search("city nobody", 3)
        assert [hit.passage.id for hit in found] == ["p0000", "p0001", "p0002"]
    assert Index(tmp_path / "0").search("nothing", 3) == []
