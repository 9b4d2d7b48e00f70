"""The tokens of a run: the mask is authorship, and ids and logprobs are those that were sampled."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from coa.trajectory import Step, Tokens, Trajectory, load_profile
from coa.view.overlay import TokensView, tokenizers_of, tokens_view
from support.builders import make_trajectory
from support.tokenizers import tokenizer

PROFILE = load_profile("web")
RUN = make_trajectory(("web_search", "first programmer"), ("observation", "It was Ada."), ("answer", "Ada"))


def text_of(view: TokensView, *, trained: bool) -> str:
    return "".join(token[0] for span in view["spans"] for token in span["tokens"] if bool(token[2]) is trained)


def sampled(text: str = "<answer>Ada</answer>") -> Trajectory:
    own = tokenizer("smollm2")
    (ids,) = own.encode([text])
    tokens = Tokens(ids=tuple(ids), logprobs=tuple(-0.1 * number for number in range(len(ids))))
    return Trajectory(
        task=RUN.task, profile="web", steps=(Step(agent="answer", text="Ada", tokens=tokens),),
        tokenizer=own.fingerprint,
    )  # fmt: skip


def test_only_what_the_model_wrote_is_trained() -> None:
    view = tokens_view(RUN, PROFILE, ["smollm2"])
    assert "It was Ada." in text_of(view, trained=False)
    assert "first programmer" not in text_of(view, trained=False)
    assert text_of(view, trained=True).startswith("<web_search>first programmer</web_search>")
    assert view["trained"] == sum(token[2] for span in view["spans"] for token in span["tokens"])
    assert view["spans"][0]["step"] == -1 and not any(token[2] for token in view["spans"][0]["tokens"])
    assert view["problem"] is None


def test_sampled_ids_and_logprobs_are_shown_as_they_were_sampled() -> None:
    run = sampled()
    view = tokens_view(run, PROFILE, ["smollm2"])
    (span,) = [span for span in view["spans"] if span["step"] == 0]
    assert run.steps[0].tokens is not None
    assert tuple(token[1] for token in span["tokens"]) == run.steps[0].tokens.ids
    assert tuple(token[3] for token in span["tokens"]) == run.steps[0].tokens.logprobs
    assert view["problem"] is None


def test_ids_that_no_vocabulary_has_are_not_shown_but_the_text_is() -> None:
    run = sampled()
    odd = run.steps[0].model_copy(update={"tokens": Tokens(ids=(1 << 40,))})
    view = tokens_view(run.model_copy(update={"steps": (odd,)}), PROFILE, ["smollm2"])
    assert view["problem"] == "the sampled ids are not of this tokenizer"
    assert "<answer>Ada</answer>" in text_of(view, trained=True)


def test_the_tokenizer_of_the_run_is_preferred_to_others_before_it(tmp_path: Path) -> None:
    other = tokenizer("byte_bpe")
    other.save(tmp_path)
    view = tokens_view(sampled(), PROFILE, [str(tmp_path), "smollm2"])
    assert view["tokenizer"] == "smollm2"


def test_a_run_of_another_tokenizer_is_tokenised_and_says_so(tmp_path: Path) -> None:
    tokenizer("byte_bpe").save(tmp_path)
    view = tokens_view(sampled(), PROFILE, [str(tmp_path)])
    assert view["problem"] is not None and "another tokenizer" in view["problem"]
    assert all(token[3] is None for span in view["spans"] for token in span["tokens"])
    assert "<answer>Ada</answer>" in text_of(view, trained=True)


def test_without_a_tokenizer_authorship_is_shown_all_the_same() -> None:
    view = tokens_view(RUN, PROFILE, ["/nowhere/at/all"])
    assert view["tokenizer"] == "" and view["problem"]
    assert "It was Ada." in text_of(view, trained=False)
    assert {token[1] for span in view["spans"] for token in span["tokens"]} == {None}


@pytest.mark.parametrize("key", ["config", "run", "settings", None])
def test_the_model_that_a_run_folder_names_is_tried(tmp_path: Path, key: str | None) -> None:
    model, folder = tmp_path / "model-folder", tmp_path / "run"
    model.mkdir()
    folder.mkdir()
    named = {"model": str(model)}
    (folder / "config.json").write_bytes(orjson.dumps({key: named} if key else named))
    assert tokenizers_of(folder, None) == [str(model), "smollm2"]
    assert tokenizers_of(folder, "given") == ["given"]
    (folder / "config.json").write_text("[1")
    assert tokenizers_of(folder, None) == ["smollm2"]
