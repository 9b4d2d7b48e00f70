"""What a server counts and measures, in Prometheus' text format.

Every label has a small, fixed set of values: no text of a client's becomes one, because each new value would be a new
time series. Nothing here is called for each streamed event; a run and its request cost about 30 µs of CPU together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from coa.trajectory import Trajectory, Usage
from coa.version import __version__

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_RUN: Final = ("agent", "protocol")
_METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_FIRST_EVENT_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_TOOL_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)
_RUN_S: Final = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)


class Metrics:
    """The metrics of one server, in a registry of their own: two servers in one process do not mix."""

    def __init__(self) -> None:
        registry = self._registry = CollectorRegistry()
        # Open files and memory of this process, where /proc has them.
        ProcessCollector(registry=registry)
        build = Gauge("coa_build_info", "Version of coa; the value is always 1.", ["version"], registry=registry)
        build.labels(__version__).set(1)

        def counter(name: str, help_: str, *labels: str) -> Counter:
            return Counter(name, help_, labels, registry=registry)

        def histogram(name: str, help_: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, help_, labels, buckets=buckets, registry=registry)

        self._running = Gauge("coa_runs_running", "Runs in progress.", _RUN, registry=registry)
        self._queued = Gauge("coa_runs_queued", "Runs that wait for a free place.", registry=registry)
        self._runs = counter("coa_runs_total", "Runs that ended, by outcome.", *_RUN, "outcome")
        self._refused = counter("coa_runs_refused_total", "Runs refused by a limit (status 429).", *_RUN)
        self._read = counter("coa_tokens_read_total", "Input tokens, cached ones included.", "agent")
        self._cached = counter(
            "coa_tokens_cached_total", "Input tokens that the model server had in its cache.", "agent"
        )
        self._written = counter("coa_tokens_written_total", "Output tokens.", "agent")
        self._model_calls = counter("coa_model_calls_total", "Requests to the model.", "agent")
        self._cost = counter("coa_cost_total", "Cost of runs, in the currency of the prices that were given.", "agent")
        self._first = histogram(
            "coa_first_event_seconds", "Time from a request to the first event of its run.", _FIRST_EVENT_S, *_RUN
        )
        self._run = histogram("coa_run_seconds", "Time from the start of a run to its end.", _RUN_S, *_RUN)
        self._tools = counter("coa_tool_calls_total", "Calls of the server's tools.", "tool", "ok")
        self._tool = histogram("coa_tool_call_seconds", "Time that a tool took.", _TOOL_S, "tool")
        self._requests = counter(
            "coa_http_requests_total", "HTTP requests that were answered.", "method", "route", "status"
        )

    def watch_queue(self, length: Callable[[], float]) -> None:
        """Report what `length` returns whenever metrics are read."""
        self._queued.set_function(length)

    def run_started(self, agent: str, protocol: str) -> None:
        """A run has left the queue; `run_ended` must follow."""
        self._running.labels(agent, protocol).inc()

    def run_refused(self, agent: str, protocol: str) -> None:
        self._refused.labels(agent, protocol).inc()

    def first_event(self, agent: str, protocol: str, seconds: float) -> None:
        self._first.labels(agent, protocol).observe(seconds)

    def tool_called(self, tool: str, ok: bool, seconds: float) -> None:
        """`tool` is the tag of a tool agent in the profile. A client's own tools are not counted here."""
        self._tools.labels(tool, "true" if ok else "false").inc()
        self._tool.labels(tool).observe(seconds)

    def run_ended(
        self, trajectory: Trajectory, agent: str, protocol: str, seconds: float, *, before: Usage | None = None
    ) -> None:
        """`before` is the usage with which a resumed run began: it has been counted already."""
        self._running.labels(agent, protocol).dec()
        self._runs.labels(agent, protocol, trajectory.stop.value).inc()
        self._run.labels(agent, protocol).observe(seconds)
        usage, before = trajectory.usage, before or Usage()
        for counter, now, then in (
            (self._read, usage.prompt_tokens, before.prompt_tokens),
            (self._cached, usage.cached_tokens, before.cached_tokens),
            (self._written, usage.completion_tokens, before.completion_tokens),
            (self._model_calls, usage.model_calls, before.model_calls),
            (self._cost, usage.cost or 0.0, before.cost or 0.0),
        ):
            if now > then:
                counter.labels(agent).inc(now - then)

    def request(self, method: str, route: str | None, status: int) -> None:
        """`route` is the pattern that matched, such as /v1/responses/{id}; None for a path that no route matches."""
        self._requests.labels(method if method in _METHODS else "other", route or "other", status).inc()

    def render(self) -> bytes:
        """All of it, as `GET /metrics` answers with `CONTENT_TYPE`."""
        return generate_latest(_WithoutCreated(self._registry))


class _WithoutCreated(CollectorRegistry):
    """Leaves out the `_created` series, which double the number of series and which nobody here needs.

    prometheus_client can switch them off only for the whole process, which may have other metrics of its own.
    """

    def __init__(self, registry: Collector) -> None:
        super().__init__()
        self._source = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._source.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
