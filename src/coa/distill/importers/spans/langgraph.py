"""Which spans of a LangGraph trace are agents.

Instrumentations of LangChain make a span for every graph, node and function. They call a span an agent if its name
contains "agent", or give that name to each graph. Which graph a span belongs to stands in LangGraph's metadata, as a
path of nodes: `manager:1f0c|agent:8e21` is the node `agent` in the graph that ran inside the node `manager`. From this
follows who an agent is:

- a graph in which a node calls a model is an agent, by the name of `create_agent`, of the graph or of its node;
- in a graph without such a name in which several nodes call models, each of these nodes is an agent;
- every other graph, node and function is a path to what is below it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from coa.distill.importers.content import loaded
from coa.distill.importers.spans.span import SpanReading, SpanRole, TraceSpan

_PREFIXES: Final = ("traceloop.association.properties.", "langsmith.metadata.")
_PATH: Final = "langgraph_checkpoint_ns"
_AGENT_NODES: Final = frozenset({"agent", "model", "call_model"})
"""The node of a ready-made agent that calls the model."""
_UNNAMED: Final = frozenset({"LangGraph", ""})
"""The name of a graph that was compiled without one."""


@dataclass
class _Graph:
    """A graph that ran, by its span."""

    span: TraceSpan
    path: tuple[str, ...]
    name: str = ""
    nodes: dict[str, None] = field(default_factory=dict)
    """The nodes in which a model was called."""


def graph_metadata(span: TraceSpan) -> Mapping[str, Any]:
    """What LangGraph says of the span; empty for spans of anything else."""
    found = loaded(span.attributes.get("metadata"))
    if isinstance(found, Mapping) and (_PATH in found or found.get("ls_integration")):
        return found
    return {
        key[len(prefix) :]: value
        for key, value in span.attributes.items()
        for prefix in _PREFIXES
        if key.startswith(prefix)
    }


def with_graph_agents(
    spans: Iterable[TraceSpan], known: Mapping[str, TraceSpan], read: Callable[[TraceSpan], SpanReading]
) -> None:
    """Corrects what the spans of a trace are read as. Traces without LangGraph's metadata stay as they are."""
    about = {span.id: graph_metadata(span) for span in spans}
    paths = {identity: _path(found) for identity, found in about.items()}
    if not any(paths.values()):
        return
    graphs: dict[str, _Graph] = {}
    for identity, path in paths.items():
        if not path or read(known[identity]).role is not SpanRole.MODEL:
            continue
        above = _graph_span(known[identity], path[:-1], known, paths)
        if above is None:
            continue
        graph = graphs.setdefault(above.id, _Graph(above, path[:-1]))
        graph.name = graph.name or str(about[identity].get("lc_agent_name") or "")
        graph.nodes[_node(path[-1])] = None
    agents: dict[str, str] = {}
    for graph in graphs.values():
        if graph.name or len(graph.nodes) < 2 or not _AGENT_NODES.isdisjoint(graph.nodes):
            agents[graph.span.id] = _name(graph, read)
            continue
        for span in graph.span.children:
            path = paths.get(span.id, ())
            if path[:-1] == graph.path and path and (node := _node(path[-1])) in graph.nodes:
                agents[span.id] = node
    for identity, found in about.items():
        span, reading = known[identity], read(known[identity])
        if identity in agents:
            span.reading = replace(reading, role=SpanRole.AGENT, name=agents[identity], error=None)
        elif reading.role is SpanRole.AGENT and (found or _of_graph(span)):
            span.reading = replace(reading, role=SpanRole.OTHER)


def _path(found: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(part for part in str(found.get(_PATH) or "").split("|") if part)


def _node(part: str) -> str:
    return part.partition(":")[0]


def _graph_span(
    span: TraceSpan, path: tuple[str, ...], known: Mapping[str, TraceSpan], paths: Mapping[str, tuple[str, ...]]
) -> TraceSpan | None:
    """The nearest span above that is at the place where the graph was called."""
    above, seen = known.get(span.parent or ""), {span.id}
    while above is not None and above.id not in seen:
        if paths.get(above.id, ()) == path:
            return above
        seen.add(above.id)
        above = known.get(above.parent or "")
    return None


def _name(graph: _Graph, read: Callable[[TraceSpan], SpanReading]) -> str:
    if graph.name:
        return graph.name
    named = str(graph.span.attributes.get("traceloop.entity.name") or read(graph.span).name)
    return named if named not in _UNNAMED else _node(graph.path[-1]) if graph.path else "agent"


def _of_graph(span: TraceSpan) -> bool:
    return span.attributes.get("gen_ai.provider.name") == "langgraph"
