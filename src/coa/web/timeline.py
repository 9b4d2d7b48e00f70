"""A run as the timeline of the page shows it: a list of events, each a JSON object.

The page draws every run from these events alone, whether it watches the run or opens one that ended long ago. A live
run sends `text` events while the model writes, a finished one (`events_of`) has none; everything else is the same:

    began, text*, done           a thought, a plan, a verification, the answer
    began, text*, done, result   a tool call
    note                         the environment wrote something that answers no call
    ended                        once, at the end

`step` is the index of the step in `trajectory.steps`, by which the page links to it; a live run does not know it yet.
Texts are texts: nothing here is markup, and the page turns nothing into markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final, Literal, NotRequired, TypedDict

import orjson
from pydantic import JsonValue

from coa.trajectory import Author, Form, Kind, Profile, Reading, Shape, Step, Trajectory, Usage, profile_of
from coa.trajectory.citations import citations
from coa.trajectory.shapes import read
from coa.trajectory.shorten import omitted
from coa.web.highlighting import highlight
from coa.web.hues import hue_of
from coa.web.texts import Part, SearchResults, parts_of, search_results


class AgentView(TypedDict):
    title: str
    kind: str
    hue: str
    does: str


class ProfileView(TypedDict):
    name: str
    about: str
    agents: dict[str, AgentView]


class Block(TypedDict):
    """A piece of text with a label. `tokens` are (class, text) pairs that add up to the text, if it is code."""

    label: str
    text: str
    tokens: list[tuple[str, str]] | None


class RepairView(TypedDict):
    kind: str
    detail: str


class Page(TypedDict):
    """A page that a tool opened, or why it could not."""

    url: str
    error: str


class Began(TypedDict):
    type: Literal["began"]
    item: int
    agent: str
    step: NotRequired[int]


class Text(TypedDict):
    type: Literal["text"]
    item: int
    text: str


class Done(TypedDict):
    type: Literal["done"]
    item: int
    step: int | None
    author: str
    """`model`, or `environment` for a step that was written for it, such as an answer taken from a suggestion."""
    by: str
    """The member of a recorded team whose words these are, or empty."""
    text: str
    parts: list[Part] | None
    """The text as lists, code and plain text; None if it is plain text."""
    given: str
    """The beginning of the step that the environment wrote for the model."""
    tokens: int | None
    seconds: float | None
    summary: str
    """A tool call in one line; empty for other items."""
    blocks: list[Block]
    """The arguments of a tool call."""
    passed: bool | None
    """The verdict of a verification or reflection, if it has a readable one."""
    repairs: list[RepairView]
    note: str
    """What else is worth knowing about the step, for people."""


class Result(TypedDict):
    type: Literal["result"]
    item: int
    step: int | None
    ok: bool
    error: str
    """The kind of the tool's error, or empty."""
    seconds: float | None
    omitted: int
    """Number of characters that were cut out of the text, according to the marks in it."""
    block: Block
    found: list[SearchResults] | None
    """The text as results of a search, if it is that."""
    pages: list[Page]


class Note(TypedDict):
    type: Literal["note"]
    step: int | None
    text: str
    error: str


class Source(TypedDict):
    url: str
    title: str


class UsageView(TypedDict):
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    tool_calls: int
    model_calls: int
    seconds: float
    cost: float | None


class Ended(TypedDict):
    type: Literal["ended"]
    stop: str
    words: str
    """Why it ended, for people."""
    answer: str | None
    failure: str | None
    sources: list[Source]
    usage: UsageView


TimelineEvent = Began | Text | Done | Result | Note | Ended


def profile_view(profile: Profile, tools: Collection[str] | None = None) -> ProfileView:
    """The agents in the order of the profile: the legend of the timeline. `tools` are those that can be called."""
    agents = {
        tag: AgentView(title=agent.title, kind=agent.kind.value, hue=hue_of(agent.color), does=agent.does)
        for tag, agent in profile.agents.items()
        if agent.kind is not Kind.TOOL or tools is None or tag in tools
    }
    return ProfileView(name=profile.name, about=profile.about, agents=agents)


def done(
    item: int,
    step: Step,
    profile: Profile,
    arguments: Mapping[str, JsonValue] | None = None,
    *,
    at: int | None = None,
) -> Done:
    """A step of the model's that is complete. Without `arguments`, those of a tool call are read from its text."""
    agent = profile.agents.get(step.agent)
    blocks: list[Block] = []
    summary = ""
    is_call = agent is not None and agent.kind is Kind.TOOL
    if agent is not None and is_call:
        if arguments is None and isinstance(found := read(agent.shape, step.text), Reading):
            arguments = found.arguments
        blocks = _arguments(arguments, agent.shape) if arguments is not None else [_block("call", step.text)]
        summary = _summary(arguments, step.text)
    by, text = step.meta.get("by"), step.text.strip()
    return Done(
        type="done",
        item=item,
        step=at,
        author=step.author.value,
        by=by if isinstance(by, str) else "",
        text=text,
        parts=None if is_call else parts_of(text),
        given=(step.surface or "")[: step.given],
        tokens=_tokens(step),
        seconds=step.usage.seconds if step.usage is not None and step.usage.seconds else None,
        summary=summary,
        blocks=blocks,
        passed=agent.verdict.holds(step.text) if agent is not None and agent.verdict is not None else None,
        repairs=[RepairView(kind=one.kind.value.replace("_", " "), detail=one.detail) for one in step.repairs],
        note=_note(step),
    )


def _tokens(step: Step) -> int | None:
    """Tokens that the model wrote, as far as they were counted."""
    if step.tokens is not None:
        return len(step.tokens.ids)
    return step.usage.completion_tokens if step.usage is not None and step.usage.completion_tokens else None


def _note(step: Step) -> str:
    source, failure = step.meta.get("fallback"), step.meta.get("failure")
    if not isinstance(source, str):
        return ""
    why = f" The model failed: {failure}" if isinstance(failure, str) else ""
    return f"The run ended without an answer, so this was taken from the {source.replace('_', ' ')}.{why}"


def result(item: int, step: Step, *, at: int | None = None) -> Result:
    """What the environment wrote in answer to a tool call."""
    seconds, error = step.meta.get("seconds"), step.meta.get("error")
    is_ok = step.meta.get("ok") is not False
    return Result(
        type="result",
        item=item,
        step=at,
        ok=is_ok,
        error=error if isinstance(error, str) else "",
        seconds=float(seconds) if isinstance(seconds, int | float) else None,
        omitted=omitted(step.text) if "[" in step.text else 0,
        block=_block("result", step.text, "json" if _is_json(step.text) else ""),
        found=search_results(step.text) if is_ok else None,
        pages=list(_pages(step)),
    )


def _pages(step: Step) -> Iterator[Page]:
    pages = step.meta.get("pages")
    for page in pages if isinstance(pages, list) else []:
        url, error = (page.get("url"), page.get("error")) if isinstance(page, dict) else (None, None)
        if isinstance(url, str):
            yield Page(url=url, error=error if isinstance(error, str) else "")


def note(step: Step, *, at: int | None = None) -> Note:
    """What the environment wrote without being asked: a hint, or that a budget is used up."""
    error = step.meta.get("error")
    return Note(type="note", step=at, text=step.text, error=error if isinstance(error, str) else "")


def ended(trajectory: Trajectory) -> Ended:
    return Ended(
        type="ended",
        stop=trajectory.stop.value,
        words=trajectory.stop.words,
        answer=trajectory.answer,
        failure=trajectory.failure.message if trajectory.failure is not None else None,
        sources=_sources(trajectory),
        usage=usage_view(trajectory.usage),
    )


def _sources(trajectory: Trajectory) -> list[Source]:
    """What the answer cites, each once."""
    cited = citations(trajectory.answer or "", trajectory.steps)
    titles = {one.url: one.title for one in reversed(cited)}
    return [Source(url=url, title=titles[url]) for url in dict.fromkeys(one.url for one in cited)]


def usage_view(usage: Usage) -> UsageView:
    return UsageView(
        prompt_tokens=usage.prompt_tokens,
        completion_tokens=usage.completion_tokens,
        cached_tokens=usage.cached_tokens,
        tool_calls=usage.tool_calls,
        model_calls=usage.model_calls,
        seconds=usage.seconds,
        cost=usage.cost,
    )


def events_of(trajectory: Trajectory) -> list[TimelineEvent]:
    """A finished run, as the events that it would have sent."""
    return list(_events(trajectory, profile_of(trajectory)))


def _events(trajectory: Trajectory, profile: Profile) -> Iterator[TimelineEvent]:
    tools = set(profile.tools)
    item, called = -1, False
    for at, step in enumerate(trajectory.steps):
        if step.author is Author.ENVIRONMENT and step.agent not in profile.agents:
            yield result(item, step, at=at) if called else note(step, at=at)
            called = False
            continue
        item += 1
        called = step.agent in tools
        yield Began(type="began", item=item, agent=step.agent, step=at)
        yield done(item, step, profile, at=at)
    yield ended(trajectory)


def _block(label: str, text: str, language: str = "") -> Block:
    return Block(label=label, text=text, tokens=highlight(text, language) if language else None)


_LABELS: Final = {"text": "input", "items": "input", "code": "program", "stdin": "standard input"}


def _arguments(arguments: Mapping[str, JsonValue], shape: Shape) -> list[Block]:
    if shape.form is Form.JSON:
        return [_block("arguments", orjson.dumps(dict(arguments), option=orjson.OPT_INDENT_2).decode(), "json")]
    return [
        _block(_LABELS.get(name, name), _lines(value), shape.language if name == "code" else "")
        for name, value in arguments.items()
        if value not in (None, "")
    ]


def _lines(value: JsonValue) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return "\n".join(str(item) for item in value)
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()


def _summary(arguments: Mapping[str, JsonValue] | None, text: str) -> str:
    if arguments is None:
        return " ".join(text.split())[:300]
    if isinstance(code := arguments.get("code"), str):
        first, _, more = code.strip().partition("\n")
        return f"{first[:300]} …" if more else first[:300]
    values = [_lines(value) for value in arguments.values() if value not in (None, "")]
    return " · ".join(" ".join(value.split()) for value in values)[:300]


def _is_json(text: str) -> bool:
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return True
