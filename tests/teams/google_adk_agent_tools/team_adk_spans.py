"""The same team with the spans that ADK wrote before version 2.12 and that it still writes on request."""

import asyncio
import os

os.environ["ADK_TELEMETRY_SCHEMA_VERSION_OPT_IN"] = "1"

import team

from teams import common

if __name__ == "__main__":
    answer = asyncio.run(team.run(common.question()))
    common.write_spans(team.exporter.get_finished_spans(), "adk_spans.jsonl")
    print(answer)
