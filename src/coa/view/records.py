"""One run with everything that its page shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import orjson
from pydantic import JsonValue

from coa.errors import CoaError, ProfileError
from coa.trajectory import Message, Profile, Trajectory, check, load_profile, profile_of, render, with_profile
from coa.trajectory.definitions import definition, remember
from coa.view.overlay import TokensView, tokenizers_of, tokens_view
from coa.view.queries import Place, Queries, Row
from coa.view.readers import Opened, open_record, raw_record
from coa.view.teams import TeamView, team_view
from coa.web.timeline import ProfileView, TimelineEvent, UsageView, events_of, profile_view, usage_view

_FALLBACK = "all"
"""The profile for runs whose own one is nowhere defined: it knows the agents of every shipped profile."""


class ScoreView(TypedDict):
    name: str
    value: float | None
    reason: str


class ViolationView(TypedDict):
    step: int
    rule: str
    message: str


class TaskView(TypedDict):
    answer: list[str]
    meta: Mapping[str, JsonValue]
    files: list[str]


class RecordView(TypedDict):
    row: Row
    profile: ProfileView
    before: list[dict[str, str]]
    """Earlier turns of the conversation."""
    prompt: list[dict[str, str]]
    events: list[TimelineEvent]
    task: TaskView
    scores: list[ScoreView]
    usage: UsageView
    failure: str | None
    violations: list[ViolationView]
    meta: Mapping[str, JsonValue]
    place: dict[str, object]
    siblings: list[Row]
    elsewhere: list[Row]
    team: TeamView | None
    running: bool
    problem: str | None
    """What could not be read, for instance the definition of its profile."""


class RawView(TypedDict):
    json: str
    transcript: str


def record_view(place: Place, queries: Queries, shown_path: str) -> RecordView:
    row = queries.row(place.uid)
    assert row is not None
    opened = opened_record(place, queries)
    others = queries.same_task(row)
    view = trajectory_view(row, opened)
    view["place"] = {"file": shown_path, "line": place.number + 1}
    view["siblings"] = [other for other in others if other["folder"] == row["folder"]]
    view["elsewhere"] = [other for other in others if other["folder"] != row["folder"]]
    return view


def trajectory_view(row: Row, opened: Opened, *, running: bool = False) -> RecordView:
    """The page of a trajectory, without what the index knows of its surroundings."""
    trajectory, profile, problem = with_known_profile(opened.trajectory)
    violations = [] if running else check(trajectory.steps, profile)
    return RecordView(
        row=row,
        profile=profile_view(profile, {step.agent for step in trajectory.steps} | set(profile.tools)),
        before=_messages(trajectory.task.conversation),
        prompt=_messages(trajectory.prompt or profile.messages(trajectory.task)),
        events=events_of(trajectory),
        task=TaskView(
            answer=list(trajectory.task.answer), meta=trajectory.task.meta, files=list(trajectory.task.files)
        ),
        scores=[ScoreView(name=name, value=one.value, reason=one.reason) for name, one in trajectory.scores.items()],
        usage=usage_view(trajectory.usage),
        failure=trajectory.failure.message if trajectory.failure is not None else None,
        violations=[ViolationView(step=one.step, rule=one.rule.value, message=one.message) for one in violations],
        meta=trajectory.meta,
        place={},
        siblings=[],
        elsewhere=[],
        team=team_view(opened.team, profile) if opened.team is not None else None,
        running=running,
        problem=problem,
    )


def record_tokens(place: Place, queries: Queries, tokenizer: str | None) -> TokensView:
    trajectory, profile, _ = with_known_profile(opened_record(place, queries).trajectory)
    return tokens_view(trajectory, profile, tokenizers_of(place.folder, tokenizer))


def record_raw(place: Place, queries: Queries) -> RawView:
    """The record as it is in the file, indented, and the run as one text, as the model saw and wrote it."""
    trajectory, profile, _ = with_known_profile(opened_record(place, queries).trajectory)
    raw = raw_record(place.source, place.number, place.place, place.length)
    try:
        transcript = render(trajectory.steps, profile)
    except CoaError as error:
        transcript = f"[no transcript: {error.message}]"
    return RawView(json=_indented(raw), transcript=transcript)


def record_texts(place: Place) -> Mapping[str, Any]:
    """The record as plain JSON, to search in it."""
    found: Any = orjson.loads(raw_record(place.source, place.number, place.place, place.length))
    return found if isinstance(found, Mapping) and "steps" in found else _json(place)


def _json(place: Place) -> Mapping[str, Any]:
    opened = open_record(place.source, place.number, place.place, place.length)
    found: Mapping[str, Any] = orjson.loads(opened.trajectory.to_json())
    return found


def opened_record(place: Place, queries: Queries) -> Opened:
    """The run, with its profile known: only the first record of a file defines it."""
    key = place.profile_hash
    if key is not None and definition(key) is None and (text := queries.definition(key)) is not None:
        remember(text)
    return open_record(place.source, place.number, place.place, place.length)


def with_known_profile(trajectory: Trajectory) -> tuple[Trajectory, Profile, str | None]:
    """The trajectory and its profile; with a profile that knows most agents, and a problem, if it is not defined."""
    try:
        return trajectory, profile_of(trajectory), None
    except (ProfileError, CoaError) as error:
        profile = load_profile(_FALLBACK)
        return with_profile(trajectory, profile), profile, error.message


def _messages(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _indented(raw: bytes) -> str:
    try:
        return orjson.dumps(orjson.loads(raw), option=orjson.OPT_INDENT_2).decode()
    except orjson.JSONDecodeError:
        return raw.decode("utf-8", "replace")
