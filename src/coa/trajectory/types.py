"""The one type that flows through every stage: a task, the steps taken at it, and how it ended.

Everything here is frozen and comes from or goes to a file, so everything is checked on the way in. What can be computed
(the answer, the number of tool calls) is a property and is not stored. Text <-> steps is `codec`, ids are `ledger`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from coa.errors import SchemaVersionError
from coa.trajectory.definitions import definition, remember

SCHEMA_VERSION: Final = 2
READABLE_VERSIONS: Final = (1, 2)
"""Version 1 names the profile only; version 2 adds `profile_hash` and `profile_definition`."""
OBSERVATION: Final = "observation"
"""The tag of what a tool or the runtime says. The only text of a run that the model does not write."""


class Author(StrEnum):
    """Who wrote a piece of text. This alone decides what is trained."""

    MODEL = "model"
    ENVIRONMENT = "environment"


class Stop(StrEnum):
    """Why a run ended. A run led to an answer because a budget ran out keeps the budget's name."""

    ANSWERED = "answered"
    UNANSWERED = "unanswered"
    """The model ended its turn without an answer."""
    STEPS = "steps"
    TOKENS = "tokens"
    TOOL_CALLS = "tool_calls"
    CONTEXT = "context"
    TIME = "time"
    COST = "cost"
    INTERRUPTED = "interrupted"
    """A person or a signal stopped it."""
    FAILED = "failed"
    """A model, tool or scorer broke; `Trajectory.failure` tells."""


class RepairKind(StrEnum):
    """A slip in the model's text whose meaning was clear, so that the codec read it all the same."""

    MISSING_CLOSE = "missing_close"
    MISSING_OPEN = "missing_open"
    STRAY_CLOSE = "stray_close"
    REPEATED_TAG = "repeated_tag"
    LOOSE_TAG = "loose_tag"
    """A tag in capitals or with spaces inside."""
    TAG_IN_TEXT = "tag_in_text"
    """A tag mentioned in passing, kept as text."""
    NESTED_CALL = "nested_call"
    """A whole element at the end of an unclosed one, read as the step that follows it."""
    UNTAGGED = "untagged"
    MISSING_FENCE = "missing_fence"
    CRLF = "crlf"
    FORGED_CLOSE = "forged_close"
    """An observation that contained its own closing tag; all of it stays the environment's."""


class Frozen(BaseModel):
    """Base of all records: no unknown field, no assignment, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def clean_text(text: str) -> str:
    """Lone surrogates cannot be written to any file; they become question marks."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


Text = Annotated[str, AfterValidator(clean_text)]


class FrozenDict(dict[str, Any]):
    """A dict that refuses change, so that a frozen record stays what it was; otherwise like any dict."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this record is frozen; make a changed copy with model_copy(update=...)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return FrozenDict, (dict(self),)


EMPTY: Final = FrozenDict()
Meta = Annotated[Mapping[str, JsonValue], AfterValidator(FrozenDict)]


class Usage(Frozen):
    """What was spent, as the server or engine counted it. Adds up with `+`."""

    prompt_tokens: int = Field(0, ge=0)
    """Tokens read, cached ones included, summed over model calls."""
    completion_tokens: int = Field(0, ge=0)
    cached_tokens: int = Field(0, ge=0)
    """The part of `prompt_tokens` that the server took from its cache."""
    model_calls: int = Field(0, ge=0)
    tool_calls: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)
    cost: float | None = Field(None, ge=0)
    """In the currency of the prices that were given; None where none was, which is not free of charge."""

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return Usage(
            prompt_tokens=self.prompt_tokens + other.prompt_tokens,
            completion_tokens=self.completion_tokens + other.completion_tokens,
            cached_tokens=self.cached_tokens + other.cached_tokens,
            model_calls=self.model_calls + other.model_calls,
            tool_calls=self.tool_calls + other.tool_calls,
            seconds=self.seconds + other.seconds,
            cost=other.cost if self.cost is None else self.cost + (other.cost or 0.0),
        )

    @classmethod
    def sum(cls, parts: Iterable[Usage]) -> Usage:
        total = cls()
        for part in parts:
            total = total + part
        return total


class Message(Frozen):
    """One message of a prompt, before the model's chat template is applied."""

    role: Literal["system", "user", "assistant"]
    content: Text


class Repair(Frozen):
    kind: RepairKind
    detail: str = ""


class Tokens(Frozen):
    """Ids exactly as sampled, with their logprobs. A token belongs to the step in which it begins."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _lengths_agree(self) -> Tokens:
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} logprobs")
        return self


class TurnEnd(Frozen):
    """Where the model ended its turn, with which token. It is no part of the text: what follows, if anything does, was
    written as if it had not been there."""

    before: int = Field(ge=0)
    """Index of the step that follows, or the number of steps where none does."""
    id: int
    logprob: float


class Step(Frozen):
    """One activation of one agent: what stands between its opening and its closing tag."""

    agent: str
    """The agent's tag in the profile, e.g. `think`, `web_search`, `observation`."""
    text: Text
    """The content, with tag-like text readable (the codec neutralises it when it writes)."""
    author: Author = Author.MODEL
    surface: Text | None = None
    """The exact characters in the transcript, tags and separators included; None when they are the canonical ones."""
    given: int = Field(0, ge=0)
    """How many leading characters of the surface the environment wrote for the model, such as a forced `<answer>`."""
    tokens: Tokens | None = None
    """Ids as sampled; None when the text came without any (a chat API, a teacher, a person)."""
    repairs: tuple[Repair, ...] = ()
    usage: Usage | None = None
    meta: Meta = Field(default_factory=lambda: EMPTY)

    def has(self, kind: RepairKind) -> bool:
        return any(repair.kind is kind for repair in self.repairs)

    @model_validator(mode="after")
    def _authorship_is_consistent(self) -> Step:
        if self.author is Author.ENVIRONMENT and (self.tokens is not None or self.given):
            raise ValueError("a step the environment wrote has no sampled tokens and no given part")
        return self


def observation(text: str, *, meta: Mapping[str, JsonValue] | None = None) -> Step:
    """A step that the environment writes: a tool's result, a hint, an error the model should read."""
    return Step(agent=OBSERVATION, text=text, author=Author.ENVIRONMENT, meta=meta or {})


class TestCase(Frozen):
    """One run of a program under test: what it reads and what it should print."""

    __test__ = False  # not a pytest class, whatever the name suggests

    stdin: str
    expected: str


class CodeTests(Frozen):
    """How a program is judged: by its output for given inputs, or by assertions that call it."""

    cases: tuple[TestCase, ...] = ()
    functional: str | None = None
    """Python that calls the solution and asserts; None when `cases` judge it."""


def _as_answers(value: object) -> object:
    """Accept `42`, `"42"`, `["42", "forty-two"]` or nothing: people write all four."""
    if value is None:
        return ()
    if isinstance(value, str | int | float | bool):
        return (_as_text(value),)
    if isinstance(value, list | tuple):
        return tuple(_as_text(item) for item in value)
    return value


def _as_text(value: object) -> object:
    return str(value) if isinstance(value, int | float | bool) else value


class Task(Frozen):
    """Something to solve. Rows of JSONL or Parquet with these fields are tasks."""

    id: str = Field(min_length=1)
    question: Text
    answer: Annotated[tuple[Text, ...], BeforeValidator(_as_answers)] = ()
    """Accepted answers; any one of them is right. A single string or number is taken as one answer."""
    profile: str | None = None
    tests: CodeTests | None = None
    files: tuple[str, ...] = ()
    prompt: tuple[Message, ...] | None = None
    """The row's own prompt where it brings one (AFM rows do); used on request instead of the profile's."""
    meta: Meta = Field(default_factory=lambda: EMPTY)


class FailureSite(StrEnum):
    """Where something broke."""

    MODEL = "model"
    TOOL = "tool"
    SANDBOX = "sandbox"
    SCORER = "scorer"
    RUNTIME = "runtime"
    IMPORT = "import"


class Failure(Frozen):
    site: FailureSite
    message: str
    step: int | None = None
    """Index of the step at which it broke, where there was one."""


class Score(Frozen):
    """A grader's number. None means unscored, which is not zero: it is reported apart and kept out of means."""

    value: float | None
    reason: str = ""


def _as_score(value: object) -> object:
    return {"value": value} if value is None or isinstance(value, int | float) else value


Scores = Annotated[Mapping[str, Annotated[Score, BeforeValidator(_as_score)]], AfterValidator(FrozenDict)]


class Trajectory(Frozen):
    """One attempt at one task by one model that plays every agent."""

    task: Task
    profile: str
    """Name of the profile whose grammar the steps follow."""
    profile_hash: str | None = None
    """Hash of the profile's definition, which `profile_of` looks up; None in files of version 1."""
    steps: tuple[Step, ...] = ()
    stop: Stop = Stop.ANSWERED
    failure: Failure | None = None
    scores: Scores = Field(default_factory=lambda: EMPTY)
    usage: Usage = Usage()
    prompt: tuple[Message, ...] | None = None
    """The messages that were shown; None stands for the profile's own prompt with the task's question."""
    tokenizer: str | None = None
    """Fingerprint of the tokenizer that the steps' tokens belong to."""
    ends: tuple[TurnEnd, ...] = ()
    """Each time that the model ended its turn, as sampled."""
    sample: int = Field(0, ge=0)
    """Number of this attempt among several at the same task."""
    meta: Meta = Field(default_factory=lambda: EMPTY)
    schema_version: int = SCHEMA_VERSION

    @model_validator(mode="before")
    @classmethod
    def _read_version_and_definition(cls, data: object) -> object:
        """Refuses what a newer release wrote, and takes out the profile's definition where the record brings one."""
        if not isinstance(data, dict):
            return data
        version = data.get("schema_version", SCHEMA_VERSION)
        if version not in READABLE_VERSIONS:
            raise SchemaVersionError(
                f"this trajectory has schema version {version!r}; "
                f"this coa reads the versions {' and '.join(map(str, READABLE_VERSIONS))}",
                hint="pip install --upgrade chain-of-agents" if isinstance(version, int) else None,
            )
        if version == SCHEMA_VERSION and "profile_definition" not in data:
            return data
        data = {**data, "schema_version": SCHEMA_VERSION}
        text = data.pop("profile_definition", None)
        if text is not None and not isinstance(text, str):
            raise ValueError("`profile_definition` is the profile as JSON in a string")
        if text is not None:
            remember(text)
        return data

    @model_validator(mode="after")
    def _failure_matches_stop(self) -> Trajectory:
        if (self.failure is not None) != (self.stop is Stop.FAILED):
            raise ValueError("`failure` is given exactly when `stop` is `failed`")
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """The definition goes along to another process."""
        return {**super().__getstate__(), "profile_definition": definition(self.profile_hash)}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        if (text := state.pop("profile_definition", None)) is not None:
            remember(text)
        super().__setstate__(state)

    @property
    def answer(self) -> str | None:
        """Text of the last answer step, or None. What counts as an answer step is the agent named `answer`."""
        return next((step.text for step in reversed(self.steps) if step.agent == "answer"), None)

    @property
    def key(self) -> tuple[str, int]:
        """Task id and sample number: what a resumed run uses to know what is done."""
        return self.task.id, self.sample

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(repair for step in self.steps for repair in step.repairs)

    def scored(self, name: str, value: float | None, reason: str = "") -> Trajectory:
        """A copy with one more entry in `scores`."""
        return self.model_copy(update={"scores": FrozenDict({**self.scores, name: Score(value=value, reason=reason)})})

    def to_json(self) -> str:
        """One line of JSON: the version first, fields that hold their default left out.

        The profile's definition is no part of it; `store.Lines` adds it to the first line that needs it.
        """
        rest = self.model_dump_json(exclude_defaults=True, exclude={"schema_version"})
        return f'{{"schema_version":{self.schema_version},{rest[1:]}'

    @classmethod
    def from_json(cls, line: str | bytes) -> Trajectory:
        return cls.model_validate_json(line)
