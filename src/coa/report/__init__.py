"""Reports for people: one HTML file, no script, no network, so that it opens anywhere and stays."""

from coa.report.charts import Bar, bars, curve, funnel
from coa.report.page import (
    Link,
    details,
    notice,
    page,
    paragraph,
    plural,
    said,
    section,
    table,
    text_block,
)

__all__ = [
    "Bar",
    "Link",
    "bars",
    "curve",
    "details",
    "funnel",
    "notice",
    "page",
    "paragraph",
    "plural",
    "said",
    "section",
    "table",
    "text_block",
]
