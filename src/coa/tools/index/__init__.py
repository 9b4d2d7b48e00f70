"""A local search index: the user's documents, split into passages and ranked by BM25, with tantivy (decision 0014).

`build` writes an index, `Index` searches it, and `Sources` reads documents: JSONL, Parquet, folders of pages.
"""

from coa.tools.index.build import build
from coa.tools.index.documents import IndexedDocument, Passage, split
from coa.tools.index.search import Hit, Index, snippet
from coa.tools.index.sources import Sources

__all__ = ["Hit", "Index", "IndexedDocument", "Passage", "Sources", "build", "snippet", "split"]
