"""A local search index: documents of one's own, cut into passages, ranked by BM25; by tantivy (decision 0014).

`build` writes one, `Index` searches it, `sources` reads what people have: JSONL, Parquet, folders of pages.
"""

from coa.tools.index.build import build
from coa.tools.index.documents import IndexedDocument, Passage, split
from coa.tools.index.search import Hit, Index, snippet
from coa.tools.index.sources import Sources

__all__ = ["Hit", "Index", "IndexedDocument", "Passage", "Sources", "build", "snippet", "split"]
