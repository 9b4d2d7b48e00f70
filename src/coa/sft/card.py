"""The model card: what a stranger must know of the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coa import __version__
from coa.sft.config import SftConfig


def model_card(
    config: SftConfig, *, name: str, data: Sequence[str], figures: Mapping[str, str], command: str, profiles: str
) -> str:
    recipe = config.model_dump(mode="json", exclude_defaults=True, exclude={"data", "model"})
    recipe = {"lr": config.lr, "batch_size": config.batch_size, "seed": config.seed, **recipe}
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            f"base_model: {config.model}",
            "tags: [chain-of-agents, sft]",
            "---",
            "",
            f"# {name}",
            "",
            f"{config.model}, fine-tuned on trajectories of a chain of agents (profile: {profiles}) "
            f"with coa {__version__}. Loss on what the model wrote; none on prompts and observations.",
            "",
            "## Data",
            "",
            *(f"- {line}" for line in data),
            "",
            "## Recipe",
            "",
            *(f"- {key}: {value}" for key, value in recipe.items()),
            "",
            "## Figures",
            "",
            *(f"- {key}: {value}" for key, value in figures.items()),
            "",
            "## Command",
            "",
            "```",
            command,
            "```",
            "",
        ]
    )
