"""How byte-level BPE tokenizers cut a text into words before they merge bytes, by the names that llama.cpp gives.

A GGUF file has the vocabulary and the merges of its tokenizer, but of the pre-tokenizer it has only a name
(`tokenizer.ggml.pre`). The patterns here are those of the models' own `tokenizer.json`. llama.cpp writes some of them
differently, because its regex engine knows less; the words are the same except for rare characters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from tokenizers import Regex, pre_tokenizers

from coa.errors import TokenizerError


@dataclass(frozen=True, slots=True)
class Words:
    """Each pattern cuts the pieces that the patterns before it left."""

    patterns: tuple[str, ...] = ()
    digits: bool = False
    """Whether each digit is a word."""
    gpt2: bool = False
    """Whether the last pattern is that of GPT-2, which the library has built in."""
    whole: bool = False
    """Whether a word of the vocabulary is one token even if no merges lead to it (`ignore_merges`)."""

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        digits = [pre_tokenizers.Digits(individual_digits=True)] if self.digits else []
        cuts = [*digits, *(pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in self.patterns)]
        to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.gpt2)
        return pre_tokenizers.Sequence([*cuts, to_bytes]) if cuts else to_bytes

    def in_ascii(self) -> re.Pattern[str] | None:
        """Finds the same words in a text that is all ASCII; None for rules of which that is not known."""
        if not any(replace(known, whole=self.whole) == self for known in _NAMES):
            return None
        if self.gpt2 and not self.patterns:
            return re.compile(_GPT2_DIGITS_IN_ASCII if self.digits else _GPT2_IN_ASCII)
        if self.gpt2 or self.digits or len(self.patterns) != 1 or "&&" in self.patterns[0]:
            return None
        return re.compile(_in_ascii(self.patterns[0]))


def words_of(name: str, architecture: str) -> Words:
    """`name` is `tokenizer.ggml.pre`; old files have none, and some of these can be known by their architecture."""
    if name in ("", "default"):
        name = _BY_ARCHITECTURE.get(architecture, "")
    if name not in WORDS:
        lacks = f"its pre-tokenizer {name!r} is not known to coa" if name else "it does not name its pre-tokenizer"
        raise TokenizerError(lacks)
    return WORDS[name]


def words_in(pre_tokenizer: Mapping[str, Any] | None) -> Words | None:
    """The rule that this part of a `tokenizer.json` describes; None for rules of other kinds."""
    rule = pre_tokenizer or {}
    parts = rule["pretokenizers"] if rule.get("type") == "Sequence" else [rule]
    if not parts or parts[-1].get("type") != "ByteLevel" or parts[-1]["add_prefix_space"]:
        return None
    digits = parts[0] == {"type": "Digits", "individual_digits": True}
    splits = parts[1 if digits else 0 : -1]
    patterns = [split.get("pattern", {}).get("Regex") for split in splits]
    if any(split != _isolated(pattern) for split, pattern in zip(splits, patterns, strict=True)):
        return None
    return Words(tuple(patterns), digits=digits, gpt2=parts[-1]["use_regex"])


def _isolated(pattern: str | None) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_MEMBERS_IN_ASCII: Final = {
    r"\p{L}": "A-Za-z", r"\p{Lu}": "A-Z", r"\p{Ll}": "a-z", r"\p{N}": "0-9", r"\s": r"\t-\r ",
    **dict.fromkeys((r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{M}"), ""),
}  # fmt: skip
"""The ASCII characters of a class. Those of `\\s` are listed, because Python also counts \\x1c to \\x1f as blanks."""


def _in_ascii(pattern: str) -> str:
    """The pattern for Python's `re`, which matches the same in a text that is all ASCII."""
    parts, inside = list[str](), False
    for part in re.findall(r"\\p\{\w+\}|\\.|.", pattern):
        if part in "[]":
            inside = part == "["
        members = _MEMBERS_IN_ASCII.get(part)
        if members is not None:
            part = members if inside else f"[{members}]"
        parts.append(r"[^\t-\r ]" if part == r"\S" else part)
    return "".join(parts)


_GPT2_IN_ASCII: Final = (
    r" ?[A-Za-z]+|'(?:[stmd]|re|ve|ll)| ?[0-9]+| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r ])|[\t-\r ]+"
)
_GPT2_DIGITS_IN_ASCII: Final = (
    r" ?[A-Za-z]+|[0-9]|'(?:[stmd]|re|ve|ll)| ?[^\t-\r A-Za-z0-9]+|[\t-\r ]+(?![^\t-\r 0-9])|[\t-\r ]+"
)
"""Where each digit is cut out first, blanks before a digit are blanks at the end of a text."""
_CONTRACTION: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS: Final = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER: Final = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}"
_LOWER: Final = r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_BEFORE: Final = r"[^\r\n\p{L}\p{N}]?"
"""One character before the letters of a word, such as a blank or a quotation mark."""


def _gpt4(digits: str) -> str:
    """Words of letters, with the pattern for `digits`."""
    return rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_BLANKS}"


def _gpt4o(digits: str, *, contraction: str = f"{_CONTRACTION}?", but: str = "", end: str = r"[\r\n/]*") -> str:
    """As `_gpt4`, but a word also begins with each capital letter that follows a small one."""
    words = "|".join(
        f"{_BEFORE}[{_UPPER}{but}]{upper}[{_LOWER}{but}]{lower}{contraction}"
        for upper, lower in (("*", "+"), ("+", "*"))
    )
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+{end}|{_BLANKS}"


_DEEPSEEK_3: Final = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_BLANKS}"
)
_EAST_ASIAN: Final = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_HAN_AND_KANA: Final = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_CASED: Final = (
    "A-Za-z\xb5\xc0-\xd6\xd8-\xf6\xf8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376\u0377"
    "\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
"""Letters that have a case, as DeepSeek lists them."""

_GPT4_WITH_MARKS: Final = (
    rf"{_CONTRACTION}|{_BEFORE}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_BLANKS}"
)
_SEED: Final = rf"{_CONTRACTION}|{_BEFORE}\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_BLANKS}"
_LING: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
_KIMI: Final = r"[\p{Han}]+|" + _gpt4o(r"\p{N}{1,3}", but=r"&&[^\p{Han}]", end=r"[\r\n]*")
_COHERE: Final = (r"\d{1,3}(?=(?:\d{3})*\b)", _gpt4o(r"\p{N}{1,3}"))
_DEEPSEEK_CODER: Final = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}")
_DEEPSEEK_LLM: Final = (
    r"[\r\n]",
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _EAST_ASIAN,
    r"\p{N}",
)

_NAMES: Final[Mapping[Words, str]] = {
    Words(gpt2=True): "gpt-2 phi-2 mpt olmo jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
    Words(gpt2=True, digits=True): "smollm starcoder refact command-r codeshell exaone minerva-7b mellum2",
    Words((_gpt4(r"\p{N}"),)): "qwen2 deepseek-r1-qwen megrez stablelm2 hunyuan grok-2 solar-open kormo f2llmv2",
    Words((_GPT4_WITH_MARKS,)): "qwen35",
    Words((_gpt4(r"\p{N}{1,3}"),), whole=True): "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
    Words((_gpt4(r"\p{N}{1,3}"),)): "dbrx smaug-bpe glm4 chatglm-bpe",
    Words((r"\p{N}{1,3}", _gpt4(r"\p{N}+")), whole=True): "minicpm5",
    Words((_SEED,)): "seed-coder",
    Words((_LING,)): "bailingmoe bailingmoe2 llada-moe",
    Words((_gpt4o(r"\p{N}{1,3}"),)): "gpt-4o llama4 kanana2 talkie minimax-m2",
    Words((_gpt4o(r"\p{N}", contraction=""),), whole=True): "tekken",
    Words((_KIMI,)): "kimi-k2",
    Words(_COHERE): "tiny_aya cohere2moe",
    Words((r"\p{N}{1,3}", _HAN_AND_KANA, _DEEPSEEK_3)): "deepseek-v3 hunyuan-dense joyai-llm",
    Words(_DEEPSEEK_CODER): "deepseek-coder",
    Words(_DEEPSEEK_LLM): "deepseek-llm",
}
WORDS: Final[Mapping[str, Words]] = {name: words for words, names in _NAMES.items() for name in names.split()}
_BY_ARCHITECTURE: Final = {"gpt2": "gpt-2", "qwen2": "qwen2", "qwen2moe": "qwen2"}
