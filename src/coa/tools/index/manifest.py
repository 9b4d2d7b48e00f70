"""The description of an index in its folder. It is written last: a folder without it is not an index."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from coa.errors import StoreError, ToolError

FORMAT: Final = 1
NAME: Final = "manifest.json"
FIELD: Final = "body"
"""The one field that is searched: title and text."""
RECORD: Final = "record"
"""The passage itself, as JSON."""


class Manifest(BaseModel, frozen=True):
    format: int = FORMAT
    coa: str
    engine: str
    language: str
    passage_words: int
    documents: int
    passages: int
    left_out: dict[str, int] = {}
    """Rows that could not be used, by reason."""
    hash: str
    """Of all passages in order: the same corpus, split alike, has the same hash, whatever files it came from."""
    built: str
    seconds: float


def read_manifest(folder: Path) -> Manifest:
    path = folder / NAME
    try:
        manifest = Manifest.model_validate_json(path.read_bytes())
    except OSError as error:
        hint = f"coa index build CORPUS --out {folder}"
        raise StoreError(f"{folder} is not a search index: it has no {NAME}", hint=hint) from error
    except ValidationError as error:
        raise StoreError(f"{path} cannot be read: {error.errors()[0]['msg']}", hint="build the index again") from error
    if manifest.format != FORMAT:
        hint = "build the index again, or install the coa that built it"
        raise StoreError(f"{folder} has the format {manifest.format}; this coa knows {FORMAT}", hint=hint)
    return manifest


def engine() -> Any:
    """The tantivy module, imported only when an index is used."""
    try:
        import tantivy
    except ImportError as error:
        raise ToolError("a local search index needs tantivy", needs=["tools"]) from error
    return tantivy


LANGUAGES: Final = (
    "arabic", "danish", "dutch", "english", "finnish", "french", "german", "greek", "hungarian", "italian", "norwegian",
    "portuguese", "romanian", "russian", "spanish", "swedish", "tamil", "turkish",
)  # fmt: skip

_WITHOUT_STOP_WORDS: Final = ("arabic", "greek", "romanian", "tamil", "turkish")
"""tantivy has no list for them."""


def analyzer(language: str, *, stop_words: bool) -> Any:
    """From text to terms: words in lower case, without accents, stemmed. The language `none` means no stemming."""
    tantivy = engine()
    builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple())
    builder = builder.filter(tantivy.Filter.remove_long(64)).filter(tantivy.Filter.lowercase())
    if stop_words and language not in ("none", *_WITHOUT_STOP_WORDS):
        builder = builder.filter(tantivy.Filter.stopword(language))
    builder = builder.filter(tantivy.Filter.ascii_fold())
    if language != "none":
        builder = builder.filter(tantivy.Filter.stemmer(language))
    return builder.build()
