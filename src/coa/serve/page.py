"""The web page at `/`, and the small API behind it: JSON, and server-sent events that the page reads with `fetch`.

The pages themselves hold no data and ask for no key; everything that they show comes from `/page/...`, which does. A
run that the page starts goes on when the tab is closed, so that a reload finds it again; only the stop button ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from functools import cache
from typing import Final, TypedDict

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from coa.models.tokenizer import NANO
from coa.runtime.nano import about_nano
from coa.serve.api_error import ApiError
from coa.serve.bodies import Body, json_response, read_body
from coa.serve.caller import Caller, request_caller
from coa.serve.events import ItemBegan, ItemDone, ItemText, RunEvent, ToolReturned
from coa.serve.request import RunRequest
from coa.serve.run import Run
from coa.serve.service import Service
from coa.serve.store import StoredRun
from coa.serve.streams import HEARTBEAT, EventStream
from coa.trajectory import Message, Profile, Task, Trajectory, profile_of
from coa.web import timeline
from coa.web.pages import page, static_routes
from coa.web.timeline import ProfileView, TimelineEvent, UsageView
from coa.worlds.folder import sample_task

PROTOCOL: Final = "page"
_EXAMPLE_SEEDS: Final = (1, 2, 5)
"""A firm, a person, a calculation."""


class AgentOffer(TypedDict):
    name: str
    profile: ProfileView
    note: str
    """What a newcomer should know about the model; empty for most."""
    examples: list[str]
    """Questions that it can answer."""


class RunView(TypedDict):
    id: str
    conversation: str
    agent: str
    question: str
    created: float
    """Seconds since the epoch."""
    elapsed: float
    """Seconds since it was started; the clock of the browser may be another."""
    status: str
    profile: ProfileView
    usage: UsageView


class RunRecord(TypedDict):
    """One run with all its events so far. `next` is the number from which to ask for further ones."""

    run: RunView
    before: list[dict[str, str]]
    """The messages of the conversation before the question."""
    events: list[TimelineEvent]
    next: int


class ConversationRow(TypedDict):
    id: str
    question: str
    """The first one."""
    updated: float
    running: bool


class StartBody(Body):
    agent: str
    question: str = Field(min_length=1, max_length=200_000)
    previous: str | None = None
    """Id of the run that the question follows up."""


def routes(service: Service) -> list[BaseRoute]:
    api = _Api(service)
    return [
        Route("/", _ask),
        Route("/c/{conversation}", _ask),
        Route("/runs/{run}", _run),
        *static_routes(),
        Route("/page/agents", api.agents),
        Route("/page/runs", api.start, methods=["POST"]),
        Route("/page/runs/{run}", api.run),
        Route("/page/runs/{run}/events", api.events),
        Route("/page/runs/{run}/cancel", api.cancel, methods=["POST"]),
        Route("/page/conversations", api.conversations),
        Route("/page/conversations/{conversation}", api.conversation),
        Route("/page/conversations/{conversation}", api.delete, methods=["DELETE"]),
    ]


async def _ask(_: Request) -> Response:
    return page("ask.html", name="ask", script="ask.js")


async def _run(request: Request) -> Response:
    return page("run.html", name="run-page", script="run.js", run=request.path_params["run"])


class _Api:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def agents(self, _: Request) -> Response:
        offers = [
            AgentOffer(
                name=name,
                profile=timeline.profile_view(agent.setting.profile, agent.tools),
                note=about_nano() if agent.config.model == NANO else "",
                examples=await asyncio.to_thread(_examples, agent.config.world),
            )
            for name, agent in self._service.agents.items()
        ]
        return json_response({"agents": offers})

    async def start(self, request: Request) -> Response:
        body, caller = read_body(StartBody, await request.body()), request_caller(request)
        task = Task(id="question", question=body.question)
        if body.previous is not None:
            before = self._trajectory(body.previous, caller)
            if before is None:
                raise ApiError(
                    409, "the run before this question is not over or was deleted", code="conflict", param="previous"
                )
            task = before.follow_up(body.question)
        asked = RunRequest(
            agent=body.agent, task=task, previous=body.previous, protocol=PROTOCOL, background=True, store=True
        )
        return json_response(_live(await self._service.start(asked, caller), self._service), 201)

    async def run(self, request: Request) -> Response:
        run_id, caller = request.path_params["run"], request_caller(request)
        if (live := self._service.running(run_id, caller)) is not None:
            return json_response(_live(live, self._service))
        stored = self._service.store.get(run_id, caller.key)
        if stored is None:
            raise _missing("run")
        return json_response(await asyncio.to_thread(_kept, stored, self._service))

    async def events(self, request: Request) -> Response:
        run = self._service.running(request.path_params["run"], request_caller(request))
        if run is None:
            raise _missing("run")
        start = request.query_params.get("start", "0")
        if not start.isdecimal() or len(start) > 9 or int(start) > len(run.events):
            raise ApiError(400, "`start` must be the number of an event", code="invalid_value", param="start")
        return EventStream(_stream(run, int(start), self._service))  # type: ignore[return-value]

    async def cancel(self, request: Request) -> Response:
        run = self._service.running(request.path_params["run"], request_caller(request))
        if run is None:
            raise _missing("run")
        await run.cancel()
        return Response(status_code=204)

    async def conversations(self, request: Request) -> Response:
        """The newest first. A conversation is named by its first question."""
        caller = request_caller(request)
        live = {run.conversation: run for run in self._service.runs(caller) if run.request.protocol == PROTOCOL}
        rows = [
            ConversationRow(
                id=name,
                question=question,
                updated=live[name].created if name in live else updated,
                running=name in live,
            )
            for name, question, updated in self._service.store.conversations(caller.key, PROTOCOL)
        ]
        known = {row["id"] for row in rows}
        rows += [
            ConversationRow(id=name, question=run.request.task.question[:300], updated=run.created, running=True)
            for name, run in live.items()
            if name not in known
        ]
        return json_response({"conversations": sorted(rows, key=lambda row: row["updated"], reverse=True)})

    async def conversation(self, request: Request) -> Response:
        name, caller = request.path_params["conversation"], request_caller(request)
        records = [
            _live(run, self._service) if isinstance(run, Run) else await asyncio.to_thread(_kept, run, self._service)
            for run in self._members(name, caller)
        ]
        if not records:
            raise _missing("conversation")
        return json_response({"id": name, "runs": records})

    async def delete(self, request: Request) -> Response:
        """Stops what still runs in it."""
        name, caller = request.path_params["conversation"], request_caller(request)
        members = self._members(name, caller)
        if not members:
            raise _missing("conversation")
        for run in members:
            if isinstance(run, Run):
                await run.cancel()
            self._service.forget(run.id, caller)
        return Response(status_code=204)

    def _trajectory(self, run_id: str, caller: Caller) -> Trajectory | None:
        """Of a run that is over."""
        if (live := self._service.running(run_id, caller)) is not None:
            return live.trajectory
        stored = self._service.store.get(run_id, caller.key)
        return stored.trajectory if stored is not None else None

    def _members(self, conversation: str, caller: Caller) -> list[Run | StoredRun]:
        """The runs of a conversation, the first one first."""
        live = [run for run in self._service.runs(caller) if run.conversation == conversation]
        return [*self._service.store.conversation(conversation, caller.key), *live]


def _missing(what: str) -> ApiError:
    return ApiError(404, f"there is no such {what}; it may have been deleted", code="not_found")


@cache
def _examples(world: str | None) -> list[str]:
    """Questions of the offline world that an agent works in, if it has one."""
    return [] if world is None else [sample_task(world, seed).question for seed in _EXAMPLE_SEEDS]


def _live(run: Run, service: Service) -> RunRecord:
    """A run in memory."""
    profile = _profile(run, service)
    view = RunView(
        id=run.id,
        conversation=run.conversation,
        agent=run.request.agent,
        question=run.request.task.question,
        created=run.created,
        elapsed=time.time() - run.created,
        status=run.status,
        profile=timeline.profile_view(profile, _tools(run.request.agent, profile, run.trajectory, service)),
        usage=timeline.usage_view(run.usage),
    )
    events = _shown(run.events, profile)
    return RunRecord(run=view, before=_said(run.request.task.conversation), events=events, next=len(run.events))


def _kept(run: StoredRun, service: Service) -> RunRecord:
    """A run from the store."""
    trajectory = run.trajectory
    profile = profile_of(trajectory)
    view = RunView(
        id=run.id,
        conversation=run.conversation,
        agent=run.agent,
        question=run.question,
        created=run.created,
        elapsed=trajectory.usage.seconds,
        status=run.status,
        profile=timeline.profile_view(profile, _tools(run.agent, profile, trajectory, service)),
        usage=timeline.usage_view(trajectory.usage),
    )
    return RunRecord(
        run=view, before=_said(trajectory.task.conversation), events=timeline.events_of(trajectory), next=0
    )


def _said(conversation: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in conversation]


def _profile(run: Run, service: Service) -> Profile:
    if run.trajectory is not None:
        return profile_of(run.trajectory)
    return service.agents[run.request.agent].setting.profile_of(run.request.task)


def _tools(name: str, profile: Profile, trajectory: Trajectory | None, service: Service) -> set[str]:
    """Tools that the run could call: those that the agent has, if it is still served, and those that it called."""
    agent = service.agents.get(name)
    called = {step.agent for step in trajectory.steps} if trajectory is not None else set()
    return set(agent.tools if agent is not None else profile.tools) | called


async def _stream(run: Run, start: int, service: Service) -> AsyncIterator[bytes]:
    profile, at = _profile(run, service), start
    with suppress(TimeoutError):  # the stream was open for as long as one may be; the page asks for the rest
        async with service.streaming(run):
            async for batch in run.follow(start):
                if not batch:
                    yield HEARTBEAT
                    continue
                at += len(batch)
                body = {"next": at, "events": _shown(batch, profile), "usage": timeline.usage_view(run.usage)}
                yield b"data: " + orjson.dumps(body) + b"\n\n"


def _shown(events: Sequence[RunEvent], profile: Profile) -> list[TimelineEvent]:
    """Events of a run as the timeline takes them. Pieces of text that follow each other become one; those of an item
    that is complete are left out, since its end has the whole text."""
    complete = {event.item for event in events if isinstance(event, ItemDone)}
    shown: list[TimelineEvent] = []
    for event in events:
        if isinstance(event, ItemText):
            if event.item in complete:
                continue
            last = shown[-1] if shown else None
            if last is not None and last["type"] == "text" and last["item"] == event.item:
                last["text"] += event.text
            else:
                shown.append({"type": "text", "item": event.item, "text": event.text})
        elif isinstance(event, ItemBegan):
            shown.append({"type": "began", "item": event.item, "agent": event.agent})
        elif isinstance(event, ItemDone):
            shown.append(timeline.done(event.item, event.step, profile, event.arguments))
        elif isinstance(event, ToolReturned):
            shown.append(timeline.result(event.item, event.step))
        else:
            shown.append(timeline.ended(event.trajectory))
    return shown
