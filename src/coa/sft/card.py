"""What the model card says of a fine-tuning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coa.sft.config import SftConfig
from coa.training import card
from coa.version import __version__


def model_card(
    config: SftConfig, *, name: str, data: Sequence[str], figures: Mapping[str, str], command: str, profiles: str
) -> str:
    recipe = config.model_dump(mode="json", exclude_defaults=True, exclude={"data", "model"})
    return card.model_card(
        name=name,
        base=config.model,
        stage="sft",
        about=f"{config.model}, fine-tuned on trajectories of a chain of agents (profile: {profiles}) "
        f"with coa {__version__}. Loss on what the model wrote; none on prompts and observations.",
        data=data,
        recipe={"lr": config.lr, "batch_size": config.batch_size, "seed": config.seed, **recipe},
        figures=figures,
        command=command,
    )
