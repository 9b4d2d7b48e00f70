"""The same team, traced by the instrumentation of OpenInference in place of ADK's own spans.

Version 1.0.5 of the instrumentation needs the spans that ADK wrote before version 2.12. With newer ones it keeps one
model call of each agent, the last.
"""

import asyncio
import os

os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"
os.environ["ADK_CAPTURE_MESSAGE_CONTENT_IN_SPANS"] = "false"  # OpenInference records the messages already

import team
from openinference.instrumentation.google_adk import GoogleADKInstrumentor

from teams import common

if __name__ == "__main__":
    GoogleADKInstrumentor().instrument(tracer_provider=team.provider)
    answer = asyncio.run(team.run(common.question()))
    common.write_spans(team.exporter.get_finished_spans(), "openinference.jsonl")
    print(answer)
