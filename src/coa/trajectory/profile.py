"""A profile: which agents there are, what each writes, and who may follow whom. It is data, written in TOML.

The prompt, the parser, the format check, the grammar of constrained decoding, the thresholds of distillation and the
legend of the viewer are all derived from it, so your own profile with new tags and new tools needs no code. A shipped
profile is a file in `profiles/`. Contradictions are refused when a profile is loaded.

`load_profile` finds a profile by name or path, for new runs. `profile_of` finds the profile that a trajectory was made
with, even if the name or path means something else by now, because files carry the definition (`definitions.py`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, JsonValue, ValidationError, model_validator

from coa.errors import ProfileError, refused
from coa.trajectory.conversation import prompt_messages
from coa.trajectory.definitions import definition, remember
from coa.trajectory.shapes import Form, Shape, expectation
from coa.trajectory.types import OBSERVATION, Frozen, FrozenDict, Message, Task, Trajectory


class Kind(StrEnum):
    """Kind of an agent, which decides what happens to its text."""

    THOUGHT = "thought"
    """Free thinking. It may come before any other agent, and the rules about who follows whom ignore it."""
    ROLE = "role"
    """Played by the model alone."""
    TOOL = "tool"
    """Its text goes to a real tool, which answers with an observation."""
    ANSWER = "answer"
    """Ends the run."""


class ScoreVerdict(Frozen):
    """A number that decides who comes next, e.g. `score: 3`."""

    read: Literal["score"] = "score"
    label: str = Field("score", min_length=1)
    """Word before the number."""
    low: int = 1
    """Lowest score."""
    high: int = 4
    """Highest score."""
    pass_at: int = 3
    """Lowest score that passes."""
    passed: tuple[str, ...] = Field(min_length=1)
    """Agents that may follow a score that passes."""
    failed: tuple[str, ...] = Field(min_length=1)
    """Agents that may follow a score that fails."""

    def holds(self, text: str) -> bool | None:
        """Whether the score in the text passes; None if there is no readable score."""
        score = self.score(text)
        return None if score is None else score >= self.pass_at

    def score(self, text: str) -> int | None:
        """The last score in the text that is within `low` and `high`."""
        scale = r"(?:\s*\([^)\n]{0,20}\))?"  # "score (1-4): 3"
        found = re.findall(rf"{re.escape(self.label)}{scale}[^0-9\n]{{0,20}}([0-9]{{1,6}})", text, re.IGNORECASE)
        inside = [int(number) for number in found if self.low <= int(number) <= self.high]
        return inside[-1] if inside else None

    def describe(self) -> str:
        return (
            f"ends with a line `{self.label}: N`, N from {self.low} to {self.high}; "
            f"from {self.pass_at} on {_either(self.passed)} follows, below it {_either(self.failed)}"
        )


class GradeVerdict(Frozen):
    """Several points graded in words, e.g. `progress: poor`. One worst grade fails."""

    read: Literal["grades"] = "grades"
    points: tuple[str, ...] = Field(min_length=1)
    """Points that are graded."""
    grades: tuple[str, ...] = Field(("good", "average", "poor"), min_length=2)
    """Grades from best to worst; the last one fails."""
    passed: tuple[str, ...] = ()
    """Agents that may follow if no point has the worst grade; empty means all of `next`."""
    failed: tuple[str, ...] = Field(min_length=1)
    """Agents that may follow if a point has the worst grade."""

    def holds(self, text: str) -> bool | None:
        points = "|".join(re.escape(point) for point in self.points)
        grades = "|".join(re.escape(grade) for grade in self.grades)
        found = re.findall(rf"(?:{points})[^\n\w]{{0,10}}\b({grades})\b", text, re.IGNORECASE)
        return all(grade.lower() != self.grades[-1].lower() for grade in found) if found else None

    def describe(self) -> str:
        points = ", ".join(f"`{point}: ...`" for point in self.points)
        return (
            f"grades {points} as {_either(self.grades)}; one `{self.grades[-1]}` means {_either(self.failed)} follows"
        )


Verdict = Annotated[ScoreVerdict | GradeVerdict, Field(discriminator="read")]


class Agent(Frozen):
    """One agent of a profile. Its tag is the key of its table under `[agents]`."""

    title: str
    """Name for people. Several tags may share a title (the verification agent has two)."""
    kind: Kind
    """Kind of the agent, which decides what happens to its text."""
    does: str
    """One sentence for the prompt: what to write here."""
    shape: Shape = Shape()
    next: tuple[str, ...] = ()
    """Agents that may follow, not counting thoughts and observations."""
    thought: bool = False
    """Whether a thought must come directly before it. Consecutive tool calls need only one, before the first."""
    max: int | None = Field(None, ge=1)
    """Number of times that it may act in one run."""
    verdict: Verdict | None = None
    """Verdict in its text that decides who may follow: a score, or grades."""
    color: str = "white"
    """Colour in the terminal and the viewer."""


class Limits(Frozen):
    """Limits of one run. When one is reached, the model is made to answer."""

    steps: int = Field(100, ge=1)
    """Number of steps of the model and the environment together."""
    tool_calls: int = Field(40, ge=0)
    """Number of tool calls."""
    model_tokens: int = Field(16_384, ge=1)
    """Number of tokens that the model writes."""
    context_tokens: int = Field(32_768, ge=1)
    """Number of tokens of the whole run, prompt included."""
    seconds: float = Field(1_800, gt=0)
    """Wall time of the run."""
    observation_characters: int = Field(20_000, ge=100)
    """Length of one observation; longer ones are cut."""
    cost: float | None = Field(None, gt=0)
    """Cost of the run, in the currency of the model's prices, which are then required."""

    @model_validator(mode="after")
    def _context_holds_the_output(self) -> Limits:
        if self.model_tokens > self.context_tokens:
            raise ValueError(f"model_tokens ({self.model_tokens}) exceed context_tokens ({self.context_tokens})")
        return self


class AnswerKind(StrEnum):
    """Kind of answer, which decides how it is compared with the correct one."""

    TEXT = "text"
    MATH = "math"
    """An expression. Expressions of equal value are equal answers."""


class Thresholds(Frozen):
    """Thresholds of `coa distill` for runs of this profile, unless its settings say otherwise."""

    min_tool_calls: int = Field(2, ge=0)
    """Runs with fewer tool calls are dropped: they are too easy to teach cooperation."""
    keep_without_reflection: float = Field(0.3, ge=0, le=1)
    """Share of the runs without a reflection that is kept."""


class Profile(Frozen):
    """A protocol: the agents, who may follow whom, the prompt and the limits. A profile is written as a TOML file."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")
    """Name of the profile, recorded in trajectories."""
    about: str
    """One sentence about the profile."""
    start: tuple[str, ...] = Field(min_length=1)
    """Agents that may act first, not counting thoughts."""
    agents: Annotated[Mapping[str, Agent], AfterValidator(FrozenDict)]
    """Agents of the profile, by tag."""
    prompt: str
    """System prompt. `{agents}` and `{rules}` in it are replaced by descriptions of the agents and the rules, and
    `{example}` by the example."""
    example: str = ""
    """A short run, for models that were not trained on chains: one example teaches them the format."""
    limits: Limits = Limits()
    answers: AnswerKind = AnswerKind.TEXT
    """Kind of the answers, which decides how they are compared with the right ones."""
    distill: Thresholds = Thresholds()
    recognised: bool = True
    """Whether tagged text that names no profile (AFM rows) may be read with this one if its tags fit best."""

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> Profile:
        if problems := list(_contradictions(self)) or list(_exhausted(self)):
            raise ValueError("; ".join(problems))
        return self

    def __copy__(self) -> Profile:
        """Drops cached properties, because `model_copy(update=...)` may change the fields they were computed from."""
        copied = super().__copy__()
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied

    @cached_property
    def hash(self) -> str:
        """The `profile_hash` of trajectories that are made with it. Reading it lets `profile_of` find the profile."""
        key = remember(self.model_dump_json())
        _known.setdefault(key, self)
        return key

    @cached_property
    def tags(self) -> frozenset[str]:
        """Every tag that has a meaning in a transcript of this profile."""
        return frozenset(self.agents) | {OBSERVATION}

    @cached_property
    def thought(self) -> str | None:
        """Tag of the thinking agent, if there is one."""
        return next((tag for tag, agent in self.agents.items() if agent.kind is Kind.THOUGHT), None)

    @cached_property
    def tools(self) -> tuple[str, ...]:
        return self.of_kind(Kind.TOOL)

    def of_kind(self, kind: Kind) -> tuple[str, ...]:
        return tuple(tag for tag, agent in self.agents.items() if agent.kind is kind)

    def shape(self, tag: str) -> Shape:
        agent = self.agents.get(tag)
        return agent.shape if agent else Shape()

    def color(self, tag: str) -> str:
        agent = self.agents.get(tag)
        return agent.color if agent else "bright_black"

    @cached_property
    def system_prompt(self) -> str:
        texts = {"agents": describe_agents(self), "rules": describe_rules(self), "example": self.example.strip()}
        return re.sub(r"\{(agents|rules|example)\}", lambda found: texts[found.group(1)], self.prompt).strip()

    def messages(self, task: Task) -> tuple[Message, ...]:
        """The prompt for a task, before the model's chat template."""
        return prompt_messages(self.system_prompt, task)


def with_tool(profile: Profile, tag: str, *, title: str, does: str, shape: Shape) -> Profile:
    """The profile with one more tool. It may act wherever the profile's tools may, and the same agents may follow."""
    known = set(profile.tools)
    like = profile.agents[profile.tools[0]] if known else None

    agents = dict(profile.agents)
    for name, agent in profile.agents.items():
        if known & set(agent.next) if known else agent.next:
            verdict = _leading_to(agent.verdict, known, tag)
            agents[name] = agent.model_copy(update={"next": (*agent.next, tag), "verdict": verdict})
    following = (*(like.next if like else dict.fromkeys([*profile.start, "answer"])), tag)
    thought = like is not None and like.thought
    agents[tag] = Agent(
        title=title, kind=Kind.TOOL, does=does, shape=shape, next=following, thought=thought, color="blue"
    )
    start = (*profile.start, tag) if not known or known & set(profile.start) else profile.start
    try:
        extended = Profile.model_validate({**profile.model_dump(), "agents": agents, "start": start})
    except ValidationError as error:
        raise ProfileError(f"the tool {tag!r} cannot join the profile: {error.errors()[0]['msg']}") from error
    return _announcing(extended, [tag])


def _announcing(profile: Profile, added: Iterable[str]) -> Profile:
    """The profile with a prompt that describes the added agents, also where the prompt is a fixed text."""
    unknown = [tag for tag in added if not _mentions(profile.prompt, tag)]
    if not unknown:
        return profile
    lines = "\n".join(_describe_agent(tag, profile.agents[tag]) for tag in unknown)
    heading = "" if _FURTHER in profile.prompt else f"\n\n{_FURTHER}"
    return profile.model_copy(update={"prompt": f"{profile.prompt.rstrip()}{heading}\n{lines}"})


_FURTHER: Final = "Further agents:"


def _mentions(prompt: str, tag: str) -> bool:
    return "{agents}" in prompt or re.search(rf"(?<![\w]){re.escape(tag)}(?![\w])", prompt) is not None


def _leading_to(verdict: Verdict | None, known: set[str], tag: str) -> Verdict | None:
    """The verdict with one more tool wherever it leads to a known tool."""
    if verdict is None:
        return None
    outcomes = {"passed": verdict.passed, "failed": verdict.failed}
    return verdict.model_copy(update={name: (*tags, tag) for name, tags in outcomes.items() if known & set(tags)})


_known: dict[str, Profile] = {}
"""Profiles that were made or read in this process, by their hash."""


def profile_of(trajectory: Trajectory) -> Profile:
    """Return the profile that a trajectory was made with, including tools that were added for the run.

    Raises:
        ProfileError: The trajectory does not carry its profile, and no shipped profile matches it.
    """
    key = trajectory.profile_hash
    if key is None:
        return _named(trajectory)
    if key not in _known and (text := definition(key)) is not None:
        try:
            _known[key] = Profile.model_validate_json(text)
        except ValidationError as error:
            reason = f"the profile {trajectory.profile!r} that its file defines is refused"
            raise _unknown(trajectory, f"{reason}: {error.errors()[0]['msg']}") from error
    if key not in _known and trajectory.profile in shipped():
        _ = load_profile(trajectory.profile).hash  # a record that was cut out of its file: it may be unchanged
    if key not in _known:
        reason = f"its profile is {trajectory.profile!r} with the hash {key}, which its file does not define"
        raise _unknown(trajectory, reason)
    return _known[key]


def with_profile(trajectory: Trajectory, profile: Profile) -> Trajectory:
    """The trajectory with another profile, or with another version of its profile.

    Tools that were added for the run are added to the other profile too, if that has the same name.
    """
    if trajectory.profile_hash is None:
        profile = _with_added(profile, trajectory.meta)
    elif trajectory.profile_hash == profile.hash:
        return trajectory
    elif trajectory.profile == profile.name and definition(trajectory.profile_hash) is not None:
        for tag, agent in profile_of(trajectory).agents.items():
            if agent.kind is Kind.TOOL and tag not in profile.agents:
                profile = with_tool(profile, tag, title=agent.title, does=agent.does, shape=agent.shape)
    return trajectory.model_copy(update={"profile": profile.name, "profile_hash": profile.hash})


def _named(trajectory: Trajectory) -> Profile:
    """For files of version 1, which have only the name, and in `meta` the tools that were added for the run."""
    try:
        return _with_added(load_profile(trajectory.profile), trajectory.meta)
    except ProfileError as error:
        reason = f"it has only the name of its profile, {trajectory.profile!r}, which is not a shipped one"
        raise _unknown(trajectory, reason) from error


def _unknown(trajectory: Trajectory, reason: str) -> ProfileError:
    return ProfileError(
        f"the trajectory of task {trajectory.task.id!r} cannot be read: {reason}",
        hint="give its profile: --profile FILE.toml, or for training --set profile=FILE.toml",
    )


def _with_added(profile: Profile, meta: Mapping[str, JsonValue]) -> Profile:
    tools = meta.get("tools")
    for tag, row in tools.items() if isinstance(tools, Mapping) else ():
        if tag not in profile.agents and isinstance(row, Mapping):
            shape = Shape.model_validate(row.get("shape") or {})
            profile = with_tool(profile, tag, title=tag, does=str(row.get("does") or ""), shape=shape)
    return profile


def describe_agents(profile: Profile) -> str:
    """One line per agent: tag, title, what it does, and its content."""
    return "\n".join(_describe_agent(tag, agent) for tag, agent in profile.agents.items())


def _describe_agent(tag: str, agent: Agent) -> str:
    content = "" if agent.shape.form is Form.TEXT else f" Content: {expectation(agent.shape)}."
    verdict = f" It {agent.verdict.describe()}." if agent.verdict else ""
    return f"- <{tag}>...</{tag}> {agent.title}: {agent.does}{content}{verdict}"


def describe_rules(profile: Profile) -> str:
    """The rules about who may follow whom, as sentences."""
    lines = [f"- Begin with {_either(profile.start)}."]
    alike: dict[tuple[str, ...], list[str]] = {}
    for tag in profile.tools:
        alike.setdefault(profile.agents[tag].next, []).append(tag)
    for tag, agent in profile.agents.items():
        tools = alike[agent.next] if agent.kind is Kind.TOOL else []
        if not agent.next or (len(tools) > _MANY_TOOLS and tag != tools[0]):
            continue
        answered = _either(tools) if len(tools) > _MANY_TOOLS else tag
        after = f"the observation that answers {answered}" if tools else tag
        lines.append(f"- After {after}: {_either(agent.next)}.")
    if thoughtful := [tag for tag, agent in profile.agents.items() if agent.thought]:
        lines.append(f"- Write a {profile.thought} right before each {_either(thoughtful)}.")
    for tag, agent in profile.agents.items():
        if agent.max is not None:
            lines.append(f"- Use {tag} at most {'once' if agent.max == 1 else f'{agent.max} times'}.")
    if profile.tools:
        lines.append(
            f"- Stop after the closing tag of {_either(profile.tools)}: the result comes as <{OBSERVATION}>. "
            f"Never write an {OBSERVATION} yourself."
        )
    lines.append("- Use these tags only to mark agents, never inside their text.")
    return "\n".join(lines)


_MANY_TOOLS: Final = 4
"""Tools with the same followers share one line where they are more than these."""
_FOLDER: Final = Path(__file__).parent / "profiles"


def shipped() -> tuple[str, ...]:
    """Names of the profiles that come with coa: the TOML files in their folder."""
    return _listed(_FOLDER)


@cache
def _listed(folder: Path) -> tuple[str, ...]:
    return tuple(sorted(item.name.removesuffix(".toml") for item in folder.iterdir() if item.name.endswith(".toml")))


def load_profile(source: str | Path) -> Profile:
    """Load a profile.

    Args:
        source: Name of a shipped profile, or path of a TOML file.

    Raises:
        ProfileError: There is no such profile, or it contradicts itself.
    """
    name = str(source)
    if name in shipped():
        return _shipped(name, _FOLDER)
    path = Path(source)
    if path.suffix != ".toml" and not path.is_file():
        raise ProfileError(
            f"there is no profile {name!r}; shipped are {', '.join(shipped())}",
            hint="give the path of a .toml file for your own profile (coa profile show web --toml is a start)",
        )
    data = _read_toml(path)
    data.setdefault("name", path.stem)
    return _loaded(data, path)


def shipped_toml(name: str) -> str:
    """Source text of a shipped profile, as a start for your own."""
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


@cache
def _shipped(name: str, folder: Path) -> Profile:
    path = Path(f"{name}.toml")
    return _loaded(tomllib.loads((folder / path.name).read_text(encoding="utf-8")), path)


def _loaded(data: dict[str, Any], path: Path) -> Profile:
    """The profile, with every agent that it adds to the profile it extends described in its prompt."""
    base, own_prompt = data.get("extends"), "prompt" in data
    profile = _parse(_with_base(data, path), path)
    if base is None:
        return profile
    added = [tag for tag in profile.agents if tag not in load_profile(base).agents]
    if own_prompt and (absent := [tag for tag in added if not _mentions(profile.prompt, tag)]):
        raise ProfileError(
            f"the profile {path} adds the agent {absent[0]!r}, which its prompt does not mention",
            hint="write {agents} into `prompt` where the agents are to be described, or leave `prompt` out",
        )
    return _announcing(profile, added)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(f"read the profile {path}", error, ProfileError) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ProfileError(
            f"{path} is not valid TOML: {error}", hint="coa profile show web --toml prints a profile to start from"
        ) from error


def _with_base(data: dict[str, Any], path: Path) -> dict[str, Any]:
    """Merge a profile into the shipped one that it names in `extends`: tables merge, everything else is replaced."""
    base = data.pop("extends", None)
    if base is None:
        return data
    if base not in shipped():
        raise ProfileError(f"{path} extends {base!r}; only shipped profiles can be extended: {', '.join(shipped())}")
    return _merge(_with_base(tomllib.loads(shipped_toml(base)), path), data)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _merge(merged[key], value) if both else value
    return merged


def _parse(data: dict[str, Any], path: Path) -> Profile:
    try:
        return Profile.model_validate(data)
    except ValidationError as error:
        reasons = [
            # pydantic puts "Value error, " before the messages of our validators
            ": ".join([*filter(None, [".".join(map(str, item["loc"]))]), item["msg"].removeprefix("Value error, ")])
            for item in error.errors()
        ]
        raise ProfileError(f"the profile {path} is refused:\n  - " + "\n  - ".join(reasons)) from error


_TAG: Final = re.compile(r"[a-z][a-z0-9_]*")


def _contradictions(profile: Profile) -> Iterable[str]:
    agents = profile.agents
    if bad := [tag for tag in agents if not _TAG.fullmatch(tag)]:
        yield f"the tag {bad[0]!r} is not of the form [a-z][a-z0-9_]*"
    if OBSERVATION in agents:
        yield f"`{OBSERVATION}` is the environment's tag and cannot name an agent"
    answers = profile.of_kind(Kind.ANSWER)
    if answers != ("answer",):
        yield f"exactly one agent has the kind `answer`, and its tag is `answer`; found {list(answers)}"
    if len(profile.of_kind(Kind.THOUGHT)) > 1:
        yield f"more than one agent has the kind `thought`: {list(profile.of_kind(Kind.THOUGHT))}"
    yield from _contradictory_agents(profile)
    named = {name for agent in agents.values() for name in agent.next} | set(profile.start)
    if unknown := sorted(named - set(agents)):
        yield f"{unknown} named in `start` or `next` but not defined under [agents]"
        return
    if thoughts := sorted(named & set(profile.of_kind(Kind.THOUGHT))):
        yield f"{thoughts} is a thought: it may come before any agent and must not be listed in `start` or `next`"
    if lost := sorted(_actors(profile) - _reachable(profile, profile.start)):
        yield f"{lost} can never act: no path leads there from `start`"
    if stuck := sorted(tag for tag in _actors(profile) if "answer" not in _reachable(profile, [tag])):
        yield f"from {stuck} no path leads to the answer"


def _contradictory_agents(profile: Profile) -> Iterable[str]:
    for tag, agent in profile.agents.items():
        if agent.kind in (Kind.THOUGHT, Kind.ANSWER) and agent.next:
            yield f"`{tag}` is of kind `{agent.kind}` and cannot have `next`"
        if agent.thought and profile.thought is None:
            yield f"`{tag}` requires a thought before it, but no agent has the kind `thought`"
        if agent.thought and agent.kind is Kind.THOUGHT:
            yield f"`{tag}` is a thought and cannot require one before it"
        if agent.verdict is None:
            continue
        if isinstance(score := agent.verdict, ScoreVerdict) and not score.low < score.pass_at <= score.high:
            yield f"the verdict of `{tag}` can never go both ways: low < pass_at <= high does not hold"
        if outside := [name for name in (*agent.verdict.passed, *agent.verdict.failed) if name not in agent.next]:
            yield f"the verdict of `{tag}` leads to {outside}, which its `next` does not allow"


def _actors(profile: Profile) -> set[str]:
    return {tag for tag, agent in profile.agents.items() if agent.kind is not Kind.THOUGHT}


def _reachable(profile: Profile, start: Iterable[str]) -> set[str]:
    seen: set[str] = set()
    waiting = list(start)
    while waiting:
        tag = waiting.pop()
        if tag not in seen:
            seen.add(tag)
            waiting.extend(name for turn in _turns(profile.agents[tag]) for name in turn)
    return seen


_MOST_STATES: Final = 5_000
"""Number of states above which the search for dead ends is given up."""


def _exhausted(profile: Profile) -> Iterable[str]:
    """Turns after which nobody can ever act, because `max` is used up on every path that leads there."""
    agents = profile.agents
    limited = [tag for tag, agent in agents.items() if agent.max is not None]
    seen: set[tuple[str, tuple[int, ...]]] = set()
    going_on: set[tuple[str, tuple[str, ...]]] = set()
    waiting = [(profile.start, (0,) * len(limited))]
    while waiting and len(seen) <= _MOST_STATES:
        allowed, counts = waiting.pop()
        for tag in allowed:
            at = limited.index(tag) if tag in limited else None
            if at is not None and counts[at] >= (agents[tag].max or 0):
                continue
            after = counts if at is None else (*counts[:at], counts[at] + 1, *counts[at + 1 :])
            if (tag, after) in seen:
                continue
            seen.add((tag, after))
            for turn in _turns(agents[tag]):
                if any(name not in limited or after[limited.index(name)] < (agents[name].max or 0) for name in turn):
                    going_on.add((tag, turn))
                    waiting.append((turn, after))
    if len(seen) > _MOST_STATES:
        return
    for tag in dict.fromkeys(tag for tag, _ in seen):
        for turn in _turns(agents[tag]):
            if (tag, turn) not in going_on:
                yield f"`max` lets nobody act after `{tag}` where {_either(turn)} should follow"


def _turns(agent: Agent) -> list[tuple[str, ...]]:
    """Who may follow, for each possible verdict of the agent."""
    if agent.kind is Kind.ANSWER:
        return []
    if agent.verdict is None:
        return [agent.next]
    return list(dict.fromkeys([agent.verdict.passed or agent.next, agent.verdict.failed]))


def _either(names: Iterable[str]) -> str:
    *most, last = names
    return f"{', '.join(most)} or {last}" if most else last
