"""From the header of a GGUF file to a tokenizer of the `tokenizers` library.

A GGUF file has the vocabulary and the merges of a byte-level BPE tokenizer, but of its pre-tokenizer, which cuts a text
into words before anything is merged, it has only the name that llama.cpp gave it (`tokenizer.ggml.pre`). The patterns
behind these names are in this module. They are those of the models' own `tokenizer.json`; llama.cpp writes some of them
differently because its regex engine knows less.

No text is normalised: what a run has read and written must decode to exactly its text, and llama.cpp does not
normalise either.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from coa.errors import TokenizerError

_CONTROL: Final = 3
_USER_DEFINED: Final = 4
"""GGUF's token types for control tokens, and for added tokens that are ordinary text."""

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2: Final = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _gpt4(digits: str) -> str:
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


@dataclass(frozen=True, slots=True)
class _Words:
    """How a text is cut into words: each pattern cuts the pieces that the patterns before it left."""

    patterns: Sequence[str]
    whole: bool = False
    """Whether a word of the vocabulary is one token even if no merges lead to it (`ignore_merges`)."""


_ONE_DIGIT: Final = _Words([_gpt4(r"\p{N}")])

_WORDS: Final[Mapping[str, _Words]] = {
    "gpt-2": _Words([_GPT2]),
    "smollm": _Words([r"\p{N}", _GPT2]),
    **dict.fromkeys(
        ["qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "grok-2", "solar-open"], _ONE_DIGIT
    ),
}


def read_vocabulary(header: Mapping[str, object]) -> FastTokenizer:
    """The tokenizer that the header describes. Raises `TokenizerError` with the reason if it is not known here."""
    kind, pre = _get(header, "model"), _get(header, "pre", "default")
    if kind != "gpt2" or not _get(header, "merges"):
        raise TokenizerError(f"vocabularies of the kind {kind!r} are not read from GGUF files")
    if pre == "default":
        pre = _BY_ARCHITECTURE.get(str(header.get("general.architecture")), pre)
    if pre not in _WORDS:
        raise TokenizerError(f"the pre-tokenizer {pre!r} is not known")
    return _byte_level(header, _WORDS[pre])


_BY_ARCHITECTURE: Final = {"gpt2": "gpt-2", "qwen2": "qwen2", "qwen2moe": "qwen2"}
"""For files from before the pre-tokenizer was noted in them."""


def _get(header: Mapping[str, object], name: str, default: object = None) -> Any:
    return header.get(f"tokenizer.ggml.{name}", default)


def _byte_level(header: Mapping[str, object], words: _Words) -> FastTokenizer:
    tokens = cast(list[str], _get(header, "tokens"))
    merges = [(left, right) for left, right in (merge.split(" ", 1) for merge in _get(header, "merges"))]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    fast = FastTokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=words.whole))
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in words.patterns]
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.pre_tokenizer = pre_tokenizers.Sequence([*cuts, bytes_])
    fast.decoder = decoders.ByteLevel()
    _add_tokens(fast, header, tokens)
    return fast


def _add_tokens(fast: FastTokenizer, header: Mapping[str, object], tokens: Sequence[str]) -> None:
    kinds = list(zip(tokens, _get(header, "token_type"), strict=True))
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        fast.add_tokens([AddedToken(token, special=special, normalized=False) for token, k in kinds if k == kind])
