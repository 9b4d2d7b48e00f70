"""The model card: what a stranger must know about a model folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coa.models.local.model import TAG


def model_card(
    *,
    name: str,
    base: str,
    stage: str,
    about: str,
    data: Sequence[str],
    recipe: Mapping[str, object],
    figures: Mapping[str, str],
    command: str,
) -> str:
    return "\n".join(
        [
            "---",
            "library_name: transformers",
            "pipeline_tag: text-generation",
            f"base_model: {base}",
            f"tags: [{TAG}, {stage}]",
            "---",
            "",
            f"# {name}",
            "",
            about,
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
