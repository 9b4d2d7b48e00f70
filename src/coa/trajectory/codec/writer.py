"""Steps -> text, and the neutralising of tag-like text inside a step."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from coa.errors import ProfileError
from coa.trajectory.profile import Profile
from coa.trajectory.types import Author, Step


class Piece(NamedTuple):
    """A part of the transcript that belongs to one author and one step."""

    step: int
    author: Author
    text: str


def pieces(steps: Iterable[Step], profile: Profile) -> Iterator[Piece]:
    """The transcript in order, cut where the step or the author changes."""
    ends_line = True
    for index, step in enumerate(steps):
        surface = canonical(step, profile, ends_line=ends_line) if step.surface is None else step.surface
        if step.given:
            yield Piece(index, Author.ENVIRONMENT, surface[: step.given])
        if rest := surface[step.given :]:
            yield Piece(index, step.author, rest)
        if surface:
            ends_line = surface.endswith("\n")


def render(steps: Iterable[Step], profile: Profile) -> str:
    """Write steps as text: everything that follows the prompt. The inverse of `parse`."""
    return "".join(piece.text for piece in pieces(steps, profile))


def canonical(step: Step, profile: Profile, *, ends_line: bool) -> str:
    """The text of a step. `ends_line` says whether the transcript so far is empty or ends with a line break."""
    if step.agent not in profile.tags:
        raise ProfileError(
            f"the profile {profile.name!r} has no agent <{step.agent}>",
            hint="give the profile that the trajectory was made with (--profile NAME or FILE.toml)",
        )
    return element(step.agent, step.author, step.text, profile, ends_line=ends_line)


def element(agent: str, author: Author, text: str, profile: Profile, *, ends_line: bool) -> str:
    """`canonical` for a step that does not exist yet."""
    before = "" if ends_line else "\n"
    after = "\n" if author is Author.ENVIRONMENT else ""
    return f"{before}<{agent}>{neutralise(text, profile)}</{agent}>{after}"


def neutralise(text: str, profile: Profile) -> str:
    """Make tags and control tokens of chat templates harmless, but keep them readable."""
    return patterns(profile.tags).escapable.sub(r"<\\\1", text) if "<" in text else text


def readable(text: str, profile: Profile) -> str:
    """Undo `neutralise`."""
    return patterns(profile.tags).escaped.sub(r"<\1", text) if "<\\" in text else text


class Patterns(NamedTuple):
    tag: re.Pattern[str]
    escapable: re.Pattern[str]
    escaped: re.Pattern[str]
    longest: int


@lru_cache(maxsize=64)
def patterns(tags: frozenset[str]) -> Patterns:
    names = "|".join(sorted(tags, key=len, reverse=True))
    # A limit on blanks bounds the reader's look-ahead; (?a) excludes Unicode look-alikes of ASCII letters.
    inside = rf"[ \t]{{0,2}}/?[ \t]{{0,2}}(?:{names})[ \t]{{0,2}}>"
    control = r"\|[^<>|\s]{1,40}\|>|/?s>"  # such as <|im_end|> and <s>
    return Patterns(
        tag=re.compile(rf"(?ai)<[ \t]{{0,2}}(/?)[ \t]{{0,2}}({names})[ \t]{{0,2}}>"),
        escapable=re.compile(rf"(?ai)<(\\*+)(?={inside}|{control})"),
        escaped=re.compile(rf"(?ai)<\\(\\*+)(?={inside}|{control})"),
        longest=max(map(len, tags)) + 9,
    )
