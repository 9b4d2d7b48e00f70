"""Tokenizers from GGUF files: what they cut and join, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coa.errors import TokenizerError
from coa.models.pre_tokenizers import WORDS
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from support.gguf_files import CONTROL, NORMAL, USER_DEFINED, byte_level, byte_vocabulary, sentence_piece, texts


def pieces(tok: TextTokenizer, text: str) -> list[str]:
    return tok.split(tok.encode([text])[0])


@pytest.mark.parametrize("name", sorted(WORDS))
def test_every_text_decodes_to_itself_with_every_pre_tokenizer(name: str, tmp_path: Path) -> None:
    tok = load_tokenizer(byte_level(tmp_path / "m.gguf", name))
    odd = texts(40)
    assert [tok.decode(ids) for ids in tok.encode(odd)] == odd


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("gpt-2", ["It", "'s", " 12345", " camelCase", " DON", "'", "T", "\n\n", " x"]),
        ("smollm", ["It", "'s", " ", "1", "2", "3", "4", "5", " camelCase", " DON", "'", "T", "\n\n", " x"]),
        ("qwen2", ["It", "'s", " ", "1", "2", "3", "4", "5", " camelCase", " DON", "'T", "\n\n", " x"]),
        ("llama-bpe", ["It", "'s", " ", "123", "45", " camelCase", " DON", "'T", "\n\n", " x"]),
        ("gpt-4o", ["It's", " ", "123", "45", " camel", "Case", " DON'T", "\n\n", " x"]),
        ("tekken", ["It", "'s", " ", "1", "2", "3", "4", "5", " camel", "Case", " DON", "'T", "\n\n", " x"]),
        ("deepseek-v3", ["It", "'s", " ", "123", "45", " camelCase", " DON", "'T", "\n\n", " x"]),
        ("deepseek-coder", ["It", "'", "s", " ", "1", "2", "3", "4", "5", " camelCase", " DON", "'", "T", "\n", "\n",
                            " x"]),
        ("tiny_aya", ["It's", " ", "12", "345", " camel", "Case", " DON'T", "\n\n", " x"]),
    ],
)  # fmt: skip
def test_words_are_those_of_the_models_own_tokenizer(name: str, words: list[str]) -> None:
    text = "It's 12345 camelCase DON'T\n\n x"
    cut = WORDS[name].pre_tokenizer().pre_tokenize_str(text)
    assert [text[a:b] for _, (a, b) in cut] == words


def test_chinese_words_do_not_join_latin_ones_in_kimi() -> None:
    text = "Kimi说abc"
    assert [text[a:b] for _, (a, b) in WORDS["kimi-k2"].pre_tokenizer().pre_tokenize_str(text)] == ["Kimi", "说", "abc"]


def test_a_word_of_the_vocabulary_is_one_token_for_llama_3_even_without_merges(tmp_path: Path) -> None:
    tokens, merges = byte_vocabulary()
    more: dict[str, Any] = {"tokens": [*tokens, "Ġzyzzyva"], "token_type": [CONTROL] * 2 + [NORMAL] * (len(tokens) - 1)}
    for name, whole in (("llama-bpe", True), ("qwen2", False)):
        tok = load_tokenizer(byte_level(tmp_path / f"{name}.gguf", name, merges=merges, **more))
        assert (pieces(tok, " zyzzyva") == [" zyzzyva"]) is whole


def test_added_tokens_that_are_ordinary_text_stay_whole_in_tool_output_and_control_tokens_do_not(
    tmp_path: Path,
) -> None:
    tokens, _ = byte_vocabulary()
    types = [CONTROL] * 2 + [NORMAL] * (len(tokens) - 2) + [USER_DEFINED]
    path = byte_level(tmp_path / "m.gguf", "qwen2", tokens=[*tokens, "<tool_call>"], token_type=types)
    tok = load_tokenizer(path)
    assert "<tool_call>" in pieces(tok, "a<tool_call>b")
    assert "<|im_end|>" not in pieces(tok, "a<|im_end|>b")
    assert tok.decode(tok.encode(["a<|im_end|>b"])[0]) == "a<|im_end|>b"


def test_every_control_token_that_ends_a_turn_is_known(tmp_path: Path) -> None:
    tokens, _ = byte_vocabulary()
    types = [CONTROL] * 2 + [NORMAL] * (len(tokens) - 2) + [CONTROL, CONTROL, USER_DEFINED]
    more = [*tokens, "<|endoftext|>", "<|vision_start|>", "<end_of_turn>"]
    tok = load_tokenizer(byte_level(tmp_path / "m.gguf", "qwen2", tokens=more, token_type=types, eot_token_id=7))
    assert tok.end_of_turn == 1 and tok.end_ids == {1, 7, len(tokens)}


@pytest.mark.parametrize("blank_before", [True, False])
def test_a_span_of_sentencepiece_decodes_to_its_text_with_the_blanks_it_has(blank_before: bool, tmp_path: Path) -> None:
    tok = load_tokenizer(sentence_piece(tmp_path / "m.gguf", blank_before=blank_before))
    odd = [*texts(60), " two blanks  inside ", "\n\n  x"]
    assert [tok.decode(ids) for ids in tok.encode(odd)] == odd
    first = tok._whole.encode("fox", add_special_tokens=False).tokens[0]
    assert first.startswith("\u2581") is blank_before  # a prompt has the blank that the model knows
    spelled = tok.spellings()
    assert spelled is not None and spelled[3 + 0x0A] == b"\n"


def test_gemma_4_is_read_with_its_own_merges(tmp_path: Path) -> None:
    merges = ["h e", "l l", "he ll", "hell o", "\u2581 hello"]
    joined = [merge.replace(" ", "") for merge in merges]
    tokens = ["<unk>", "<bos>", "<eos>", *(f"<0x{byte:02X}>" for byte in range(256)), *"helo\u2581", *joined]
    types = [2, 3, 3] + [6] * 256 + [1] * (len(tokens) - 259)
    path = sentence_piece(
        tmp_path / "m.gguf", blank_before=False, model="gemma4", tokens=tokens, token_type=types, scores=None,
        merges=merges,
    )  # fmt: skip
    tok = load_tokenizer(path)
    assert pieces(tok, "hello hello") == ["hello", " hello"] and pieces(tok, "hé") == ["h", "", "é"]


def test_an_old_file_without_a_pre_tokenizer_is_known_by_its_architecture(tmp_path: Path) -> None:
    named = load_tokenizer(byte_level(tmp_path / "new.gguf", "qwen2"))
    old = load_tokenizer(byte_level(tmp_path / "old.gguf", None, architecture="qwen2"))
    assert old.encode(texts(20)) == named.encode(texts(20))
    with pytest.raises(TokenizerError, match="does not name its pre-tokenizer"):
        load_tokenizer(byte_level(tmp_path / "llama.gguf", "default"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pre": "bloom"}, "its pre-tokenizer 'bloom' is not known to coa"),
        ({"model": "bert"}, "its vocabulary is of the kind 'bert'"),
        ({"model": None}, "its vocabulary is of the kind None"),
        ({"merges": None}, "it has no merges"),
        ({"merges": ["no such"]}, "its vocabulary is damaged"),
        ({"token_type": [1, 2]}, "2 types of tokens"),
        ({"tokens": ["a"]}, "it has 1 tokens"),
        ({"merges": [1, 2]}, "merges is not a list of str"),
    ],
)
def test_a_vocabulary_that_cannot_be_read_is_refused_with_the_reason_and_a_way_out(
    changes: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    path = byte_level(tmp_path / "m.gguf", **{"pre": "qwen2", **changes})
    with pytest.raises(TokenizerError, match=reason) as refused:
        load_tokenizer(path)
    assert "m.gguf" in refused.value.message and "tokenizer.json" in (refused.value.hint or "")
