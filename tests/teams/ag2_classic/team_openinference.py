"""The same team, traced by the instrumentation of OpenInference."""

import team
from openinference.instrumentation.ag2 import AG2Instrumentor

from teams import common

if __name__ == "__main__":
    AG2Instrumentor().instrument(tracer_provider=team.provider)
    answer = team.run(common.question())
    common.write_spans(team.exporter.get_finished_spans(), "openinference.jsonl")
    print(answer)
