"""The model card of a model that RL has trained, whichever engine did it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from coa.report import plural
from coa.rl.config import RlConfig
from coa.training.card import model_card
from coa.training.run_folder import METRICS, figures
from coa.version import __version__


def measured_figures(out: Path) -> dict[str, str]:
    """The first and the last value of the metrics that matter, for the card and for the terminal."""
    formats = {"reward": ".3f", "success": ".1%", "held_out_success": ".1%"}
    return figures(out / METRICS, formats, at="at step", rate=("tokens_per_s", "sampled tokens/s"))


def rl_card(
    config: RlConfig, out: Path, *, tasks: int, figures: Mapping[str, str], command: str | None, where: str = ""
) -> str:
    """`where` follows the version of coa, for an engine that has a version too."""
    return model_card(
        config,
        out,
        stage="rl",
        about=f"trained by reinforcement learning with real tools (profile: {config.profile}) with coa "
        f"{__version__}{where}. Only what the model wrote was trained.",
        recipe=("lr", "max_steps", "seed"),
        data=[f"{plural(tasks, 'task')} of {config.tasks}"],
        figures=figures,
        command=command or ["--model", config.model, "--tasks", str(config.tasks), "--out", str(out)],
    )
