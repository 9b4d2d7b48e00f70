"""What is read out of a page or a file."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Link(BaseModel):
    model_config = ConfigDict(frozen=True)

    text: str
    url: str


class Document(BaseModel):
    model_config = ConfigDict(frozen=True)

    text: str
    title: str = ""
    date: str = ""
    links: tuple[Link, ...] = ()
    note: str = ""
    """What a reader of the text should know: pages left out, no text layer."""


class Job(BaseModel):
    """What a worker is asked: a line of JSON, which the bytes to read follow."""

    model_config = ConfigDict(frozen=True)

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
