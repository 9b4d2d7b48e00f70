"""The one type that flows through every stage: a task, the steps of an attempt at it, and how it ended.

Everything here is frozen and comes from or goes to a file, so everything is validated. What can be computed (the
answer, the repairs) is a property and is not stored. `codec` converts between text and steps, `ledger` makes ids.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import reduce
from typing import Annotated, Any, Final, Literal, NoReturn

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator

from coa.errors import SchemaVersionError
from coa.trajectory.definitions import definition, remember
from coa.trajectory.identity import content_id

SCHEMA_VERSION: Final = 2
READABLE_VERSIONS: Final = (1, 2)
"""Version 1 names the profile only; version 2 adds `profile_hash` and `profile_definition`."""
NO_ANSWER: Final = "(This question was not answered.)"
"""The turn of a conversation in which a run came to no answer. Without it, the next question would join this one."""
OBSERVATION: Final = "observation"
"""The tag of what a tool or the runtime writes: the only text of a run that the model does not write."""


class Author(StrEnum):
    """Who wrote a piece of text. Only text by the model is trained."""

    MODEL = "model"
    ENVIRONMENT = "environment"


class Stop(StrEnum):
    """Why a run ended. If a limit was reached and the model was made to answer, this is the limit."""

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
    """A model, tool or scorer failed; see `Trajectory.failure`."""
    WAITING = "waiting"
    """The model called a tool that the client has to answer. The call is the last step; `Chain.resume` goes on."""

    @property
    def words(self) -> str:
        """The reason in words, for people."""
        return _STOP_WORDS[self]


_STOP_WORDS: Final = {
    Stop.ANSWERED: "answered",
    Stop.UNANSWERED: "stopped: the model ended without an answer",
    Stop.STEPS: "stopped: out of steps",
    Stop.TOKENS: "stopped: out of tokens",
    Stop.TOOL_CALLS: "stopped: out of tool calls",
    Stop.CONTEXT: "stopped: the context is full",
    Stop.TIME: "stopped: out of time",
    Stop.COST: "stopped: out of money",
    Stop.INTERRUPTED: "interrupted",
    Stop.FAILED: "failed",
    Stop.WAITING: "waiting for the client's tool",
}
CUT_SHORT: Final = (Stop.FAILED, Stop.INTERRUPTED, Stop.WAITING)
"""The run did not come to its end, for a reason that is not the model's: without an answer it is unscored, and
`--retry-failed` runs it again."""


class RepairKind(StrEnum):
    """A mistake in the model's text whose meaning was clear, so that the codec could repair it."""

    MISSING_CLOSE = "missing_close"
    MISSING_OPEN = "missing_open"
    STRAY_CLOSE = "stray_close"
    REPEATED_TAG = "repeated_tag"
    LOOSE_TAG = "loose_tag"
    """A tag in capitals or with spaces inside."""
    TAG_IN_TEXT = "tag_in_text"
    """A tag mentioned in passing, kept as text."""
    NESTED_CALL = "nested_call"
    """A complete element at the end of an unclosed one, read as the step that follows it."""
    UNTAGGED = "untagged"
    MISSING_FENCE = "missing_fence"
    CRLF = "crlf"
    FORGED_CLOSE = "forged_close"
    """An observation that contained its own closing tag; all of it stays the environment's."""
    DISCARDED = "discarded"
    """The model wrote on behind a tool call instead of waiting for its result; that text is not in the run."""


class Frozen(BaseModel):
    """Base of all records: no unknown field, no assignment, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


def clean_text(text: str) -> str:
    """Replace lone surrogates, which cannot be written to a file, by question marks."""
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "replace").decode()
    return text


Text = Annotated[str, AfterValidator(clean_text)]


class FrozenDict(dict[str, Any]):
    """A dict that refuses changes, so that frozen records cannot change; otherwise like any dict."""

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("this record is frozen; make a changed copy with model_copy(update=...)")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[object, ...]:
        return FrozenDict, (dict(self),)


EMPTY: Final = FrozenDict()


def _clean_json(value: Any) -> Any:
    """The value with clean strings, at any depth."""
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, list):
        return [_clean_json(item) for item in value]
    if isinstance(value, dict):
        return {clean_text(key): _clean_json(item) for key, item in value.items()}
    return value


def _clean_meta(meta: Mapping[str, Any]) -> FrozenDict:
    return FrozenDict(_clean_json(dict(meta)))


Meta = Annotated[Mapping[str, JsonValue], AfterValidator(_clean_meta)]


class Usage(Frozen):
    """Tokens, calls, time and cost, as counted by the server or engine. Usages can be added with `+`."""

    prompt_tokens: int = Field(0, ge=0)
    """Input tokens, cached ones included, summed over model calls."""
    completion_tokens: int = Field(0, ge=0)
    cached_tokens: int = Field(0, ge=0)
    """The part of `prompt_tokens` that the server took from its cache."""
    model_calls: int = Field(0, ge=0)
    tool_calls: int = Field(0, ge=0)
    seconds: float = Field(0.0, ge=0)
    cost: float | None = Field(None, ge=0)
    """In the currency of the given prices; None (unknown, not zero) without prices."""

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
        return reduce(operator.add, parts, cls())


class Message(Frozen):
    """One message of a prompt, before the model's chat template is applied."""

    role: Literal["system", "user", "assistant"]
    content: Text


class Repair(Frozen):
    """A mistake in the format that the parser corrected when it read a step."""

    kind: RepairKind
    detail: str = ""


class Tokens(Frozen):
    """Token ids exactly as sampled, with their logprobs. A token belongs to the step in which it begins."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _lengths_agree(self) -> Tokens:
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} logprobs")
        return self


class TurnEnd(Frozen):
    """Where and with which token the model ended its turn. The token is not part of the text: whatever follows was
    written as if it were not there."""

    before: int = Field(ge=0)
    """Index of the step that follows, or the number of steps if none follows."""
    id: int
    logprob: float


class Step(Frozen):
    """One activation of one agent: the text between its opening and its closing tag."""

    agent: str
    """The agent's tag in the profile, e.g. `think`, `web_search`, `observation`."""
    text: Text
    """The content. Tag-like text in it is readable here; the codec neutralises it when it writes."""
    author: Author = Author.MODEL
    surface: Text | None = None
    """The exact characters in the transcript, tags and separators included; None if they are the canonical ones."""
    given: int = Field(0, ge=0)
    """Number of leading characters of the surface that the environment wrote for the model, such as `<answer>`."""
    tokens: Tokens | None = None
    """Ids as sampled; None if the text has none (from a chat API, a teacher, a person)."""
    repairs: tuple[Repair, ...] = ()
    usage: Usage | None = None
    meta: Meta = Field(default_factory=lambda: EMPTY)

    def has(self, kind: RepairKind) -> bool:
        return any(repair.kind is kind for repair in self.repairs)

    @model_validator(mode="after")
    def _authorship_is_consistent(self) -> Step:
        if self.author is Author.ENVIRONMENT and (self.tokens is not None or self.given):
            raise ValueError("a step that the environment wrote cannot have sampled tokens or a given part")
        return self


def observation(text: str, *, meta: Mapping[str, JsonValue] | None = None) -> Step:
    """Make a step of the environment: the result of a tool, a hint, or an error for the model."""
    return Step(agent=OBSERVATION, text=text, author=Author.ENVIRONMENT, meta=meta or {})


class TestCase(Frozen):
    """One test of a program: what it reads and what it should print."""

    __test__ = False  # not a pytest class, despite its name

    stdin: str
    expected: str


class CodeTests(Frozen):
    """Tests of a program: inputs with the expected outputs, or assertions that call it."""

    cases: tuple[TestCase, ...] = ()
    functional: str | None = None
    """Python that calls the solution and asserts; None if `cases` are the tests."""


def _as_answers(value: object) -> object:
    """Accept `42`, `"42"`, `["42", "forty-two"]` or nothing: people write all four."""
    listed = () if value is None else value if isinstance(value, list | tuple) else (value,)
    return tuple(str(item) if isinstance(item, int | float) else item for item in listed)


class Task(Frozen):
    """A question to be answered, with accepted answers, tests or files. Rows of task files have these fields."""

    id: str = Field(min_length=1)
    question: Text
    answer: Annotated[tuple[Text, ...], BeforeValidator(_as_answers)] = ()
    """Accepted answers; any of them is correct. A single string or number is one answer."""
    profile: str | None = None
    tests: CodeTests | None = None
    files: tuple[str, ...] = ()
    prompt: tuple[Message, ...] | None = None
    """The prompt of the row, if it has one (AFM rows do). It replaces the profile's prompt on request, as a whole: the
    conversation is not added to it."""
    conversation: tuple[Message, ...] = ()
    """Earlier turns, before the question. They are part of the prompt and never trained. `system` messages join the
    system prompt."""
    meta: Meta = Field(default_factory=lambda: EMPTY)

    @property
    def request(self) -> Message:
        """The user's message: the question and the task's files."""
        return Message(role="user", content=self.question + "".join(f"\nfile: {path}" for path in self.files))

    @property
    def question_in_context(self) -> str:
        """The question for somebody who has to understand it without the prompt: a judge, or a tool that summarises."""
        if not self.conversation:
            return self.question
        turns = "\n".join(f"{turn.role}: {turn.content}" for turn in self.conversation if turn.role != "system")
        return f"{turns}\nuser: {self.question}"


class FailureSite(StrEnum):
    """The part that failed."""

    MODEL = "model"
    TOOL = "tool"
    SANDBOX = "sandbox"
    SCORER = "scorer"
    RUNTIME = "runtime"
    IMPORT = "import"


class Failure(Frozen):
    """Why a run failed, and where."""

    site: FailureSite
    message: str
    step: int | None = None
    """Index of the step at which it failed, if there was one."""


class Score(Frozen):
    """A grader's number. None means unscored, which is not zero: it is reported separately and kept out of means."""

    value: float | None
    reason: str = ""


def _as_score(value: object) -> object:
    return {"value": value} if value is None or isinstance(value, int | float) else value


Scores = Annotated[Mapping[str, Annotated[Score, BeforeValidator(_as_score)]], AfterValidator(FrozenDict)]


class Trajectory(Frozen):
    """One attempt at one task, in which one model plays every agent. Frozen: changes make a copy."""

    task: Task
    profile: str
    """Name of the profile of the run."""
    profile_hash: str | None = None
    """Hash of the profile's definition, which `profile_of` looks up; None in files of version 1."""
    steps: tuple[Step, ...] = ()
    stop: Stop = Stop.ANSWERED
    failure: Failure | None = None
    scores: Scores = Field(default_factory=lambda: EMPTY)
    usage: Usage = Usage()
    prompt: tuple[Message, ...] | None = None
    """The messages that the model saw; None means the profile's prompt with the task's question."""
    tokenizer: str | None = None
    """Fingerprint of the tokenizer that the steps' tokens belong to."""
    ends: tuple[TurnEnd, ...] = ()
    """Every end of a turn that the model sampled."""
    sample: int = Field(0, ge=0)
    """Number of this attempt among several at the same task."""
    meta: Meta = Field(default_factory=lambda: EMPTY)
    schema_version: int = SCHEMA_VERSION

    @model_validator(mode="before")
    @classmethod
    def _read_version_and_definition(cls, data: object) -> object:
        """Refuse records of a newer release, and take out the profile's definition if the record has one."""
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
            raise ValueError("`profile_definition` must be a string with the profile as JSON")
        if text is not None:
            remember(text)
        return data

    @model_validator(mode="after")
    def _failure_matches_stop(self) -> Trajectory:
        if (self.failure is not None) != (self.stop is Stop.FAILED):
            raise ValueError("`failure` must be given if, and only if, `stop` is `failed`")
        return self

    def __getstate__(self) -> dict[Any, Any]:
        """Includes the profile's definition, so that another process has it too."""
        return {**super().__getstate__(), "profile_definition": definition(self.profile_hash)}

    def __setstate__(self, state: dict[Any, Any]) -> None:
        if (text := state.pop("profile_definition", None)) is not None:
            remember(text)
        super().__setstate__(state)

    @property
    def answer(self) -> str | None:
        """Text of the last step of the agent `answer`, or None."""
        return next((step.text for step in reversed(self.steps) if step.agent == "answer"), None)

    @property
    def key(self) -> tuple[str, int]:
        """Task id and sample number, by which a resumed run knows what is done."""
        return self.task.id, self.sample

    @property
    def repairs(self) -> tuple[Repair, ...]:
        return tuple(repair for step in self.steps for repair in step.repairs)

    def scored(self, name: str, value: float | None, reason: str = "") -> Trajectory:
        """A copy with this score."""
        return self.model_copy(update={"scores": FrozenDict({**self.scores, name: Score(value=value, reason=reason)})})

    def follow_up(self, question: str) -> Task:
        """The next task of the conversation: this run's earlier turns, its question and its answer, then `question`.

        A run without an answer, such as one that was stopped, has `NO_ANSWER` in its place. Files of the task can still
        be read.
        """
        task, answer = self.task, self.answer or ""
        said = Message(role="assistant", content=answer if answer.strip() else NO_ANSWER)
        conversation = (*task.conversation, task.request, said)
        asked = Message(role="user", content=question)
        return Task(
            id=content_id(question, None, ((turn.role, turn.content) for turn in conversation)),
            question=question,
            profile=task.profile,
            files=task.files,
            prompt=(*task.prompt, said, asked) if task.prompt is not None else None,
            conversation=conversation,
        )

    def to_json(self) -> str:
        """One line of JSON: the version first, without fields that have their default.

        The profile's definition is not part of it; `store.Lines` adds it to the first line that needs it.
        """
        rest = self.model_dump_json(exclude_defaults=True, exclude={"schema_version"})
        return f'{{"schema_version":{self.schema_version},{rest[1:]}'

    @classmethod
    def from_json(cls, line: str | bytes) -> Trajectory:
        return cls.model_validate_json(line)
