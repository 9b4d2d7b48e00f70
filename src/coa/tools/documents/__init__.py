"""Text out of pages and files of any origin, in a process of its own that may hang, crash or swell without harm."""

from coa.tools.documents.parsers import Parsers, Unreadable, shared_parsers
from coa.tools.documents.record import Document, Link

__all__ = ["Document", "Link", "Parsers", "Unreadable", "shared_parsers"]
