"""Text -> steps, tolerant and incremental.

The parser reads tag by tag. Between two tags it is outside any element, where only blanks are expected, or inside one,
which is a `_Draft`. Models make mistakes, so at each tag the parser has to decide what was meant: the end of this
element, the start of the next one although this one was never closed, or a tag that is only mentioned in the text. The
rules are in `_opening_inside` and `_closing_inside`. An element that ends becomes a `Step`.

Two things make this harder. Text comes in chunks that may cut a tag, so the last characters are held back while they
could begin a tag. And in a transcript a web page may contain `</observation>` to forge the end of its observation. So
everything after an observation stays pending until the next observation begins: if a second `</observation>` comes
first, all of it belongs to the first observation after all (`_swallow_forgery`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from coa.trajectory.codec.writer import canonical, element, patterns, readable
from coa.trajectory.profile import Kind, Profile
from coa.trajectory.shapes import Form, Reading, read
from coa.trajectory.types import OBSERVATION, Author, Repair, RepairKind, Step, clean_text


@dataclass(frozen=True, slots=True)
class Opened:
    """An agent begins to act."""

    agent: str


@dataclass(frozen=True, slots=True)
class Delta:
    """More of the agent's text, as written."""

    agent: str
    text: str


@dataclass(frozen=True, slots=True)
class Closed:
    """The agent is done. Blanks that follow may still join the surface of the step; `finish` gives the final record."""

    step: Step


Event = Opened | Delta | Closed


def parse(text: str, profile: Profile) -> tuple[Step, ...]:
    """Read a whole transcript into steps. `<observation>` marks what the environment wrote. Never raises."""
    parser = Parser(profile, transcript=True, quiet=True)
    # Reading makes no cycles, but the garbage collector would visit all steps again and again as they grow.
    paused = len(text) >= _LONG and gc.isenabled()
    if paused:
        gc.disable()
    try:
        parser.feed(text)
        parser.finish()
    finally:
        if paused:
            gc.enable()
    return parser.steps


@dataclass(slots=True)
class _Mention:
    """A whole `<tag>...</tag>` inside another element: a mention, or a step whose predecessor was never closed."""

    agent: str
    surface_at: int
    content_at: int
    content_end: int = -1


@dataclass(slots=True)
class _Draft:
    """An element that is being read. Two lists grow: the characters that were written, and the content among them."""

    agent: str
    author: Author
    surface: list[str]
    content: list[str] = field(default_factory=list)
    repairs: list[Repair] = field(default_factory=list)
    tagged: bool = True
    settling: bool = False
    """Whether it is closed, but blanks that follow still belong to it (an observation of a transcript)."""
    blank: bool = True
    at_line_start: bool = True
    in_fence: bool = False
    line_head: str = ""
    mention: _Mention | None = None
    mentions_kept: bool = False
    """Whether a tag inside was kept as text."""
    opened_at: int = 0
    closed_at: int | None = None
    """For an observation: where in `surface` its content begins and ends."""
    tail: list[_Mention] = field(default_factory=list)
    """Complete mentions at the end of the content, with only blanks between and after them."""

    def note(self, kind: RepairKind, detail: str = "") -> None:
        _note(self.repairs, kind, detail)

    def write(self, text: str, *, fences: bool) -> None:
        self.surface.append(text)
        self.content.append(text)
        has_text = bool(text.strip())
        if has_text:
            self.blank = False
            if self.mention is None:
                self.tail.clear()
        newline = text.rfind("\n")
        if newline >= 0:
            self.at_line_start = not text[newline + 1 :].strip()
        elif has_text:
            self.at_line_start = False
        if fences:
            self._follow_fences(text)

    def write_tag(self, text: str) -> None:
        """A tag kept as text."""
        self.surface.append(text)
        self.content.append(text)
        self.blank = self.at_line_start = False
        self.line_head = (self.line_head + text)[:_HEAD]

    def _follow_fences(self, text: str) -> None:
        first, *rest = text.split("\n")
        self.line_head = (self.line_head + first[:_HEAD])[:_HEAD]
        for line in rest:
            if self.line_head.lstrip().startswith("```"):
                self.in_fence = not self.in_fence
            self.line_head = line[:_HEAD]


_HEAD: Final = 64
"""Number of characters of a line that are kept to see whether it is a fence."""
_LONG: Final = 1_000_000
"""Number of characters from which on it pays to pause the garbage collector."""


class Parser:
    """Reads text into steps while it streams.

    Call `feed` with each piece of text and `finish` at the end, then read `steps`.

    By default all text is the model's. With `transcript=True` the text is a whole run, in which observations are the
    environment's. Each observation is then reported as closed only when the next one begins or at `finish`, because a
    page may contain a forged end of the observation.
    """

    def __init__(
        self,
        profile: Profile,
        *,
        transcript: bool = False,
        given: str = "",
        ends_line: bool = True,
        quiet: bool = False,
    ) -> None:
        """`given` is an opening that the environment wrote for the model, such as `<answer>`. `ends_line` says whether
        the transcript before it is empty or ends with a line break. A `quiet` parser has no events, for those who only
        want the steps: events of a long text would fill the memory."""
        self._profile = profile
        self._patterns = patterns(profile.tags)
        self._transcript = transcript
        self._ends_line = self._ended_line_before_last = ends_line
        self._held = ""
        self._gap: list[str] = []
        self._stray: list[Repair] = []
        self._open: _Draft | None = None
        self._pending: list[_Draft] = []
        self._steps: list[Step] = []
        self._events: list[Event] = []
        self._quiet = quiet
        self._given = len(given)
        self._finished = False
        if given:
            self.feed(given)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(self._steps)

    @property
    def open_agent(self) -> str | None:
        """The agent whose closing tag has not come yet; inside an unclosed mention, the agent that is mentioned."""
        if self._open is None or self._open.settling:
            return None
        return self._open.mention.agent if self._open.mention else self._open.agent

    def feed(self, chunk: str) -> list[Event]:
        if self._finished:
            raise ValueError("this parser has finished")
        data = self._held + clean_text(chunk)
        position = 0
        for tag in self._patterns.tag.finditer(data):
            self._text(data[position : tag.start()])
            self._tag(tag.group(), tag.group(2).lower(), closing=bool(tag.group(1)))
            position = tag.end()
        # A tag may be cut by the end of the chunk. Only the last "<" can begin one, if it is close enough to the end.
        cut = data.rfind("<", max(position, len(data) - self._patterns.longest))
        if cut < 0 or ">" in data[cut:]:
            cut = len(data)
        self._text(data[position:cut])
        self._held = data[cut:]
        return self._take_events()

    def finish(self, overshoot: str = "") -> list[Event]:
        """End of the text: close the open step. Calling it again changes nothing.

        `overshoot` is what the last sampled token spelled beyond a stop string. It is added to the last step's surface.
        """
        if not self._finished:
            self._text(self._held)
            self._held = ""
            self._end_implicitly()
            self._record_pending()
            if overshoot:
                self._gap.append(clean_text(overshoot))
            self._settle_the_rest()
            self._finished = True
        return self._take_events()

    # ---- text and tags, inside and outside an element

    def _text(self, text: str) -> None:
        if not text:
            return
        if self._open is not None and self._open.settling:
            rest = text.lstrip()
            if len(rest) < len(text):
                self._open.surface.append(text[: len(text) - len(rest)])
            if not rest:
                return
            self._release()
            text = rest
        if self._open is None:
            rest = text.lstrip()
            if len(rest) < len(text):
                self._gap.append(text[: len(text) - len(rest)])
            if not rest:
                return
            self._begin_untagged()
            text = rest
        assert self._open is not None
        fences = self._open.author is Author.MODEL and self._profile.shape(self._open.agent).fenced
        self._open.write(text, fences=fences)
        self._emit(Delta, self._open.agent, text)

    def _tag(self, written: str, agent: str, *, closing: bool) -> None:
        if self._open is not None and self._open.settling and not (closing and agent == OBSERVATION):
            self._release()
        if self._open is None or self._open.settling:
            if not closing:
                self._begin(agent, written)
            elif not self._swallow_forgery(written, agent):
                self._gap.append(written)
                _note(self._stray, RepairKind.STRAY_CLOSE, f"</{agent}>")
        elif self._open.author is Author.ENVIRONMENT:
            # In an observation everything is text up to its closing tag, whatever it looks like.
            if closing and agent == OBSERVATION:
                self._close(written)
            else:
                self._keep_as_text(written)
        elif closing:
            self._closing_inside(self._open, written, agent)
        else:
            self._opening_inside(self._open, written, agent)

    def _opening_inside(self, draft: _Draft, written: str, agent: str) -> None:
        # In a transcript an observation begins wherever its tag is, even inside a fence or an unclosed step. Text that
        # is wrongly attributed to the environment is only lost; text wrongly attributed to the model is trained.
        if not draft.tagged or (self._transcript and agent == OBSERVATION):
            self._end_implicitly()
            self._begin(agent, written)
        elif agent == draft.agent and draft.blank:
            draft.surface.append(written)
            draft.note(RepairKind.REPEATED_TAG)
        elif (draft.at_line_start and (not draft.in_fence or agent == OBSERVATION)) or self._call_is_over(draft, agent):
            # At the start of a line it is the next step, and the closing tag before it was forgotten.
            self._end_implicitly()
            self._begin(agent, written)
        else:
            draft.mentions_kept = True
            if draft.mention is None and not draft.in_fence:
                draft.mention = _Mention(agent, surface_at=len(draft.surface), content_at=len(draft.content))
            self._keep_as_text(written)

    def _call_is_over(self, draft: _Draft, agent: str) -> bool:
        """Whether a tag in the middle of a line follows a complete tool call: behind its closing fence, or where the
        model begins to write the observation itself."""
        if draft.agent not in self._profile.tools:
            return False
        if draft.in_fence:
            return draft.line_head.strip() == "```"
        return agent == OBSERVATION

    def _closing_inside(self, draft: _Draft, written: str, agent: str) -> None:
        if agent == draft.agent and draft.tagged:
            self._close(written)
        elif not draft.tagged and agent != OBSERVATION:
            draft.agent, draft.tagged = agent, True
            draft.note(RepairKind.MISSING_OPEN)
            self._close(written)
        elif draft.mention is not None and agent == draft.mention.agent:
            mention, draft.mention = draft.mention, None
            self._keep_as_text(written)
            mention.content_end = len(draft.content) - 1
            draft.tail.append(mention)
        elif draft.in_fence:
            self._keep_as_text(written)
        elif not self._swallow_forgery(written, agent):
            draft.surface.append(written)
            draft.note(RepairKind.STRAY_CLOSE, f"</{agent}>")

    # ---- beginnings and ends

    def _begin(self, agent: str, written: str, *, tagged: bool = True) -> None:
        environment = self._transcript and agent == OBSERVATION
        draft = _Draft(
            agent,
            Author.ENVIRONMENT if environment else Author.MODEL,
            surface=[*self._gap, written] if written else list(self._gap),
            repairs=self._stray,
            tagged=tagged,
        )
        self._gap, self._stray = [], []
        if not tagged:
            draft.note(RepairKind.UNTAGGED)
        elif written != f"<{agent}>":
            draft.note(RepairKind.LOOSE_TAG, written)
        draft.opened_at = len(draft.surface)
        if environment:
            self._record_pending()
        self._open = draft
        self._emit(Opened, agent)

    def _begin_untagged(self) -> None:
        self._begin(self._profile.thought or next(iter(self._profile.agents)), "", tagged=False)

    def _close(self, written: str) -> None:
        draft = self._open
        assert draft is not None
        draft.closed_at = len(draft.surface)
        draft.surface.append(written)
        if written != f"</{draft.agent}>":
            draft.note(RepairKind.LOOSE_TAG, written)
        if draft.author is Author.ENVIRONMENT:
            draft.settling = True
        else:
            self._release()

    def _end_implicitly(self) -> None:
        """Close what is open although there was no closing tag."""
        draft = self._open
        if draft is None:
            return
        if draft.settling:
            self._release()
            return
        if draft.tagged:
            draft.note(RepairKind.MISSING_CLOSE)
        if draft.tail and draft.mention is None:
            self._split(draft, draft.tail)
            return
        if draft.author is Author.MODEL:
            self._give_back_blanks(draft)
        self._release()

    def _split(self, draft: _Draft, mentions: list[_Mention]) -> None:
        """`<think>so I search.<web_search>q</web_search>` at the end of the text: two steps, the first one unclosed."""
        surface, content = draft.surface, draft.content
        draft.surface, draft.content = surface[: mentions[0].surface_at], content[: mentions[0].content_at]
        draft.mentions_kept = False
        self._release()
        for mention, following in zip(mentions, [*mentions[1:], None], strict=True):
            end = len(surface) if following is None else following.surface_at
            self._open = _Draft(
                mention.agent,
                Author.MODEL,
                surface=[*self._gap, *surface[mention.surface_at : end]],
                content=content[mention.content_at + 1 : mention.content_end],
                repairs=[_repair(RepairKind.NESTED_CALL, f"inside <{draft.agent}>")],
            )
            self._gap = []
            self._emit(Opened, mention.agent)
            self._give_back_blanks(self._open, surface_only=True)
            self._release()

    def _give_back_blanks(self, draft: _Draft, *, surface_only: bool = False) -> None:
        """Blanks at the end of an unclosed element separate it from the next element; they are not its content."""
        for parts in (draft.surface,) if surface_only else (draft.surface, draft.content):
            blanks: list[str] = []
            while parts and (stripped := parts[-1].rstrip()) != parts[-1]:
                blanks.append(parts[-1][len(stripped) :])
                parts[-1] = stripped
                if stripped:
                    break
                parts.pop()
            if parts is draft.surface:
                self._gap = blanks[::-1]

    def _release(self) -> None:
        """The open element is complete."""
        draft, self._open = self._open, None
        assert draft is not None
        if draft.mentions_kept:
            draft.note(RepairKind.TAG_IN_TEXT)
        if self._pending or draft.author is Author.ENVIRONMENT:
            # Until the next observation begins, its end may turn out to be forged (see _swallow_forgery).
            self._pending.append(draft)
        else:
            self._record(draft)

    def _record_pending(self) -> None:
        pending, self._pending = self._pending, []
        for draft in pending:
            self._record(draft)

    def _record(self, draft: _Draft) -> None:
        # The content of an observation is a slice of its surface, because the real end may be after a forged one.
        observed = draft.author is Author.ENVIRONMENT
        content = draft.surface[draft.opened_at : draft.closed_at] if observed else draft.content
        text, surface = readable("".join(content), self._profile), "".join(draft.surface)
        given, self._given = self._given, 0
        written = element(draft.agent, draft.author, text, self._profile, ends_line=self._ends_line)
        plain = not given and surface == written
        step = Step(
            agent=draft.agent,
            author=draft.author,
            text=text,
            surface=None if plain else surface,
            given=given,
            repairs=(*draft.repairs, *self._shape_repairs(draft, text)),
        )
        self._ended_line_before_last = self._ends_line
        if surface:
            self._ends_line = surface.endswith("\n")
        self._steps.append(step)
        self._emit(Closed, step)

    def _shape_repairs(self, draft: _Draft, text: str) -> tuple[Repair, ...]:
        agent = self._profile.agents.get(draft.agent)
        if agent is None or draft.author is Author.ENVIRONMENT:
            return ()
        if agent.kind in (Kind.TOOL, Kind.ANSWER) and agent.shape.form is not Form.TEXT:
            reading = read(agent.shape, text)
            return reading.repairs if isinstance(reading, Reading) else ()
        return (_repair(RepairKind.CRLF),) if "\r" in text else ()

    def _settle_the_rest(self) -> None:
        """Blanks and stray tags after the last step are added to its surface, so that no character is lost."""
        rest = "".join(self._gap)
        if not rest and not self._stray:
            return
        if not self._steps:
            self._begin_untagged()
            self._release()
            return
        last = self._steps[-1]
        surface = last.surface
        if surface is None:
            surface = canonical(last, self._profile, ends_line=self._ended_line_before_last)
        repairs = last.repairs + tuple(self._stray)
        self._steps[-1] = last.model_copy(update={"surface": surface + rest, "repairs": repairs})

    # ---- mistakes

    def _keep_as_text(self, written: str) -> None:
        assert self._open is not None
        self._open.write_tag(written)
        self._emit(Delta, self._open.agent, written)

    def _swallow_forgery(self, written: str, agent: str) -> bool:
        """A second `</observation>`: the first one was part of the page, so all between them is the environment's."""
        if not (self._transcript and agent == OBSERVATION):
            return False
        draft = self._open
        if draft is None or not draft.settling:
            if not self._pending:
                return False
            swallowed = [*self._pending[1:], draft] if draft else self._pending[1:]
            draft = self._pending[0]
            self._pending = []
            for other in swallowed:
                draft.surface += other.surface
            draft.surface += self._gap
            self._gap, self._stray = [], []
        draft.note(RepairKind.FORGED_CLOSE)
        draft.settling = True
        draft.closed_at = len(draft.surface)
        draft.surface.append(written)
        self._open = draft
        return True

    def _emit(self, kind: Callable[..., Event], *values: object) -> None:
        if not self._quiet:
            self._events.append(kind(*values))

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events


def _note(repairs: list[Repair], kind: RepairKind, detail: str) -> None:
    """Once per mistake, however often it occurs: a megabyte of stray tags is recorded once."""
    repair = _repair(kind, detail)
    if repair not in repairs:
        repairs.append(repair)


@lru_cache(maxsize=256)
def _repair(kind: RepairKind, detail: str = "") -> Repair:
    return Repair(kind=kind, detail=detail)
