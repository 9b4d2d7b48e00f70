"""What is read from a page or a file, and the messages between the parent process and a worker."""

from __future__ import annotations

from pydantic import BaseModel


class Link(BaseModel, frozen=True):
    text: str
    url: str


class Document(BaseModel, frozen=True):
    text: str
    title: str = ""
    date: str = ""
    links: tuple[Link, ...] = ()
    note: str = ""
    """What a reader of the text should know: pages left out, no text layer."""


class Job(BaseModel, frozen=True):
    """The request to a worker: this as one line of JSON, followed by the bytes to read."""

    kind: str
    """A `FileKind` of sniff.py."""
    declared: str = ""
    """The media type that the server names, for its charset."""
    url: str = ""
    name: str = ""
    max_characters: int


class Reply(BaseModel):
    document: Document | None = None
    error: str = ""
