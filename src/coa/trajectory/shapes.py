r"""The content of a tool's tags: argument shapes, read tolerantly and written canonically.

A shape belongs to an agent of a profile. `read` returns the arguments and the repairs that were necessary, or a `Slip`
whose message says to the model what was expected. It never raises. `write` is its inverse: from arguments to text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import orjson
from pydantic import Field, JsonValue, model_validator

from coa.trajectory.types import Frozen, Repair, RepairKind

Arguments = Mapping[str, JsonValue]


class Form(StrEnum):
    """Form of an agent's text. Each member shows the arguments that a tool gets."""

    TEXT = "text"
    """Anything: `{"text": ...}`."""
    LINE = "line"
    """One line, such as a query: `{"text": ...}`."""
    LIST = "list"
    """Items separated by a bar: `{"items": [...]}`."""
    CODE = "code"
    """A fenced program, optionally a second fence with its standard input: `{"code": ..., "stdin": ...}`."""
    JSON = "json"
    """A JSON object, fenced or bare, with the fields given."""
    BOXED = "boxed"
    r"""Text whose result is in `\boxed{}`: `{"text": ...}` is the inside."""


class FieldType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    ARRAY = "array"
    OBJECT = "object"


class ArgumentField(Frozen):
    """One field of a JSON argument object."""

    type: FieldType = FieldType.STRING
    """JSON type of the field."""
    required: bool = True
    """Whether the model must give it."""
    about: str = ""
    """Description of the field for the prompt."""


class Shape(Frozen):
    """What the text of an agent looks like, and how it becomes the arguments of a tool."""

    form: Form = Form.TEXT
    """Form of the text."""
    separator: str = Field("|", min_length=1)
    """Separates the items of a `list`."""
    language: str = "py"
    """Language after the opening fence of `code`."""
    stdin: bool = False
    """Whether `code` may have a second fence, marked `sh`, with the standard input of the program."""
    fields: Mapping[str, ArgumentField] = {}
    """Fields of `json`."""

    @model_validator(mode="after")
    def _fields_only_for_json(self) -> Shape:
        if self.fields and self.form is not Form.JSON:
            raise ValueError(f"`fields` belong to the form `json`, not to `{self.form}`")
        return self

    @property
    def fenced(self) -> bool:
        return self.form in (Form.CODE, Form.JSON)


@dataclass(frozen=True)
class Reading:
    """The arguments that were read."""

    arguments: Arguments
    repairs: tuple[Repair, ...] = ()


@dataclass(frozen=True)
class Slip:
    """The text could not be read. `message` is for the model."""

    message: str


_FENCE: Final = re.compile(r"^[ \t]*+```[ \t]*+([A-Za-z0-9_+-]*+)[ \t]*+$", re.MULTILINE)
_TYPES: Final[Mapping[FieldType, tuple[type, ...]]] = {
    FieldType.STRING: (str,),
    FieldType.INTEGER: (int,),
    FieldType.NUMBER: (int, float),
    FieldType.BOOLEAN: (bool,),
    FieldType.ARRAY: (list,),
    FieldType.OBJECT: (dict,),
}


def read(shape: Shape, text: str) -> Reading | Slip:
    repairs: list[Repair] = []
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        repairs.append(Repair(kind=RepairKind.CRLF))
    match shape.form:
        case Form.TEXT:
            return Reading({"text": text.strip()}, tuple(repairs))
        case Form.LINE:
            line = " ".join(text.split())
            return Reading({"text": line}, tuple(repairs)) if line else Slip("it is empty; write one line of text")
        case Form.LIST:
            items: list[JsonValue] = [item for part in text.split(shape.separator) if (item := " ".join(part.split()))]
            if not items:
                return Slip(f"it is empty; write one item, or several separated by {shape.separator!r}")
            return Reading({"items": items}, tuple(repairs))
        case Form.CODE:
            return _read_code(shape, text, repairs)
        case Form.JSON:
            return _read_json(shape, text, repairs)
        case Form.BOXED:
            inside = last_boxed(text)
            return Reading({"text": text.strip() if inside is None else inside.strip()}, tuple(repairs))


def write(shape: Shape, arguments: Arguments) -> str:
    """Canonical text of arguments. `read(shape, write(shape, a))` gives `a` back, up to surrounding blanks."""
    match shape.form:
        case Form.TEXT | Form.LINE:
            return str(arguments["text"])
        case Form.LIST:
            items = arguments["items"]
            assert isinstance(items, list)
            return f" {shape.separator} ".join(str(item) for item in items)
        case Form.CODE:
            program = f"```{shape.language}\n{str(arguments['code']).rstrip()}\n```"
            stdin = arguments.get("stdin")
            return f"\n{program}\n```sh\n{stdin}\n```\n" if stdin else f"\n{program}\n"
        case Form.JSON:
            return f"\n```json\n{orjson.dumps(dict(arguments)).decode()}\n```\n"
        case Form.BOXED:
            return f"\\boxed{{{arguments['text']}}}"


def expectation(shape: Shape) -> str:
    """One sentence for the prompt and for the answer to a slip."""
    match shape.form:
        case Form.TEXT:
            return "free text"
        case Form.LINE:
            return "one line of text"
        case Form.LIST:
            return f"one item, or several separated by {shape.separator}"
        case Form.CODE:
            stdin = "; a second fence marked sh may hold its standard input" if shape.stdin else ""
            return f"a program between ```{shape.language} and ```{stdin}"
        case Form.JSON:
            fields = ", ".join(_describe(name, field) for name, field in shape.fields.items())
            return f"a JSON object between ```json and ```{' with ' + fields if fields else ''}"
        case Form.BOXED:
            return "the reasoning in short and the result in \\boxed{}"


def last_boxed(text: str) -> str | None:
    r"""Inside of the last `\boxed{...}` or `\fbox{...}` with balanced braces, or None. Of nested boxes, the outer."""
    best: tuple[int, int] | None = None
    open_braces: list[int | None] = []  # the start of the inside of a box; None for any other brace
    for token in _BRACES.finditer(text):
        piece = token.group()
        if piece == "}":
            start = open_braces.pop() if open_braces else None
            if start is not None:
                best = (start, token.start())
        elif piece == "{":
            open_braces.append(None)
        elif piece.startswith(("\\boxed", "\\fbox")):  # not \{, which groups nothing
            open_braces.append(token.end())
    return None if best is None else text[best[0] : best[1]]


_BRACES: Final = re.compile(r"\\(?:boxed|fbox)[ \t]*+\{|\\.|[{}]", re.DOTALL)


def stated_result(text: str) -> str | None:
    r"""The result that a text states in passing: the last `\boxed{...}`, else what follows "final answer is"."""
    if (inside := last_boxed(text)) is not None:
        return inside.strip() or None
    found = [match.group("math") or match.group("plain") for match in _FINAL_ANSWER.finditer(text)]
    return found[-1].strip(" \t*") or None if found else None


_FINAL_ANSWER: Final = re.compile(
    r"\b[Ff]inal (?:answer|result)(?: is\b|:| is:)[ \t:*]*+"
    r"(?:\$(?P<math>[^$\n]{1,200})\$|(?P<plain>[A-Z0-9\\(+-](?:[^\n.!?*]|\.(?=\d)){0,120}))"
)
"""A formula between dollars, or what begins like a name or a number, up to the end of the sentence."""


def call_length(shape: Shape, text: str) -> int:
    """How many characters at the start of a tool's unclosed content are the call itself.

    A query is one line. A program or a JSON object ends with its fence, and with the fence of the standard input that
    may follow. Whatever stands behind that is not part of the call.
    """
    if shape.form in (Form.LINE, Form.LIST):
        start = len(text) - len(text.lstrip())
        line = text.find("\n", start)
        return len(text) if line < 0 else line
    if not shape.fenced:
        return len(text)
    fences = list(_FENCE.finditer(text))
    if len(fences) < 2 or text[: fences[0].start()].strip():
        return len(text)
    if shape.stdin and len(fences) >= 4 and fences[2].group(1) in _STDIN_MARKS:
        between = text[fences[1].end() : fences[2].start()]
        return fences[1].end() if between.strip() else fences[3].end()
    return fences[1].end()


def has_open_fence(text: str) -> bool:
    """Whether a fenced block was begun and not ended."""
    return bool(_FENCE.search(text)) and _blocks(text)[1]


_STDIN_MARKS: Final = ("sh", "stdin", "text", "input")


def _describe(name: str, field: ArgumentField) -> str:
    optional = "" if field.required else ", optional"
    return f"{name} ({field.type}{optional}{': ' + field.about if field.about else ''})"


def _blocks(text: str) -> tuple[list[tuple[str, str]], bool]:
    """Fenced blocks as (language, body), and whether a fence was never closed."""
    blocks: list[tuple[str, str]] = []
    opening: re.Match[str] | None = None
    unclosed = False
    for fence in _FENCE.finditer(text):
        if opening is None:
            opening = fence
            continue
        body = text[opening.end() + 1 : max(fence.start() - 1, opening.end() + 1)]
        blocks.append((opening.group(1), body))
        # A language marks an opening fence, so the block before it was never closed.
        unclosed = unclosed or bool(fence.group(1))
        opening = fence if fence.group(1) else None
    if opening is not None:
        blocks.append((opening.group(1), text[opening.end() + 1 :].rstrip().removesuffix("```").rstrip("\n")))
        unclosed = True
    return blocks, unclosed


def _read_code(shape: Shape, text: str, repairs: list[Repair]) -> Reading | Slip:
    blocks, unclosed = _blocks(text)
    if not blocks:
        code = _inline_fence(text)
        repairs.append(Repair(kind=RepairKind.MISSING_FENCE, detail="no fence around the program"))
        return Reading({"code": code}, tuple(repairs)) if code else Slip(f"it is empty; write {expectation(shape)}")
    if unclosed:
        repairs.append(Repair(kind=RepairKind.MISSING_FENCE, detail="a fence is not closed"))
    with_stdin = shape.stdin and len(blocks) == 2 and blocks[1][0] in _STDIN_MARKS
    if len(blocks) > 1 and not with_stdin:
        return Slip(f"it holds {len(blocks)} fenced blocks; write {expectation(shape)}")
    code = blocks[0][1]
    if not code.strip():
        return Slip(f"the program is empty; write {expectation(shape)}")
    return Reading({"code": code, "stdin": blocks[1][1]} if with_stdin else {"code": code}, tuple(repairs))


def _inline_fence(text: str) -> str:
    """The program of "```py print(1)```" on one line, or the text itself if there is no fence."""
    body = text.strip()
    if body.startswith("```"):
        body = re.sub(r"^```[ \t]*(?:python3?|py)?[ \t]*\n?", "", body)
    return body.removesuffix("```").strip("\n")


def _read_json(shape: Shape, text: str, repairs: list[Repair]) -> Reading | Slip:
    blocks, unclosed = _blocks(text)
    if not blocks:
        repairs.append(Repair(kind=RepairKind.MISSING_FENCE, detail="no fence around the object"))
        body = _inline_fence(text.strip().removeprefix("```json")).strip()
    else:
        if unclosed:
            repairs.append(Repair(kind=RepairKind.MISSING_FENCE, detail="a fence is not closed"))
        if len(blocks) > 1:
            return Slip(f"it holds {len(blocks)} fenced blocks; write {expectation(shape)}")
        body = blocks[0][1]
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        return Slip(f"it is not valid JSON ({error}); write {expectation(shape)}")
    if not isinstance(value, dict):
        return Slip(f"it is a JSON {type(value).__name__}, not an object; write {expectation(shape)}")
    return _check_fields(shape, value, repairs)


def _check_fields(shape: Shape, value: dict[str, JsonValue], repairs: list[Repair]) -> Reading | Slip:
    for name, field in shape.fields.items():
        if name not in value:
            if field.required:
                return Slip(f"the field {name!r} is missing; write {expectation(shape)}")
            continue
        given = value[name]
        right = isinstance(given, _TYPES[field.type]) and (isinstance(given, bool) is (field.type is FieldType.BOOLEAN))
        if not right:
            return Slip(f"the field {name!r} is not of type {field.type}; write {expectation(shape)}")
    unknown = [name for name in value if name not in shape.fields]
    if shape.fields and unknown:
        return Slip(f"the field {unknown[0]!r} is unknown; write {expectation(shape)}")
    return Reading(value, tuple(repairs))
