"""A supervisor of LangGraph with two agents, recorded as messages and as spans of two instrumentations."""

from __future__ import annotations

import json

from langchain.agents import create_agent
from langchain_core.messages import convert_to_openai_messages, messages_to_dict
from langchain_openai import ChatOpenAI
from langgraph_supervisor import create_supervisor
from openinference.instrumentation.langchain import LangChainInstrumentor as OpenInference
from opentelemetry.instrumentation.langchain import LangchainInstrumentor as OpenLLMetry
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams.common import ANALYST, MANAGER, RESEARCHER, calculator, question, traces, web_search, write_spans


def recorded_by(instrumentor: OpenInference | OpenLLMetry) -> InMemorySpanExporter:
    """Its spans, apart from those of others. A user would export them to a collector instead."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    instrumentor.instrument(tracer_provider=provider, separate_trace_from_runtime_context=True)
    return exporter


openinference, genai = recorded_by(OpenInference()), recorded_by(OpenLLMetry())

model = ChatOpenAI(model="scripted-wrong-name")
reasoning = ChatOpenAI(model="scripted-wrong-name", use_responses_api=True)  # the Responses API passes thoughts on
researcher = create_agent(model, tools=[web_search], system_prompt=RESEARCHER, name="researcher")
analyst = create_agent(reasoning, tools=[calculator], system_prompt=ANALYST, name="analyst")
team = create_supervisor(
    [researcher, analyst], model=model, prompt=MANAGER, supervisor_name="manager", output_mode="full_history"
).compile(name="team")

state = team.invoke({"messages": [{"role": "user", "content": question()}]})

messages = state["messages"]
(traces() / "messages.json").write_text(json.dumps(messages_to_dict(messages), indent=1) + "\n")
(traces() / "openai_messages.json").write_text(json.dumps(convert_to_openai_messages(messages), indent=1) + "\n")
write_spans(openinference.get_finished_spans(), "openinference.jsonl")
write_spans(genai.get_finished_spans(), "genai.jsonl")
print(messages[-1].content)
