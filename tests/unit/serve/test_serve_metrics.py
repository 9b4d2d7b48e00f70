from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from coa.serve.metrics import Metrics
from coa.trajectory import Stop, Task, Trajectory, Usage


def ended(usage: Usage, stop: Stop = Stop.ANSWERED) -> Trajectory:
    return Trajectory(task=Task(id="t", question="?"), profile="web", stop=stop, usage=usage)


def values(metrics: Metrics) -> dict[tuple[str, frozenset[str]], float]:
    """Of every series, by its name and the values of its labels."""
    return {
        (sample.name, frozenset(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(metrics.render().decode())
        for sample in family.samples
    }


def test_a_run_counts_its_outcome_tokens_and_cost_once() -> None:
    metrics = Metrics()
    metrics.run_started("nano", "chat")
    assert values(metrics)["coa_runs_running", frozenset({"nano", "chat"})] == 1
    metrics.first_event("nano", "chat", 0.03)
    usage = Usage(prompt_tokens=100, completion_tokens=20, cached_tokens=60, model_calls=3, cost=0.5)
    metrics.run_ended(ended(usage), "nano", "chat", 4.0)
    found = values(metrics)
    assert found["coa_runs_running", frozenset({"nano", "chat"})] == 0
    assert found["coa_runs_total", frozenset({"nano", "chat", "answered"})] == 1
    assert found["coa_tokens_read_total", frozenset({"nano"})] == 100
    assert found["coa_tokens_cached_total", frozenset({"nano"})] == 60
    assert found["coa_tokens_written_total", frozenset({"nano"})] == 20
    assert found["coa_model_calls_total", frozenset({"nano"})] == 3
    assert found["coa_cost_total", frozenset({"nano"})] == 0.5
    assert found["coa_run_seconds_sum", frozenset({"nano", "chat"})] == 4.0
    assert found["coa_first_event_seconds_bucket", frozenset({"nano", "chat", "0.05"})] == 1
    assert found["coa_first_event_seconds_bucket", frozenset({"nano", "chat", "0.025"})] == 0


def test_a_resumed_run_counts_only_what_it_used_since() -> None:
    metrics = Metrics()
    first = Usage(prompt_tokens=100, completion_tokens=20, model_calls=1, cost=0.5)
    both = first + Usage(prompt_tokens=130, completion_tokens=7, model_calls=1, cost=0.25)
    for usage, before in ((first, None), (both, first)):
        metrics.run_started("nano", "responses")
        metrics.run_ended(ended(usage), "nano", "responses", 1.0, before=before)
    found = values(metrics)
    assert found["coa_tokens_read_total", frozenset({"nano"})] == 230
    assert found["coa_tokens_written_total", frozenset({"nano"})] == 27
    assert found["coa_cost_total", frozenset({"nano"})] == 0.75


def test_runs_without_prices_have_no_cost_rather_than_none() -> None:
    metrics = Metrics()
    metrics.run_started("nano", "mcp")
    metrics.run_ended(ended(Usage(prompt_tokens=1)), "nano", "mcp", 1.0)
    assert not [name for name, _ in values(metrics) if name == "coa_cost_total"]


def test_tool_calls_are_counted_by_tool_and_success() -> None:
    metrics = Metrics()
    metrics.tool_called("web_search", True, 0.2)
    metrics.tool_called("web_search", False, 30.0)
    found = values(metrics)
    assert found["coa_tool_calls_total", frozenset({"web_search", "true"})] == 1
    assert found["coa_tool_calls_total", frozenset({"web_search", "false"})] == 1
    assert found["coa_tool_call_seconds_sum", frozenset({"web_search"})] == 30.2


def test_the_queue_is_read_when_metrics_are() -> None:
    metrics, waiting = Metrics(), [1, 2, 3]
    metrics.watch_queue(lambda: len(waiting))
    assert values(metrics)["coa_runs_queued", frozenset()] == 3
    waiting.clear()
    assert values(metrics)["coa_runs_queued", frozenset()] == 0


def test_what_clients_invent_makes_no_new_series() -> None:
    metrics = Metrics()
    for number in range(100):
        metrics.request(f"METHOD{number}", None, 404)
    found = values(metrics)
    assert found["coa_http_requests_total", frozenset({"other", "404"})] == 100
    assert sum(name == "coa_http_requests_total" for name, _ in found) == 1


def test_two_servers_of_one_process_do_not_mix() -> None:
    one, other = Metrics(), Metrics()
    one.request("GET", "/health", 200)
    one.run_refused("nano", "chat")
    assert values(one)["coa_runs_refused_total", frozenset({"nano", "chat"})] == 1
    assert not [name for name, _ in values(other) if name in ("coa_http_requests_total", "coa_runs_refused_total")]


def test_every_metric_is_explained_and_has_no_series_of_creation_times() -> None:
    metrics = Metrics()
    metrics.request("GET", "/health", 200)
    metrics.tool_called("code", True, 0.1)
    families = list(text_string_to_metric_families(metrics.render().decode()))
    assert all(family.documentation for family in families)
    assert not [name for name, _ in values(metrics) if name.endswith("_created")]
