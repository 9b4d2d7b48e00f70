"""What the teams of all frameworks have in common: the question, the instructions and the two tools.

A team program, `tests/teams/FRAMEWORK/team.py`, runs in an environment with that framework (`requirements.txt` beside
it), not in this project's. It reads OPENAI_BASE_URL (or ANTHROPIC_BASE_URL), writes what the framework itself records
into the folder TRACES, one file per way of recording, and prints the answer as its last line. It is run as

    python team.py "QUESTION"

It has a manager, a researcher with `web_search` and an analyst with `calculator`. The first hand-over to the researcher
fails in the way that `team_script.Failing` describes; the name of the model chooses which.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

QUESTION = "How many people live in Ostrel and Brnov together?"
MANAGER = "You are the manager. Hand the work to the researcher and the analyst, then answer with the number alone."
RESEARCHER = "You are the researcher. Look things up with web_search and report what you found."
ANALYST = "You are the analyst. Calculate with the calculator and report the result."
RESEARCHER_DOES = "Looks things up on the web."
ANALYST_DOES = "Calculates."
BUSY = "The researcher is busy. Try again."


def web_search(query: str) -> str:
    """Search the web.

    Args:
        query: What to search for.
    """
    return {"Ostrel": "Ostrel is a town of 279,500 people.", "Brnov": "Brnov is a town of 395,000 people."}[
        query.split()[-1]
    ]


def calculator(expression: str) -> str:
    """Calculate the value of an arithmetic expression.

    Args:
        expression: The expression, such as 2 + 3.
    """
    left, right = expression.split("+")
    return str(int(left) + int(right))


class BusyOnce:
    """Refuses the first request, as an overloaded service does."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self) -> None:
        self.asked += 1
        if self.asked == 1:
            raise RuntimeError(BUSY)


def question() -> str:
    return sys.argv[1] if len(sys.argv) > 1 else QUESTION


def traces() -> Path:
    folder = Path(os.environ["TRACES"])
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def write_spans(provider_spans: Any, name: str) -> None:
    """Spans of OpenTelemetry's Python SDK (an in-memory exporter's), as the SDK's own JSON, one span per line.

    Stack traces are left out: they name folders of the machine.
    """
    rows = [json.loads(span.to_json(indent=None)) for span in provider_spans]
    for event in (event for row in rows for event in row["events"]):
        event["attributes"].pop("exception.stacktrace", None)
    (traces() / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
