"""Building an index: as a stream, in bounded memory, and all or nothing.

The index is written to a hidden folder beside its final place, which is renamed when the index is complete. The next
build removes what a killed build left there.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple
from datetime import UTC, datetime
from hashlib import blake2b
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import orjson

from coa.errors import StoreError
from coa.folder import lock_file, replacing
from coa.progress import Progress, Silent, time_left
from coa.report import plural
from coa.tools.index.documents import PASSAGE_WORDS, IndexedDocument, split
from coa.tools.index.manifest import FIELD, LANGUAGES, NAME, RECORD, Manifest, analyzer, engine
from coa.tools.index.sources import Sources

MEMORY_BYTES: Final = 256 << 20
"""Memory for the postings of one segment; more memory makes fewer and larger segments."""
_DISK: Final = "check the free space on the disk"


def build(
    sources: Sources | Iterable[IndexedDocument],
    out: str | Path,
    *,
    language: str = "english",
    passage_words: int = PASSAGE_WORDS,
    memory_bytes: int = MEMORY_BYTES,
    replace: bool = False,
    progress: Progress | None = None,
) -> Manifest:
    """Index documents into the folder `out`."""
    out = Path(out)
    if language != "none" and language not in LANGUAGES:
        raise StoreError(f"no stemmer for {language!r}", hint=f"use none, or one of {', '.join(LANGUAGES)}")
    with lock_file(out):
        if out.exists() and not (out / NAME).exists():
            raise StoreError(f"{out} exists and is not a search index", hint="choose another --out")
        if out.exists() and not replace:
            raise StoreError(f"{out} exists already", hint="add --force to replace it, or choose another --out")
        try:
            with replacing(out) as part:
                part.mkdir()
                manifest = _fill(part, sources, language, passage_words, memory_bytes, progress or Silent())
                (part / NAME).write_text(manifest.model_dump_json(indent=2) + "\n", encoding="utf-8")
        except OSError as error:
            raise StoreError(f"cannot write {out}: {error.strerror}", hint=_DISK) from error
    return manifest


def _fill(
    folder: Path, sources: Sources | Iterable[IndexedDocument], language: str, passage_words: int, memory_bytes: int,
    progress: Progress,
) -> Manifest:  # fmt: skip
    tantivy: Any = engine()
    start = time.monotonic()
    schema = tantivy.SchemaBuilder()
    schema.add_text_field(FIELD, stored=False, tokenizer_name="coa", index_option="freq")
    schema.add_bytes_field(RECORD, stored=True, indexed=False)  # a text field cannot be stored without being indexed
    index = tantivy.Index(schema.build(), path=str(folder))
    index.register_tokenizer("coa", analyzer(language, stop_words=False))
    writer = index.writer(memory_bytes, min(os.cpu_count() or 1, 4))
    digest = blake2b(digest_size=16)
    documents = passages = 0
    total = sources.total_bytes if isinstance(sources, Sources) else None
    progress.start("bytes indexed" if total else "documents indexed", total)

    def report() -> None:
        pace = passages / max(time.monotonic() - start, 1e-9)
        done = sources.read_bytes if isinstance(sources, Sources) else documents
        left = (total - done) * (time.monotonic() - start) / done if total and done else None
        note = [f"{plural(documents, 'document')}", f"{plural(passages, 'passage')}", f"{pace:,.0f} passages/s"]
        progress.update(done, total, ", ".join(filter(None, [*note, time_left(left)])))

    try:
        for document in sources:
            documents += 1
            for passage in split(document, passage_words):
                passages += 1
                record = orjson.dumps(astuple(passage))
                digest.update(record)
                body = f"{passage.title}\n{passage.text}"
                writer.add_document(tantivy.Document(**{FIELD: body, RECORD: record}))
                if passages % 1000 == 0:
                    report()
        report()
        writer.commit()
        writer.wait_merging_threads()
    except BaseException as error:
        with suppress(ValueError):
            writer.wait_merging_threads()  # otherwise its threads would write on into a folder that is being removed
        if isinstance(error, ValueError):  # how tantivy reports a full disk and the like
            raise StoreError(f"the index cannot be written: {error}", hint=_DISK) from error
        raise
    finally:
        progress.finish()
    left_out = dict(sources.bad) if isinstance(sources, Sources) else {}
    if not passages:
        reasons = "; ".join(f"{count} times {reason}" for reason, count in left_out.items())
        raise StoreError(f"there is nothing to index{': ' + reasons if reasons else ''}")
    made = {"coa": version("chain-of-agents"), "engine": tantivy.__version__, "hash": digest.hexdigest()}
    split_as = {"language": language, "passage_words": passage_words}
    counts = {"documents": documents, "passages": passages, "left_out": left_out}
    when = {"built": datetime.now(UTC).isoformat(timespec="seconds"), "seconds": round(time.monotonic() - start, 3)}
    return Manifest.model_validate({**made, **split_as, **counts, **when})
