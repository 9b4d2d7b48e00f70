"""Agents of LangChain of which one asks the others through tools, recorded as spans of two instrumentations."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from openinference.instrumentation.langchain import LangChainInstrumentor as OpenInference
from opentelemetry.instrumentation.langchain import LangchainInstrumentor as OpenLLMetry
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from teams.common import ANALYST, MANAGER, RESEARCHER, calculator, question, web_search, write_spans


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


def ask_researcher(request: str) -> str:
    """Ask the researcher to look something up."""
    return researcher.invoke({"messages": [{"role": "user", "content": request}]})["messages"][-1].text


def ask_analyst(request: str) -> str:
    """Ask the analyst to calculate something."""
    return analyst.invoke({"messages": [{"role": "user", "content": request}]})["messages"][-1].text


manager = create_agent(model, tools=[ask_researcher, ask_analyst], system_prompt=MANAGER, name="manager")
state = manager.invoke({"messages": [{"role": "user", "content": question()}]})

write_spans(openinference.get_finished_spans(), "openinference.jsonl")
write_spans(genai.get_finished_spans(), "genai.jsonl")
print(state["messages"][-1].text)
