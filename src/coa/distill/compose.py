"""Moments of a team's story -> steps of a profile.

The state machine of the profile says which step may come next. A plan or a reflection that is not allowed where the
team wrote it is kept as a thought. Where the order asks for two texts and the team wrote one, its sentences are divided
between them (`texts.py`). What the order asks for and the trace has no text for is left missing: the check reports it,
and `fill` can write it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from pydantic import JsonValue

from coa.distill.roles import Decider, Roles
from coa.distill.splice import Moment, MomentKind
from coa.distill.texts import plan_parts, share_out, with_grades, with_score
from coa.distill.tool_names import DROP, content_of, tag_of
from coa.trajectory import Form, Profile, Reading, State, Step, observation
from coa.trajectory.shapes import read, write
from coa.trajectory.shorten import shorten

PLAN, REFLECTION, SUGGESTED, CHECK = "plan", "reflection", "suggested_answer", "double_check"
SAME_REPLY: Final = "same_reply"
"""In the meta of a call without a thought of its own: the thought before the first call of the reply is also its."""


@dataclass(frozen=True, slots=True)
class Rewriting:
    """What became of one moment."""

    moment: Moment
    steps: tuple[int, ...]
    """Indices of the steps; none where it was left out."""
    why: tuple[str, ...]

    @property
    def reasons(self) -> tuple[str, ...]:
        """The same, and for what is plain from its kind, that."""
        return tuple(filter(None, self.why)) or (_PLAIN[self.moment.kind],)


_PLAIN: Final = {
    MomentKind.THOUGHT: "kept as a thought",
    MomentKind.PLAN: "a plan",
    MomentKind.REFLECTION: "a reflection",
    MomentKind.CALL: "a call",
    MomentKind.RESULT: "what the tool returned",
    MomentKind.CANDIDATE: "kept for the check that follows",
    MomentKind.CHECK: "a check",
    MomentKind.ANSWER: "the answer",
    MomentKind.LEFT_OUT: "left out",
}


@dataclass(frozen=True, slots=True)
class Composed:
    steps: tuple[Step, ...]
    problems: tuple[str, ...]
    """What no step of the profile can express."""
    rewritings: tuple[Rewriting, ...]
    """One for each moment, in their order."""


def compose(moments: Sequence[Moment], profile: Profile, roles: Roles) -> Composed:
    kept = [moment for moment in moments if moment.kind is not MomentKind.LEFT_OUT]
    merged = _merged(kept, profile, roles)
    composer = _Composer(profile, roles, [moment for moment, _ in merged])
    became: dict[int, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for index, (moment, sources) in enumerate(merged):
        begin, composer.why = len(composer.steps), [moment.why] if moment.why else []
        composer.place(index)
        if len(sources) > 1:
            composer.why.append(f"{len(sources)} calls that were answered together are one call")
        steps, why = tuple(range(begin, len(composer.steps))), tuple(dict.fromkeys(composer.why))
        became.update({id(source): (steps, why) for source in sources})
    rewritings = (Rewriting(moment, *became.get(id(moment), ((), (moment.why,)))) for moment in moments)
    return Composed(tuple(composer.steps), tuple(composer.problems), tuple(rewritings))


def _merged(moments: Sequence[Moment], profile: Profile, roles: Roles) -> list[tuple[Moment, list[Moment]]]:
    """Calls that were made and answered together become one call where the tool takes a list; each with its parts."""
    merged: list[tuple[Moment, list[Moment]]] = []
    for moment in moments:
        before, parts = merged[-1] if merged else (None, [])
        if (
            before is not None
            and before.kind is moment.kind is MomentKind.CALL
            and not (before.problem or moment.problem)
            and (tag := tag_of(moment.tool, profile, roles)) == tag_of(before.tool, profile, roles)
            and (shape := profile.shape(tag)).form is Form.LIST
        ):
            texts = (content_of(one.arguments, shape) for one in (before, moment))
            items: list[JsonValue] = [i.strip() for text in texts for i in text.split(shape.separator)]
            joined = Moment(
                MomentKind.CALL, moment.by, tool=moment.tool, arguments={"items": items}, again=before.again
            )
            merged[-1] = (joined, [*parts, moment])
        else:
            merged.append((moment, [moment]))
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
    why: list[str] = field(default_factory=list)
    """Reasons for what becomes of the moment that is being placed."""

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
                self.why.append("the answer of the team")

    def _thought(self, moment: Moment, index: int) -> None:
        only = self.state.allowed == (REFLECTION,) and self.state.waiting is None
        # Words that stand for a thought which nobody wrote comment on nothing.
        if only or (self.failed and not moment.lent and REFLECTION in self.state.allowed):
            self.why.append(
                "the profile allows only a reflection here" if only else "it comments on the error before it"
            )
            self._reflect(moment, index, needed=only)
        elif not moment.lent or any(agent.thought for agent in self.profile.agents.values()):
            self._think(moment.text, moment)
        else:
            # Where no agent has to think before it acts, the call that follows says what was asked.
            self.why.append("no agent of the profile has to think first")

    def _plan(self, moment: Moment) -> None:
        agent = self.profile.agents.get(PLAN)
        if agent is None or PLAN not in self.state.allowed or self.state.counts.get(PLAN, 0) >= (agent.max or 1 << 30):
            self.why.append("the profile allows no plan here")
            self._think(moment.text, moment, written_as=PLAN)
            return
        thought, plan = plan_parts(moment.texts) if self._wants_thought(PLAN) else ("", moment.text)
        self.why.append(f"{moment.by} plans")
        if thought:
            self.why.append("divided: the profile requires a thought before a plan")
        self._think(thought, moment)
        self._add(PLAN, plan, moment)

    def _reflect(self, moment: Moment, index: int, *, needed: bool) -> None:
        """`needed`: an agent that reflects wrote it, or nothing else may come here."""
        self.failed = False
        agent = self.profile.agents.get(REFLECTION)
        if agent is None or REFLECTION not in self.state.allowed:
            self.why.append("the profile allows no reflection here")
            self._think(moment.text, moment, written_as=REFLECTION if moment.kind is MomentKind.REFLECTION else None)
            return
        before, after = self._wants_thought(REFLECTION), self._thought_follows(index)
        parts = share_out(moment.texts, before + 1 + after, main=int(before))
        if parts is None and not needed:
            self.why.append("too short to be divided, so it stays a thought")
            self._think(moment.text, moment)
            return
        if parts is None:
            after = False
            parts = share_out(moment.texts, before + 1, main=int(before)) or [moment.text]
            before = before and len(parts) == 2
        if before or after:
            around = " and ".join(word for word, there in (("before", before), ("after", after)) if there)
            self.why.append(f"divided: the profile requires a thought {around} it")
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
            self.why.append(f"no step can express it: {moment.problem}")
            self.problems.append(f"{moment.by}: {moment.tool}: {moment.problem}")
            return
        tag = tag_of(moment.tool, self.profile, self.roles)
        # Code agents hand in through a program; after an accepted check it only repeats the answer.
        again = moment.finishes and self.state.last == CHECK and tag not in self.state.allowed
        self.skipping = tag == DROP or again
        if self.skipping:
            self.why.append("the answer step says the same" if again else "your roles file drops this tool")
            return
        meta: dict[str, JsonValue] = {"tool": moment.tool} if moment.tool != tag else {}
        if moment.again and not self.state.thought:
            meta[SAME_REPLY] = True
            self.why.append("another call of the same reply, which has one thought, before the first call")
        self.why.append(_chosen(moment.tool, tag, self.roles))
        self._add(tag, content_of(moment.arguments, self.profile.shape(tag)), moment, meta)

    def _result(self, moment: Moment) -> None:
        if self.skipping:
            self.skipping = False
            self.why.append("its call is not in the trajectory")
            return
        text = shorten(moment.text, self.profile.limits.observation_characters)
        if len(text) < len(moment.text):
            self.why.append(f"shortened from {len(moment.text):,} to {len(text):,} characters, the profile's limit")
        # The calls of one reply are commented on together.
        together = bool(self.steps) and SAME_REPLY in self.steps[-1].meta
        self.failed = not moment.ok or (self.failed and together)
        step = observation(text, meta={"ok": moment.ok})
        self.state, _ = self.state.advance(step)
        self.steps.append(step)

    def _check(self, moment: Moment, index: int) -> None:
        candidate, self.candidate = self.candidate, None
        agent = self.profile.agents.get(CHECK)
        if agent is None or SUGGESTED not in self.profile.agents:
            self.why.append("the profile has no check")
            self._think(moment.text, moment, written_as=CHECK)
            return
        following = self._after(index)
        # What was checked was accepted if the answer comes next.
        final = following.text if following is not None and following.kind is MomentKind.ANSWER else ""
        suggested = (candidate.text if candidate else "") or final
        if not suggested:
            # A verdict on something other than an answer, or on an answer that was not recorded, is a reflection.
            if moment.text:
                self.why.append("it judges something other than an answer")
                self._reflect(moment, index, needed=False)
            return
        if not moment.text and moment.score is None and not moment.label:
            self.why.append("a check was asked for, and there is no reply to it")
            return
        parts = share_out(moment.texts, 2, main=1) if agent.thought else [moment.text]
        thought, text = ("", moment.text) if parts is None or len(parts) == 1 else (parts[0], parts[1])
        highest = max((other.score for other in self.moments if other.score is not None), default=0.0)
        text, derived = with_score(
            text, agent.verdict, score=moment.score, label=moment.label, accepted=bool(final), highest=highest
        )
        self.why.append("the answer that was checked becomes the suggestion before the check")
        if thought:
            self.why.append("divided: the profile requires a thought before a check")
        self._add(SUGGESTED, suggested, candidate or moment)
        self._think(thought, moment)
        self._add(CHECK, text, moment, derived)

    def _think(self, text: str, moment: Moment, written_as: str | None = None) -> None:
        if text and self.profile.thought is None:
            self.why.append("the profile has no thoughts")
        elif text:
            self._add(self.profile.thought or "", text, moment, {"told_as": written_as} if written_as else {})

    def _add(self, tag: str, text: str, moment: Moment, meta: Mapping[str, JsonValue] | None = None) -> None:
        derived = meta.get("derived") if meta else None
        for what, source in derived.items() if isinstance(derived, dict) else ():
            self.why.append(f"{what} derived from {_SOURCES.get(str(source), str(source))}")
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


_SOURCES: Final = {
    "score": "the evaluator's number", "words": "the verifier's words", "outcome": "what the team did next",
}  # fmt: skip


def _chosen(tool: str, tag: str, roles: Roles) -> str:
    """Why a tool of the team is this tool agent."""
    match roles.decided[f"tool {tool}"].by:
        case Decider.MAP:
            return f"{tool} is {tag} in your roles file"
        case Decider.NAME:
            return f"{tool} is {tag} because of its name"
        case Decider.DEFAULT:
            return f"{tool} fits no tool agent of the profile"
    return f"{tool} is a tool agent of the profile"
