"""Runs of coa that were exported as spans (`trajectory/formats/otlp_export.py`): read back as the same trajectories.

A step's text is where the conventions put it, in the output of the model or the result of the tool. Token ids are not
in the spans, so a run that comes back has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from coa.distill.importers.spans.span import TraceSpan
from coa.errors import TraceError
from coa.trajectory.formats.otlp_export import AGENT, AUTHOR, DEFINITION, EXTRA, INDEX, PROFILE, RUN, STEPS, TEXT
from coa.trajectory.types import Trajectory


def own_run(spans: Iterable[TraceSpan]) -> TraceSpan | None:
    """The span that is a whole run of coa, of which a trace has at most one; None if others made the trace."""
    return next((span for span in spans if PROFILE in span.attributes), None)


def read_own_run(run: TraceSpan, spans: Iterable[TraceSpan]) -> Trajectory:
    """The trajectory of which `run` is the root and `spans` the trace."""
    if RUN not in run.attributes:
        raise TraceError("the spans of this run were written without content", hint="export it again with --content")
    told = [attributes for span in spans for attributes in (span.attributes, *(event for _, event in span.events))]
    steps = {int(attributes[INDEX]): _step(attributes) for attributes in told if INDEX in attributes}
    expected = int(run.attributes.get(STEPS, len(steps)))
    if sorted(steps) != list(range(expected)):
        raise TraceError(f"{expected - len(steps)} of {expected} steps are missing from the spans")
    row: dict[str, Any] = {**orjson.loads(run.attributes[RUN]), "steps": [steps[index] for index in range(expected)]}
    if DEFINITION in run.attributes:
        row["profile_definition"] = run.attributes[DEFINITION]
    return Trajectory.model_validate(row)


def _step(attributes: Mapping[str, Any]) -> dict[str, Any]:
    extra = orjson.loads(attributes[EXTRA]) if EXTRA in attributes else {}
    return {**extra, "agent": attributes[AGENT], "author": attributes[AUTHOR], "text": _text(attributes)}


def _text(attributes: Mapping[str, Any]) -> str:
    if TEXT in attributes:
        return str(attributes[TEXT])
    if "gen_ai.tool.call.result" in attributes:
        return str(attributes["gen_ai.tool.call.result"])
    said: str = orjson.loads(attributes["gen_ai.output.messages"])[0]["parts"][0]["content"]
    return said
