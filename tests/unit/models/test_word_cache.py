"""Ids that are looked up word by word are those of the tokenizer itself."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from coa.models.chat_template import ChatTemplate
from coa.models.pre_tokenizers import WORDS
from coa.models.tokenizer import TextTokenizer
from coa.models.word_cache import WordCache
from coa.trajectory import Message
from support.gguf_files import byte_vocabulary
from support.gguf_files import texts as odd_texts
from support.tokenizers import KINDS, TEMPLATE, tokenizer

NAMES = sorted({words: name for name, words in WORDS.items() if words.in_ascii() is not None}.values())
"""One name of each rule by which ASCII is cut here."""
ODD = (
    "the", " quick", "'s", "'LL", "I'm", "12", " 3", "\x1c", "\x1d\x1e", "\x1f ", "\x00", "\x0b", "\x0c", "\x7f", " ",
    "  ", "\n", "\n\n", "\r\n", "\r", "\t", " \n ", "/\n", "//", "</think>", "<|im_start|>", "<|im_end|>", "<call>",
    "camelCase", "HTTPServer", "_", "#!", "...", "é", "日本", "\u00a0", "\u0130", "ſ", "²",
)  # fmt: skip
TEXTS = st.one_of(
    st.lists(st.sampled_from(ODD), max_size=12).map("".join),
    st.text(alphabet=st.characters(max_codepoint=127), max_size=40),
    st.text(alphabet="a1 \n\r\t\x0b\x1c'sS/.", max_size=30),
)


@cache
def known(name: str) -> TextTokenizer:
    """With merges that do not respect words, so that each difference in cutting changes ids."""
    tokens, merges = byte_vocabulary()
    vocabulary = {token: index for index, token in enumerate(tokens)}
    pairs = [(first, second) for first, second in (merge.split(" ") for merge in merges)]
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=WORDS[name].whole))
    fast.pre_tokenizer = WORDS[name].pre_tokenizer()
    fast.decoder = decoders.ByteLevel()
    fast.add_tokens([AddedToken("<|im_start|>", special=True), AddedToken("<|im_end|>", special=True)])
    fast.add_tokens([AddedToken("<call>", special=False)])
    return text_tokenizer(fast)


def text_tokenizer(fast: FastTokenizer) -> TextTokenizer:
    return TextTokenizer(fast, ChatTemplate(TEMPLATE, {}), end_of_turn=None)


def words_of(tok: TextTokenizer) -> WordCache:
    assert tok._words is not None
    return tok._words


def test_the_rules_of_common_models_are_known() -> None:
    assert {"smollm", "gpt-2", "qwen2", "llama3", "tekken"} <= {
        name for name, words in WORDS.items() if words.in_ascii() is not None
    }
    assert words_of(tokenizer("smollm2")).encode("some words") == tokenizer("smollm2")._encode_whole(["some words"])[0]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None, max_examples=200)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_ids_of_words_are_those_of_the_whole_text(name: str, texts: list[str]) -> None:
    tok = known(name)
    for _ in range(2):  # the second time all words are known
        assert tok.encode(texts) == tok._encode_anew(texts)


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=3))
def test_all_kinds_of_tokenizers_give_the_ids_that_they_gave(kind: str, texts: list[str]) -> None:
    tok = tokenizer(kind)
    assert tok.encode(texts) == tok._encode_anew(texts)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(text=st.text(alphabet=st.characters(max_codepoint=127), max_size=60))
def test_ascii_is_cut_into_the_words_of_the_library(name: str, text: str) -> None:
    cut = WORDS[name].in_ascii()
    assert cut is not None
    spans = [span for _, span in WORDS[name].pre_tokenizer().pre_tokenize_str(text)]
    assert cut.findall(text) == [text[start:end] for start, end in spans]


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(contents=st.lists(TEXTS, min_size=1, max_size=3))
def test_prompts_have_the_ids_of_the_whole_prompt(name: str, contents: list[str]) -> None:
    tok = known(name)
    assert tok._prompt_words is not None
    text = tok._template.render([Message(role="user", content=content) for content in contents])
    assert tok._encode_template(text) == tok._whole.encode(text, add_special_tokens=False).ids


def test_a_control_token_that_takes_blanks_along_leaves_prompts_to_the_tokenizer() -> None:
    fast = FastTokenizer.from_str(known("gpt-2")._whole.to_str())
    fast.add_tokens([AddedToken("<|sep|>", special=True, rstrip=True)])
    tok = text_tokenizer(fast)
    assert tok._words is not None and tok._prompt_words is None
    text = "<|im_start|>a<|sep|>  b<|im_end|>"
    assert tok._encode_template(text) == fast.encode(text, add_special_tokens=False).ids


def test_every_short_text_of_the_characters_that_rules_tell_apart() -> None:
    texts = ["".join(found) for length in range(5) for found in product("a1 \n\x1c'", repeat=length)]
    for name in NAMES:
        assert known(name).encode(texts) == known(name)._encode_anew(texts), name


@pytest.mark.parametrize("kind", KINDS)
@given(ids=st.lists(st.integers(0, 240), max_size=30))
def test_ids_are_decoded_as_the_library_does(kind: str, ids: list[int]) -> None:
    tok = tokenizer(kind)
    assert tok.decode(ids) == tok._inside.decode(ids, skip_special_tokens=False)


def test_texts_that_are_not_ascii_or_hold_added_tokens_are_left_to_the_tokenizer() -> None:
    words = words_of(known("smollm"))
    assert words.encode("café") is None
    assert words.encode("a <call> b") is None
    assert words.encode("a <|im_end|> b") is not None, "control tokens are plain text here"


def test_a_control_token_that_is_also_an_ordinary_piece_is_left_to_the_tokenizer() -> None:
    words = WordCache(WORDS["gpt-2"].in_ascii() or pytest.fail(), (), {7}, lambda texts: [[7] for _ in texts])
    assert words.encode("a") is None
    assert words.encode("a") is None, "and it was not remembered"


class Counting:
    """A tokenizer whose ids are the lengths of words. It counts the words that it was asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: Sequence[str]) -> list[list[int]]:
        self.asked += texts
        return [[len(text)] for text in texts]


def test_the_words_that_are_remembered_are_bounded_in_number_and_length() -> None:
    encode, cut = Counting(), WORDS["gpt-2"].in_ascii()
    assert cut is not None
    words = WordCache(cut, (), (), encode, most=10)
    for n in range(100):
        assert words.encode(f"word {'x' * n}") == [4, 1] if n == 0 else [4, 1 + n]
        assert len(words._ids) <= 10
    assert max(map(len, words._ids)) < 32
    encode.asked.clear()
    assert words.encode("word word") == words.encode("word word") == [4, 5]
    assert encode.asked == [" word"], "what is known is not asked again"


def changed(**parts: object) -> TextTokenizer:
    rules = json.loads(known("gpt-2")._whole.to_str())
    for part, value in parts.items():
        rules[part] = {**rules[part], **value} if isinstance(value, dict) and part == "model" else value
    return text_tokenizer(FastTokenizer.from_str(json.dumps(rules)))


def state(part: Any) -> object:
    return json.loads(part.__getstate__())


@pytest.mark.parametrize(
    "parts",
    [
        {"normalizer": state(normalizers.Lowercase())},
        {"normalizer": state(normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]))},
        {"model": {"dropout": 0.5}},
        {"pre_tokenizer": None},
        {"pre_tokenizer": state(pre_tokenizers.Sequence([]))},
        {"pre_tokenizer": state(pre_tokenizers.Whitespace())},
        {"pre_tokenizer": state(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))},
        {"pre_tokenizer": state(pre_tokenizers.Sequence([
            pre_tokenizers.Split("a", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False)
        ]))},
        {"pre_tokenizer": state(pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel(add_prefix_space=False)
        ]))},
    ],
)  # fmt: skip
def test_any_other_rule_is_left_to_the_tokenizer(parts: dict[str, object]) -> None:
    assert changed()._words is not None
    assert changed(**parts)._words is None


def test_a_normaliser_that_keeps_ascii_does_no_harm() -> None:
    tok = changed(normalizer=state(normalizers.NFKC()))
    assert tok._words is not None
    texts = [*odd_texts(200), "e\u0301 ﬁ"]
    assert tok.encode(texts) == tok._encode_anew(texts)
