"""A crew of CrewAI with a manager who delegates, recorded by OpenInference and by CrewAI's own spans."""

from __future__ import annotations

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false"}  # nothing leaves this machine

from crewai import LLM, Agent, Crew, Process, Task
from crewai.telemetry.tracing import telemetry_session
from crewai.tools import tool
from openinference.instrumentation.crewai import CrewAIInstrumentor
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams.common import (
    ANALYST,
    ANALYST_DOES,
    MANAGER,
    RESEARCHER,
    RESEARCHER_DOES,
    calculator,
    question,
    web_search,
    write_spans,
)

openinference, genai = InMemorySpanExporter(), InMemorySpanExporter()
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(openinference))
CrewAIInstrumentor().instrument(tracer_provider=provider)
OpenAIInstrumentor().instrument(tracer_provider=provider)

model = LLM(model="scripted-wrong-name", provider="openai")
researcher = Agent(
    role="researcher", goal=RESEARCHER_DOES, backstory=RESEARCHER, tools=[tool("web_search")(web_search)], llm=model
)
analyst = Agent(role="analyst", goal=ANALYST_DOES, backstory=ANALYST, tools=[tool("calculator")(calculator)], llm=model)
manager = Agent(role="manager", goal="Answers the question.", backstory=MANAGER, allow_delegation=True, llm=model)
crew = Crew(
    agents=[researcher, analyst],
    tasks=[Task(description=question(), expected_output="The number alone.")],
    process=Process.hierarchical,
    manager_agent=manager,
)

with telemetry_session("run-1", "towns", exporters=[genai]):
    answer = crew.kickoff()

write_spans(openinference.get_finished_spans(), "openinference.jsonl")
write_spans(genai.get_finished_spans(), "genai.jsonl")
print(answer.raw)
