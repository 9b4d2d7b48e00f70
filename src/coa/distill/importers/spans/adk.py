"""What Google ADK adds to the GenAI conventions: the content of model calls and tools, in attributes of its own.

Until version 2.12, and later on request, ADK writes `gcp.vertex.agent.llm_request` and the like. Around the spans of
tools that ran at once it puts one more, which repeats what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from coa.distill.importers.content import as_arguments, as_result, as_text, at, loaded
from coa.distill.importers.gemini_messages import declared_tools
from coa.distill.importers.messages import definitions_in, reply_in, said_in
from coa.distill.importers.spans.span import SpanReading, SpanRole

_OWN: Final = "gcp.vertex.agent."
_MERGED: Final = "(merged tools)"


def with_adk_content(reading: SpanReading, attributes: Mapping[str, Any]) -> SpanReading:
    if reading.role is SpanRole.TOOL and reading.name == _MERGED:
        return SpanReading(name=reading.name)
    request, reply = loaded(attributes.get(f"{_OWN}llm_request")), loaded(attributes.get(f"{_OWN}llm_response"))
    if reading.role is SpanRole.MODEL and isinstance(request, Mapping) and not reading.said:
        definitions = definitions_in(declared_tools(request.get("config")))
        return replace(
            reading,
            system=reading.system or as_text(at(request, "config", "system_instruction")),
            heard=reading.heard or said_in(request.get("contents")),
            said=reply_in(reply),
            tools=reading.tools or tuple(definitions),
            definitions=reading.definitions or definitions,
        )
    given = attributes.get(f"{_OWN}tool_call_args")
    if reading.role is SpanRole.TOOL and isinstance(loaded(given), Mapping):
        output, _ = as_result(attributes.get(f"{_OWN}tool_response"))
        return replace(
            reading,
            arguments=reading.arguments or as_arguments(given),
            output=reading.output if reading.output is not None else output,
        )
    return reading
