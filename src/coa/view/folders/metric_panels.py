"""metrics.jsonl as panels: which metrics belong together, and what they are called in TRL and verl.

A metric that is not listed here is in a panel of its own at the end, so a tracker's or a newer version's are shown too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from coa.view.folders.files import is_number
from coa.view.folders.parts import Part, Section
from coa.web.plots import LinePlot, Series, Unit, line_plot

Rows = Sequence[Mapping[str, Any]]
STEP_LINK: Final = "step/{x}"
_NO_METRIC: Final = frozenset({"step", "time", "epoch"})
_OF_A_FAMILY: Final = "success_"
_MOST_FAMILIES: Final = 11


_NUMBERS: Final = frozenset({int, float})
"""Types of numbers in JSON; of a truth value, `isinstance` would say that it is a number."""


class Panel(NamedTuple):
    title: str
    names: Mapping[str, str]
    """Metrics, and what they are called in the legend."""
    about: str = ""
    unit: Unit = "number"
    log: bool = False
    linked: bool = True
    """Whether a point leads to the groups of its step."""


class PanelGroup(NamedTuple):
    title: str
    panels: tuple[Panel, ...]


RL: Final = (
    PanelGroup("Reward and success", (
        Panel("Reward", {"reward": "mean reward"}, "Of all attempts of the step, after overlong shaping."),
        Panel("Success", {"success": "attempts", "answered": "answered", "held_out_success": "held-out tasks",
                          "held_out_answered": "held-out, answered"},
              "Sampled attempts at this step's tasks, and greedy ones at held-out tasks.", "share"),
        Panel("Completion length", {"model_tokens": "tokens"}, "Tokens that the model writes in an attempt."),
        Panel("Tool calls", {"tool_calls": "calls per attempt"}),
    )),
    PanelGroup("Policy", (
        Panel("Entropy", {"entropy": "entropy"}, "Mean of −log p over the sampled tokens."),
        Panel("KL", {"kl": "to the reference model", "policy_kl": "to the sampling policy"}, "Per token.", log=True),
        Panel("Clip fraction", {"clip_fraction": "clip fraction"}, "Share of tokens whose ratio was clipped.", "share"),
        Panel("Gradient norm", {"grad_norm": "gradient norm"}, "Before clipping.", log=True),
        Panel("Loss", {"loss": "policy loss"}),
        Panel("Learning rate", {"lr": "learning rate"}),
        Panel("Sampling against training", {"logprob_diff_mean": "mean", "logprob_diff_max": "maximum"},
              "Difference of log-probabilities between the engine that samples and the model that learns.", log=True),
    )),
    PanelGroup("Groups and failures", (
        Panel("Groups", {"groups_drawn": "sampled", "groups_used": "learnt from", "groups_surplus": "surplus",
                         "groups_stale": "dropped as stale"}),
        Panel("Groups without contrast", {"groups_all_right": "all right", "groups_all_wrong": "all wrong",
                                          "groups_all_equal": "all equal"}, "Every advantage in them is zero."),
        Panel("Failures", {"failed": "failed attempts", "unscored": "unscored attempts", "refilled": "replaced",
                           "updates_skipped": "skipped updates"}),
        Panel("Sampling batches", {"gen_batches": "batches"}, "How many times tasks were sampled in the step."),
    )),
    PanelGroup("Speed", (
        Panel("Time", {"seconds": "step", "sampling_s": "sampling"}, "", "seconds"),
        Panel("Throughput", {"tokens_per_s": "sampled tokens per second"}),
        Panel("Trained tokens", {"trained_tokens": "tokens"}),
    )),
)  # fmt: skip
SFT: Final = (
    PanelGroup("Loss and success", (
        Panel("Loss", {"loss": "training", "held_out_loss": "held-out"}, "Per trained token.", log=True),
        Panel("Success", {"success": "held-out tasks", "answered": "answered"}, "Greedy, with real tools.", "share"),
    )),
    PanelGroup("Optimiser", (
        Panel("Gradient norm", {"grad_norm": "gradient norm"}, "Before clipping.", log=True),
        Panel("Learning rate", {"lr": "learning rate"}),
        Panel("Trained tokens", {"label_tokens": "tokens per update"}),
        Panel("Throughput", {"label_tokens_per_s": "trained tokens per second"}),
    )),
)  # fmt: skip
_NOT_LINKED: Final = frozenset({"held_out_success", "held_out_answered"})


def curve_sections(rows: Rows, groups: Sequence[PanelGroup], *, href: str = "") -> list[Section]:
    """The known metrics in their panels, then all other numbers but those of `sampler_families`.

    `href` is where a point leads, with `{x}` for its step.
    """
    names = _numeric(rows)
    used: set[str] = set()
    sections = []
    for group in groups:
        panels = [plot for panel in group.panels if (plot := panel_plot(rows, panel, href=href)) is not None]
        used |= {name for panel in group.panels for name in panel.names}
        if panels:
            sections.append(Section(title=group.title, about="", parts=list[Part](panels)))
    used |= set(_family_metrics(names))
    others = [
        plot
        for name in names
        if name not in used
        and (plot := panel_plot(rows, Panel(name, {name: name.replace("_", " ")}, log=True), href=href)) is not None
    ]
    if others:
        sections.append(Section(title="Other", about="", parts=list[Part](others)))
    return sections


def panel_plot(rows: Rows, panel: Panel, *, href: str = "") -> LinePlot | None:
    """None if no row has one of the metrics."""
    series = [
        Series(words, values_of(rows, name), href if panel.linked and name not in _NOT_LINKED else "")
        for name, words in panel.names.items()
    ]
    share = panel.unit == "share"
    return line_plot(panel.title, [one for one in series if one.points], about=panel.about, unit=panel.unit,
                     log=panel.log, bottom=0.0 if share else None)  # fmt: skip


def values_of(rows: Rows, name: str) -> list[tuple[float, float | None]]:
    """The values of a metric over the steps. Where most steps have one, a step without is a gap; else it is left out,
    because the metric is measured now and then."""
    there = [(row["step"], value if type(value := row.get(name)) in _NUMBERS else None) for row in rows]
    known = [at for at, (_, value) in enumerate(there) if value is not None]
    if not known:
        return []
    first, last = known[0], known[-1] + 1
    if len(known) == last - first or len(known) * 2 > last - first:
        return there[first:last]
    null = {at for at in range(first, last) if name in rows[at]}
    return [there[at] for at in sorted({*known, *null})]


def sampler_families(rows: Rows, *, href: str = "") -> LinePlot | None:
    """The moving success of families that RL keeps to sample tasks by."""
    names = _family_metrics(_numeric(rows))
    series = [Series(name.removeprefix(_OF_A_FAMILY).replace("_", " "), values_of(rows, name), href)
              for name in names[:_MOST_FAMILIES]]  # fmt: skip
    about = "The moving mean of each family, by which task_sampling=difficulty samples tasks."
    return line_plot("Success by family for the sampler", series, about=about, unit="share", bottom=0.0)


def _family_metrics(names: Sequence[str]) -> list[str]:
    return [name for name in names if name.startswith(_OF_A_FAMILY) and name != "success_tasks"]


def _numeric(rows: Rows) -> list[str]:
    """Names of all metrics with a number, in the order in which they appear."""
    found: dict[str, None] = {}
    for row in rows:
        for name, value in row.items():
            if name not in found and name not in _NO_METRIC and is_number(value):
                found[name] = None
    return list(found)
