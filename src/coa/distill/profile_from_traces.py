"""`profile_from_traces`: a profile made from what a team did, so that nobody has to write one for the team's own tools.

It reads the traces three times. First it collects what the team has: tools with their arguments, and parts such as a
planner or a verifier. Then it converts every run with a draft in which anybody may follow anybody, and counts who did
follow whom. The proposal allows what was seen, with one generalisation: what was seen of one tool holds for all tools,
because a rule such as "never two calculations in a row" would be an accident of the sample. At last every run is
converted with the proposal and checked, so that the summary says how many runs fit, and one short run becomes the
example in the prompt.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coa.distill.compose import CHECK, REFLECTION, SUGGESTED
from coa.distill.importers.detect import Traces
from coa.distill.importers.trace_format import Imported
from coa.distill.profile_survey import ANSWER, ROLES, THINK, Order, Run, Survey, draft_of
from coa.distill.profile_toml import to_toml
from coa.distill.roles import RoleMap, load_roles
from coa.distill.team_run import Skipped
from coa.distill.tool_names import DROP, own_tag
from coa.distill.tool_use import use_comment
from coa.errors import ConfigError, ProfileError, StoreError
from coa.report import plural
from coa.trajectory import OBSERVATION, Agent, Kind, Limits, Profile, Rule, check, render
from coa.trajectory.profile import ScoreVerdict, Thresholds
from coa.trajectory.shorten import shorten

_PROMPT: Final = """\
You solve the user's task as a chain of agents. You play all of them yourself, one after another, in one text.
Each activation is written between its own tags.

Agents:
{agents}

Order:
{rules}

Keep the answer as short as the task allows.
"""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_EXAMPLE: Final = 1_600
"""Characters of the longest run that becomes the example."""
_IN_EXAMPLE: Final = 200
"""Characters of an observation in the example."""


@dataclass(frozen=True, slots=True)
class ProfileProposal:
    profile: Profile
    toml: str
    """The profile as a file, with a comment for each proposal."""
    runs: int
    fitting: int
    """Number of runs that break no rule of the profile."""
    tools: Mapping[str, int]
    """Number of calls of each tool agent."""
    parts: Mapping[str, str]
    """What each agent of the team became, and who decided."""
    notes: tuple[str, ...] = ()
    """What could not be read or expressed."""
    skipped: tuple[Skipped, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "profile": self.profile.model_dump(mode="json"), "toml": self.toml, "runs": self.runs,
            "fitting": self.fitting, "tools": dict(self.tools), "parts": dict(self.parts), "notes": list(self.notes),
            "skipped": [item.model_dump() for item in self.skipped],
        }  # fmt: skip


def profile_from_traces(
    traces: str | Path | Sequence[str | Path], *, name: str = "team", roles: str | Path | None = None
) -> ProfileProposal:
    """Propose a profile for the traces of a team, which may mix formats and teams.

    `name` becomes the profile's name. `roles` is a roles.toml as for `distill`; a tool that it maps becomes the tool
    agent that it names.
    """
    paths = [traces] if isinstance(traces, str | Path) else list(traces)
    items = Traces(sorted({Path(path) for path in paths}))
    given = load_roles(roles, None)
    for tool, tag in given.tools.items():
        if tag not in (DROP, own_tag(tag)):
            hint = f"write {own_tag(tag)} for a tool agent of that name, or drop"
            raise ConfigError(f"{roles}: tools.{tool}: {tag!r} cannot be the tag of a tool agent", hint=hint)
    return propose(lambda: items, name=name, roles=given)


def propose(
    items: Callable[[], Iterable[Imported]], *, name: str = "team", roles: RoleMap | None = None
) -> ProfileProposal:
    """The same for runs that were read already; `items` is called three times."""
    if not _NAME.fullmatch(name):
        raise ProfileError(f"{name!r} cannot name a profile", hint="use letters, digits, dots, hyphens and underscores")
    given = roles or RoleMap()
    seen = Survey(given)
    for item in items():
        seen.add(item)
    if not seen.runs:
        raise _nothing(seen)
    draft = draft_of(seen)
    order = Order(draft)
    for run in seen.converted(items(), draft):
        order.add(run)
    profile = _proposed(seen, order, name)
    fit = _Fit(profile)
    for run in seen.converted(items(), profile):
        fit.add(run)
    if fit.example:
        prompt = f"{profile.prompt.rstrip()}\n\nExample:\n{{example}}\n"
        profile = profile.model_copy(update={"prompt": prompt, "example": f"{fit.example}\n"})
    notes = [*seen.notes(), *order.notes(), *fit.notes()]
    return ProfileProposal(
        profile, to_toml(profile, _comments(seen, order, fit)), seen.runs, fit.fitting,
        {tag: use.calls for tag, use in seen.tools.items()}, seen.parts(), tuple(notes), tuple(seen.skipped),
    )  # fmt: skip


def _proposed(seen: Survey, order: Order, name: str) -> Profile:
    agents = {tag: agent for tag, agent in seen.agents().items() if tag in (THINK, ANSWER) or order.acted[tag]}
    tools = [tag for tag, agent in agents.items() if agent.kind is Kind.TOOL]
    roles = [tag for tag in agents if tag not in (THINK, ANSWER, *tools)]

    def listed(tags: set[str]) -> tuple[str, ...]:
        """In the order of the profile; one tool stands for all."""
        wide = tags | (set(tools) if tags & set(tools) else set())
        return tuple(tag for tag in (*roles, *tools, ANSWER) if tag in wide)

    after_tools = order.followers(tools) | set(tools)
    thoughtful = order.always_thought(tools)
    for tag in tools:
        agents[tag] = agents[tag].model_copy(update={"next": listed(after_tools), "thought": thoughtful})
    for tag in roles:
        following = listed(order.followers([tag])) or listed({*tools, ANSWER})
        update: dict[str, object] = {"next": following, "thought": order.always_thought([tag])}
        if isinstance(verdict := agents[tag].verdict, ScoreVerdict):
            passed, failed = (listed(order.verdicts[outcome]) for outcome in (True, False))
            failed = failed or listed({*tools, *roles} - {SUGGESTED, CHECK}) or (ANSWER,)
            passed = passed or (ANSWER,)
            decides = set(passed) != set(failed) and not order.unreadable
            update["verdict"] = verdict.model_copy(update={"passed": passed, "failed": failed}) if decides else None
            update["next"] = listed({*following, *passed, *failed})
        agents[tag] = agents[tag].model_copy(update=update)
    agents[ANSWER] = agents[ANSWER].model_copy(update={"thought": order.always_thought([ANSWER])})
    start = listed(set(order.start)) or listed({*tools, ANSWER})
    _open_dead_ends(agents)
    return Profile(
        name=name, about=f"Proposed from {plural(seen.runs, 'run')} of a team.", start=start, agents=agents,
        prompt=_PROMPT, limits=_limits(order),
        distill=Thresholds(
            min_tool_calls=order.fewest_calls,
            keep_without_reflection=Thresholds().keep_without_reflection if REFLECTION in agents else 1.0,
        ),
    )  # fmt: skip


def _open_dead_ends(agents: dict[str, Agent]) -> None:
    """Agents that were seen only in runs without an answer may answer, too."""
    reaching = {ANSWER}
    while more := {tag for tag, agent in agents.items() if tag not in reaching and reaching & set(agent.next)}:
        reaching |= more
    for tag, agent in agents.items():
        if tag not in reaching and agent.kind is not Kind.THOUGHT:
            agents[tag] = agent.model_copy(update={"next": (*agent.next, ANSWER), "verdict": None})


def _limits(order: Order) -> Limits:
    """Twice what was seen, because the sample has not seen everything."""
    tokens = max(2_048, _power(2 * order.written // 3))  # about three characters a token
    return Limits(
        steps=max(20, _rounded(2 * order.steps, 10)),
        tool_calls=max(4, 2 * order.most_calls),
        model_tokens=tokens,
        context_tokens=max(2 * tokens, _power(2 * order.read // 3)),
        observation_characters=min(max(1_000, _rounded(order.observation, 500)), Limits().observation_characters),
    )


def _rounded(number: int, to: int) -> int:
    return -(-number // to) * to


def _power(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


@dataclass
class _Fit:
    """How the runs go with the proposal."""

    profile: Profile
    fitting: int = 0
    broken: Counter[str] = field(default_factory=Counter)
    example: str = ""
    example_of: str = ""
    _best: tuple[int, int] = (0, 0)

    def add(self, run: Run) -> None:
        found = [one for one in check(run.steps, self.profile) if one.rule is not Rule.NO_ANSWER]
        if found:
            self.broken[f"{found[0].rule}: {found[0].message}"] += 1
        elif not run.problems:
            self.fitting += 1
            if run.steps and run.steps[-1].agent == ANSWER:
                self._consider(run)

    def _consider(self, run: Run) -> None:
        """The example is a short run with as many different agents as possible."""
        steps = [
            step.model_copy(update={"text": shorten(step.text, _IN_EXAMPLE), "meta": {}})
            if step.agent == OBSERVATION
            else step
            for step in run.steps
        ]
        text = render(steps, self.profile).strip()
        rank = (len({step.agent for step in steps}), -len(text))
        if len(text) <= _EXAMPLE and rank > self._best and any(step.agent == OBSERVATION for step in steps):
            self._best, self.example, self.example_of = rank, text, run.name

    def notes(self) -> list[str]:
        return [
            f"{plural(count, 'run breaks', 'runs break')} a rule: {text}" for text, count in self.broken.most_common(10)
        ]


def _comments(seen: Survey, order: Order, fit: _Fit) -> dict[str, str]:
    """By the place in the file."""
    comments = {
        "": (
            f"Proposed by `coa profile from-traces` from {plural(seen.runs, 'run')}, of which {order.answered:,} ended "
            f"with an answer. {plural(fit.fitting, 'run follows', 'runs follow')} it. "
            "`coa profile show FILE` checks it after a change."
        ),
        "example": f"Shortened from the run of task {fit.example_of}. Everybody who reads the prompt sees it.",
        "limits": (
            f"The longest run had {plural(order.steps, 'step')} and {plural(order.most_calls, 'tool call')}, and the "
            f"longest observation {plural(order.observation, 'character')}. The limits leave about twice as much room."
        ),
        "distill": _calls_comment(order),
    }
    for tag, use in seen.tools.items():
        comments[f"agents.{tag}"] = f"{use_comment(use, seen.runs)}; {_thought_comment(order, tag)}"
    for tag in (*ROLES, ANSWER):
        acted = f"written {plural(order.acted[tag], 'time')} in {plural(seen.runs, 'run')}"
        comments[f"agents.{tag}"] = f"{acted}; {_thought_comment(order, tag)}"
    return comments


def _thought_comment(order: Order, tag: str) -> str:
    thought, acted = order.thought[tag], order.acted[tag]
    if not thought:
        return "never with a thought before it"
    return f"{'always' if thought == acted else f'{thought:,} of {acted:,} times'} with a thought before it"


def _calls_comment(order: Order) -> str:
    made = sorted(order.calls.elements())
    if not made:
        return "No run ended with an answer."
    return f"Runs that ended with an answer made {made[0]:,} to {made[-1]:,} tool calls."


def _nothing(seen: Survey) -> StoreError:
    if not seen.skipped:
        return StoreError("there are no traces to make a profile from", hint="name files or folders that hold traces")
    first = seen.skipped[0]
    where = f"{first.file} {first.place}".strip()
    more = f" ({plural(len(seen.skipped) - 1, 'more place')} likewise)" if len(seen.skipped) > 1 else ""
    return StoreError(
        f"no run of a team can be read: {where}: {first.reason}{more}",
        hint="docs/guides/frameworks.md lists the formats that can be read",
    )
