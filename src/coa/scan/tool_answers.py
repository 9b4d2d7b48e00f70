"""Whether an observation says that a tool failed, and how.

Runs of coa record it: `ok` and `error` in the meta of the observation, `verdict` for programs, and a list of pages or
queries of which each may have failed. Runs from elsewhere have only the text. There, only the first line and an
uncaught exception count: a page about the error 404 is not an error 404.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from coa.scan.steps import error_of, excerpt
from coa.trajectory import Step

RUNTIME_ERRORS: Final = frozenset({"format", "no_such_tool", "forged_observation", "unfinished", "repeated"})
"""Written by the runtime and not by a tool: the call was never made."""
EMPTY: Final = "empty"
TIME_OUT: Final = "time-out"
NOT_FOUND: Final = "not found"
REFUSED: Final = "refused"
_VERDICTS: Final = {"TLE": TIME_OUT, "MLE": "out of memory", "OLE": "too much output", "CE": "exception SyntaxError"}
_RECORDED: Final = {"timeout": TIME_OUT, "TimeoutError": TIME_OUT, "Refused": REFUSED, "key": REFUSED, "quota": REFUSED}
_HEAD: Final = 400
_TAIL: Final = 600
_LOUD: Final = re.compile(
    r"^\W*(?:fatal\s+)?(?:error|failed|failure|exception)\b|^\W*\[?error\]?\s*[:!]", re.IGNORECASE
)
"""How an observation begins that is nothing but an error."""
_STATUS: Final = re.compile(
    r"\b(?:HTTP(?:/\d(?:\.\d)?)?(?: Error| status| code|:)*|status(?: code)?|answered with|error)[\s:=]*([45]\d\d)\b"
    r"|\b([45]\d\d) (?:Not Found|Forbidden|Unauthorized|Too Many Requests|Bad Request|Internal Server Error|Bad Gateway"
    r"|Service Unavailable|Gateway Time-?out)",
    re.IGNORECASE,
)
_TIME: Final = re.compile(
    r"\btimed?[ -]?out\b|\bno (?:complete )?answer within\b|\bnot read within\b|\bno connection within\b"
    r"|\bnothing came for\b|\btime limit exceeded\b|\bdeadline exceeded\b|\bran longer than\b",
    re.IGNORECASE,
)
_REFUSAL: Final = re.compile(
    r"robots\.txt|\b(?:is|are|was) not (?:a public|opened|allowed|permitted)\b|\bforbidden\b|\baccess denied\b"
    r"|\bpermission denied\b|\bunauthori[sz]ed\b|\bonly (?:addresses|pages)\b.*\bcan be opened\b|\bquota\b"
    r"|\brate limit",
    re.IGNORECASE,
)
_MISSING: Final = re.compile(
    r"\bno page\b|\bnot found\b|\bno such (?:file|page|tool)\b|\bdoes not exist\b|\bis not known\b", re.IGNORECASE
)
_EXCEPTION: Final = re.compile(
    r"^(?:[a-zA-Z_]\w*\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit|Warning))\b(?::|$)", re.M
)
_TRACEBACK: Final = "Traceback (most recent call last)"
_NOTHING: Final = re.compile(
    r"^\W*(?:\w+ found nothing for\b|nothing (?:was )?found|no (?:search )?results?(?: (?:were )?found)?\W*$"
    r"|\(?the program printed nothing|\[\]$|\{\}$|none$|null$)",
    re.IGNORECASE,
)


class ToolFailure(NamedTuple):
    kind: str
    """time-out, HTTP 404, exception KeyError, refused, empty, ..."""
    message: str
    partial: bool = False
    """Whether other parts of the same call succeeded."""

    @property
    def passing(self) -> bool:
        """Whether the same call may succeed a moment later."""
        return self.kind == TIME_OUT or self.kind.startswith("HTTP 5") or self.kind in ("HTTP 408", "HTTP 429")


def failure_in(step: Step) -> ToolFailure | None:
    """How the tool failed whose observation this is; None if it did not. The runtime's own notes are no failure."""
    error, ok = error_of(step), step.meta.get("ok")
    if error in RUNTIME_ERRORS:
        return None
    text = step.text.strip()
    if error or ok is False:
        return ToolFailure(_kind(text, error, step), _message(text), partial=ok is True)
    if parts := _failed_parts(step):
        return ToolFailure(_worded(parts[0]) or "error", excerpt(parts[0], 160), partial=True)
    if not text or (_NOTHING.match(text[:_HEAD]) and len(text) < _HEAD):
        return ToolFailure(EMPTY, excerpt(text, 160) or "the observation is empty")
    if ok is True:
        return None
    head = text[:_HEAD].partition("\n")[0]
    if _LOUD.search(head):
        return ToolFailure(_worded(text[:_HEAD]) or _raised(text) or "error", _message(text))
    if text.startswith(_TRACEBACK) and (raised := _raised(text)) is not None:
        return ToolFailure(raised, _message(text))
    return None


def _kind(text: str, error: str, step: Step) -> str:
    verdict = step.meta.get("verdict")
    if isinstance(verdict, str) and verdict in _VERDICTS:
        return _VERDICTS[verdict]
    if isinstance(verdict, str) and verdict == "RE":
        return _raised(text) or "exit code"
    if error in _RECORDED:
        return _RECORDED[error]
    if worded := _worded(text[:_HEAD]):
        return worded
    if error.endswith(("Error", "Exception", "Failed", "Exit")):
        return f"exception {error}"
    return error or _raised(text) or "error"


def _worded(text: str) -> str | None:
    if found := _STATUS.search(text):
        return f"HTTP {found.group(1) or found.group(2)}"
    if _TIME.search(text):
        return TIME_OUT
    if _REFUSAL.search(text):
        return REFUSED
    return NOT_FOUND if _MISSING.search(text) else None


def _raised(text: str) -> str | None:
    """The exception that ended a program, which the last lines of its output name."""
    found = _EXCEPTION.findall(text[-_TAIL:]) or _EXCEPTION.findall(text[:_HEAD])
    return f"exception {found[-1]}" if found else None


def _message(text: str) -> str:
    last = text.rstrip().rpartition("\n")[2]
    return excerpt(last if _EXCEPTION.match(last) else text, 160) or "the observation is empty"


def _failed_parts(step: Step) -> list[str]:
    """What went wrong with single pages or queries of a call that had several."""
    lists = [value for value in step.meta.values() if isinstance(value, list)]
    return [
        str(part["error"]) for value in lists for part in value if isinstance(part, dict) and part.get("error")
    ]  # fmt: skip
