"""Moments of a team's story -> steps of a profile.

The state machine of the profile says which step may come next. A plan or a reflection that is not allowed where the
team wrote it is kept as a thought. Where the order asks for two texts and the team wrote one, its sentences are divided
between them (`texts.py`). What the order asks for and the trace has no text for is left missing: the check reports it,
and `fill` can write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from coa.distill.roles import Roles
from coa.distill.splice import Moment, MomentKind
from coa.distill.texts import plan_parts, share_out, with_grades, with_score
from coa.distill.tool_names import DROP, content_of, tag_of
from coa.trajectory import Form, Profile, Reading, State, Step, observation
from coa.trajectory.shapes import read, write
from coa.trajectory.shorten import shorten

PLAN, REFLECTION, SUGGESTED, CHECK = "plan", "reflection", "suggested_answer", "double_check"


@dataclass(frozen=True, slots=True)
class Composed:
    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    """What no step of the profile can express."""


def compose(moments: Sequence[Moment], profile: Profile, roles: Roles) -> Composed:
    composer = _Composer(profile, roles, _merged(moments, profile, roles))
    for index in range(len(composer.moments)):
        composer.place(index)
    return Composed(tuple(composer.steps), tuple(composer.problems))


def _merged(moments: Sequence[Moment], profile: Profile, roles: Roles) -> list[Moment]:
    """Calls that were made and answered together become one call where the tool takes a list."""
    merged: list[Moment] = []
    for moment in moments:
        before = merged[-1] if merged else None
        if (
            before is not None
            and before.kind is moment.kind is MomentKind.CALL
            and not (before.problem or moment.problem)
            and (tag := tag_of(moment.tool, profile, roles)) == tag_of(before.tool, profile, roles)
            and (shape := profile.shape(tag)).form is Form.LIST
        ):
            texts = (content_of(one.arguments, shape) for one in (before, moment))
            items: list[JsonValue] = [i.strip() for text in texts for i in text.split(shape.separator)]
            merged[-1] = Moment(MomentKind.CALL, moment.by, tool=moment.tool, arguments={"items": items})
        else:
            merged.append(moment)
    return merged


@dataclass
class _Composer:
    profile: Profile
    roles: Roles
    moments: list[Moment]
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    failed: bool = False
    """Whether the last result was an error on which nobody has commented yet."""
    skipping: bool = False
    """Whether the next result belongs to a call that was dropped."""
    candidate: Moment | None = None

    def __post_init__(self) -> None:
        self.state = State.begin(self.profile)

    def place(self, index: int) -> None:
        moment = self.moments[index]
        match moment.kind:
            case MomentKind.THOUGHT:
                self._thought(moment, index)
            case MomentKind.PLAN:
                self._plan(moment)
            case MomentKind.REFLECTION:
                self._reflect(moment, index, needed=True)
            case MomentKind.CALL:
                self._call(moment)
            case MomentKind.RESULT:
                self._result(moment)
            case MomentKind.CANDIDATE:
                self.candidate = moment
            case MomentKind.CHECK:
                self._check(moment, index)
            case MomentKind.ANSWER:
                shape = self.profile.shape("answer")
                reading = read(shape, moment.text)
                text = write(shape, reading.arguments) if isinstance(reading, Reading) else moment.text
                self._add("answer", text, moment)

    def _thought(self, moment: Moment, index: int) -> None:
        only = self.state.allowed == (REFLECTION,) and self.state.waiting is None
        if only or (self.failed and REFLECTION in self.state.allowed):
            self._reflect(moment, index, needed=only)
        elif not moment.asked or any(agent.thought for agent in self.profile.agents.values()):
            # Where no agent has to think before it acts, the call that follows says what was asked.
            self._think(moment.text, moment)

    def _plan(self, moment: Moment) -> None:
        agent = self.profile.agents.get(PLAN)
        if agent is None or PLAN not in self.state.allowed or self.state.counts.get(PLAN, 0) >= (agent.max or 1 << 30):
            self._think(moment.text, moment, written_as=PLAN)
            return
        thought, plan = plan_parts(moment.texts) if self._wants_thought(PLAN) else ("", moment.text)
        self._think(thought, moment)
        self._add(PLAN, plan, moment)

    def _reflect(self, moment: Moment, index: int, *, needed: bool) -> None:
        """`needed`: an agent that reflects wrote it, or nothing else may come here."""
        self.failed = False
        agent = self.profile.agents.get(REFLECTION)
        if agent is None or REFLECTION not in self.state.allowed:
            self._think(moment.text, moment, written_as=REFLECTION if moment.kind is MomentKind.REFLECTION else None)
            return
        before, after = self._wants_thought(REFLECTION), self._thought_follows(index)
        parts = share_out(moment.texts, before + 1 + after, main=int(before))
        if parts is None and not needed:
            self._think(moment.text, moment)
            return
        if parts is None:
            after = False
            parts = share_out(moment.texts, before + 1, main=int(before)) or [moment.text]
            before = before and len(parts) == 2
        if before:
            self._think(parts[0], moment)
        following = self._after(index)
        replans = following is not None and following.kind is MomentKind.PLAN
        text, derived = with_grades(parts[int(before)], agent.verdict, replans=replans)
        self._add(REFLECTION, text, moment, derived)
        if after:
            self._think(parts[-1], moment)

    def _call(self, moment: Moment) -> None:
        if moment.problem:
            self.problems.append(f"{moment.by}: {moment.tool}: {moment.problem}")
            return
        tag = tag_of(moment.tool, self.profile, self.roles)
        # Code agents hand in through a program; after an accepted check it only repeats the answer.
        again = moment.finishes and self.state.last == CHECK and tag not in self.state.allowed
        self.skipping = tag == DROP or again
        if not self.skipping:
            meta = {"tool": moment.tool} if moment.tool != tag else {}
            self._add(tag, content_of(moment.arguments, self.profile.shape(tag)), moment, meta)

    def _result(self, moment: Moment) -> None:
        if self.skipping:
            self.skipping = False
            return
        step = observation(shorten(moment.text, self.profile.limits.observation_characters), meta={"ok": moment.ok})
        self.state, _ = self.state.advance(step)
        self.steps.append(step)
        self.failed = not moment.ok

    def _check(self, moment: Moment, index: int) -> None:
        candidate, self.candidate = self.candidate, None
        agent = self.profile.agents.get(CHECK)
        if agent is None or SUGGESTED not in self.profile.agents:
            self._think(moment.text, moment, written_as=CHECK)
            return
        following = self._after(index)
        # What was checked was accepted if the answer comes next.
        final = following.text if following is not None and following.kind is MomentKind.ANSWER else ""
        suggested = (candidate.text if candidate else "") or final
        if not suggested:
            # A verdict on something other than an answer, or on an answer that was not recorded, is a reflection.
            if moment.text:
                self._reflect(moment, index, needed=False)
            return
        if not moment.text and moment.score is None and not moment.label:
            return  # a check was asked for, but there is no answer to it
        parts = share_out(moment.texts, 2, main=1) if agent.thought else [moment.text]
        thought, text = ("", moment.text) if parts is None or len(parts) == 1 else (parts[0], parts[1])
        highest = max((other.score for other in self.moments if other.score is not None), default=0.0)
        text, derived = with_score(
            text, agent.verdict, score=moment.score, label=moment.label, accepted=bool(final), highest=highest
        )
        self._add(SUGGESTED, suggested, candidate or moment)
        self._think(thought, moment)
        self._add(CHECK, text, moment, derived)

    def _think(self, text: str, moment: Moment, written_as: str | None = None) -> None:
        if text and self.profile.thought is not None:
            self._add(self.profile.thought, text, moment, {"told_as": written_as} if written_as else {})

    def _add(self, tag: str, text: str, moment: Moment, meta: Mapping[str, JsonValue] | None = None) -> None:
        step = Step(agent=tag, text=text, meta={"by": moment.by, **(meta or {})})
        self.state, _ = self.state.advance(step)
        self.steps.append(step)

    def _wants_thought(self, tag: str) -> bool:
        return self.profile.agents[tag].thought and not self.state.thought

    def _thought_follows(self, index: int) -> bool:
        """Whether the next step needs a thought and has none."""
        after = self.moments[index + 1] if index + 1 < len(self.moments) else None
        if after is None or after.kind not in (MomentKind.CALL, MomentKind.ANSWER, MomentKind.CANDIDATE):
            return False
        tag = {MomentKind.ANSWER: "answer", MomentKind.CANDIDATE: SUGGESTED}.get(after.kind)
        tag = tag or tag_of(after.tool, self.profile, self.roles)
        agent = self.profile.agents.get(tag)
        return agent is not None and agent.thought

    def _after(self, index: int) -> Moment | None:
        """The next moment that is not a thought."""
        return next((moment for moment in self.moments[index + 1 :] if moment.kind is not MomentKind.THOUGHT), None)
