"""What `nano` was trained for, how often it is right, and whether a question is of that kind. For whoever asks it."""

from __future__ import annotations

import re
from pathlib import Path

from coa.models.tokenizer import NANO, result_folder
from coa.worlds.folder import names_in


def about_nano() -> str:
    """Two lines; the figure is the one in its model card."""
    card = (Path(result_folder(NANO)) / "README.md").read_text(encoding="utf-8")
    measured = re.search(r"([\d.]+%) \[[^]]*\] of (\d+)", card)
    score = f"{measured[1]} of {measured[2]} held-out questions" if measured else ""
    right = f"\nAt temperature 0 it answered {score} right." if measured else ""
    return f"nano knows the offline atlas world and small calculations, and nothing else.{right}"


def outside_training(question: str, world: str) -> str | None:
    """Why a question is not of the kind that nano was trained on; None if it may be.

    Every question that it was trained on names something in the world, or numbers.
    """
    if re.search(r"\d", question) or names_in(world, question):
        return None
    return "this question names nothing that is in the atlas world, and no number: nano was not trained for it"
