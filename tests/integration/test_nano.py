"""The adapter that comes with the package: a chain of agents that works right after installation."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from coa.models.local import load_local
from coa.models.local.model import load_weights
from coa.models.tokenizer import NANO, load_tokenizer, result_folder
from coa.trajectory import read
from coa.worlds.atlas import Atlas
from coa.worlds.atlas.entities import CITY, Split
from support.commands import coa


def test_the_adapter_is_small_and_goes_over_the_embedded_weights() -> None:
    folder = Path(result_folder(NANO))
    assert sum(file.stat().st_size for file in folder.iterdir()) < 10_000_000
    assert json.loads((folder / "adapter_config.json").read_text())["base_model_name_or_path"] == "smollm2"
    assert load_tokenizer(NANO).fingerprint == load_tokenizer("smollm2").fingerprint
    (trained, _), (plain, _) = load_weights(NANO), load_weights("smollm2")
    changed = [
        name
        for (name, one), other in zip(trained.named_parameters(), plain.parameters(), strict=True)
        if not one.equal(other)
    ]
    assert changed and all("proj" in name for name in changed)
    assert all(weight.requires_grad for weight in trained.parameters()), (
        "merged weights can be trained on like any others"
    )


def test_what_was_trained_as_agents_is_not_held_to_the_grammar_by_default() -> None:
    held = {name: load_local(name, max_rows=1) for name in (NANO, "smollm2")}
    try:
        assert {name: model.constrained_by_default for name, model in held.items()} == {NANO: False, "smollm2": True}
    finally:
        for model in held.values():
            asyncio.run(model.close())


def test_nano_finds_its_world_and_answers_a_question_of_it(tmp_path: Path) -> None:
    """Without a question it asks itself one of those that are held out; tasks of two kinds, which it gets right."""
    shown = coa("run", "--model", "nano", "--seed", "1", "--out", tmp_path / "a.jsonl")
    (own,) = read(tmp_path / "a.jsonl")
    assert own.profile == "atlas" and own.answer and own.failure is None and own.answer in shown
    assert {"plan", "answer"} <= {step.agent for step in own.steps}
    city = next(page for page in Atlas(7).pages.values() if page.kind == CITY and page.split is Split.TEST)
    looked_up = f"What is the population of the city {city.name}?"
    for question, right in ((looked_up, city.facts["population"]), ("What is 370 times 48?", "17760")):
        kept = tmp_path / f"{right}.jsonl"
        coa("run", question, "--model", "nano", "--temperature", "0", "--out", kept)
        (made,) = read(kept)
        assert made.answer == right
