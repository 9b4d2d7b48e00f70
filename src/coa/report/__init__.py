"""Reports for people: one HTML file with inline SVG, no script, no network, so that it opens anywhere and stays."""

from coa.report.charts import Bar, bars, curve, funnel
from coa.report.page import details, links, page, paragraph, plural, table

__all__ = ["Bar", "bars", "curve", "details", "funnel", "links", "page", "paragraph", "plural", "table"]
