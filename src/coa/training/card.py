"""The model card: what a stranger must know about a model folder."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from coa.addresses import without_passwords
from coa.models.local.model import TAG
from coa.trajectory.types import Frozen


def model_card(
    config: Frozen, out: Path, *, stage: str, about: str, recipe: Sequence[str], data: Sequence[str],
    figures: Mapping[str, str], command: str | Sequence[str],
) -> str:  # fmt: skip
    """`about` follows the name of the base model. Besides the settings in `recipe` the card shows those that are not at
    their defaults."""
    settings = config.model_dump(mode="json")
    changed = config.model_dump(mode="json", exclude_defaults=True, exclude={"model", "data", "tasks"})
    sections = {
        "Data": [f"- {line}" for line in data],
        "Recipe": [f"- {key}: {value}" for key, value in ({key: settings[key] for key in recipe} | changed).items()],
        "Figures": [f"- {key}: {value}" for key, value in figures.items()],
        "Command": ["```", command if isinstance(command, str) else shlex.join(["coa", stage, *command]), "```"],
    }
    header = ["library_name: transformers", "pipeline_tag: text-generation", f"base_model: {settings['model']}"]
    parts = ["\n".join(["---", *header, f"tags: [{TAG}, {stage}]", "---"]), f"# {out.name}"]
    parts.append(f"{settings['model']}, {about}")
    parts += ["\n".join([f"## {title}", "", *lines]) for title, lines in sections.items()]
    return without_passwords("\n\n".join(parts) + "\n")
