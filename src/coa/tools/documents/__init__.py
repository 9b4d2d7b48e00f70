"""Text of pages and files of any origin, read in a separate process that may hang, crash or swell without harm."""

from coa.tools.documents.parsers import Parsers, Unreadable, shared_parsers
from coa.tools.documents.record import Document, Link

__all__ = ["Document", "Link", "Parsers", "Unreadable", "shared_parsers"]
