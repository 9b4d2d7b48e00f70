"""From the header of a GGUF file to a tokenizer of the `tokenizers` library.

Three kinds are read, which are those of nearly all language models: byte-level BPE (Qwen, Llama 3, DeepSeek, GPT-2 and
many more), SentencePiece's BPE with scores (Llama 2, Mistral, Phi-3, Gemma), and the BPE over characters of Gemma 4.
No text is normalised: what a run has read and written must decode to exactly its text, and llama.cpp does not
normalise either.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as FastTokenizer

from coa.errors import TokenizerError
from coa.models.pre_tokenizers import words_of

_NORMAL, _CONTROL, _USER_DEFINED = 1, 3, 4
"""Types of tokens: what merges give, control tokens, and added tokens that are ordinary text."""
_BLANK: Final = "\u2581"
"""How SentencePiece writes a blank."""
_ENDS: Final = frozenset((
    "<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<|return|>", "<|call|>",
    "<end_of_turn>", "<turn|>", "<eos>", "</s>", "<EOT>", "[EOT]", "[EOS]", "<\uff5cend\u2581of\u2581sentence\uff5c>",
))  # fmt: skip
_Merges = list[tuple[str, str]]


def read_vocabulary(header: Mapping[str, object]) -> FastTokenizer:
    """The tokenizer that the header describes. Raises `TokenizerError` with the reason if it is not known here."""
    tokens = _column(header, "tokens", str)
    types = _column(header, "token_type", int) or [_NORMAL] * len(tokens)
    if len(types) != len(tokens) or not tokens:
        raise TokenizerError(f"it has {len(tokens)} tokens and {len(types)} types of tokens")
    try:
        fast = _model(header, tokens, types)
    except TokenizerError:
        raise
    except Exception as error:  # the library raises bare Exception, for instance for a merge of unknown tokens
        raise TokenizerError(f"its vocabulary is damaged: {error}") from error
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, kind in zip(tokens, types, strict=True) if kind == wanted]
        fast.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    return fast


def ends_by_name(fast: FastTokenizer) -> list[int]:
    """Ids of the control tokens that end a turn by their name, as headers seldom list them all.

    A llama.cpp server stops at these tokens too.
    """
    added = fast.get_added_tokens_decoder()
    return [index for index, token in added.items() if token.special and token.content in _ENDS]


def _model(header: Mapping[str, object], tokens: list[str], types: list[int]) -> FastTokenizer:
    kind = header.get("tokenizer.ggml.model")
    if kind == "gpt2":
        return _byte_level(header, tokens)
    if kind == "llama":
        scores = _column(header, "scores", float) or [-float(index) for index in range(len(tokens))]
        normal = [(token, score) for token, score, type_ in zip(tokens, scores, types, strict=True) if type_ == _NORMAL]
        blank_before = header.get("tokenizer.ggml.add_space_prefix", True)
        return _sentence_piece(header, tokens, _merges_of(dict(normal)), blank_before=bool(blank_before))
    if kind == "gemma4":
        return _sentence_piece(header, tokens, _merges(header), blank_before=False)
    raise TokenizerError(f"its vocabulary is of the kind {kind!r}, which coa does not read from GGUF files")


def _column(header: Mapping[str, object], name: str, kind: type) -> list[Any]:
    values = header.get(f"tokenizer.ggml.{name}", [])
    if not isinstance(values, list) or not all(isinstance(value, kind) for value in values):
        raise TokenizerError(f"tokenizer.ggml.{name} is not a list of {kind.__name__}")
    return values


def _merges(header: Mapping[str, object]) -> _Merges:
    merges = _column(header, "merges", str)
    if not merges:
        raise TokenizerError("it has no merges")
    cuts = [merge.find(" ", 1) for merge in merges]  # from 1 on, as the first part may itself be a blank
    return [(merge[:cut], merge[cut + 1 :]) for merge, cut in zip(merges, cuts, strict=True)]


def _byte_level(header: Mapping[str, object], tokens: list[str]) -> FastTokenizer:
    words = words_of(str(header.get("tokenizer.ggml.pre", "")), str(header.get("general.architecture")))
    fast = FastTokenizer(models.BPE(vocab=_ids(tokens), merges=_merges(header), ignore_merges=words.whole))
    fast.pre_tokenizer = words.pre_tokenizer()
    fast.decoder = decoders.ByteLevel()
    return fast


def _sentence_piece(
    header: Mapping[str, object], tokens: list[str], merges: _Merges, *, blank_before: bool
) -> FastTokenizer:
    """`blank_before`: a blank stands before a text and after each control token, and is removed when it is decoded."""
    unknown = header.get("tokenizer.ggml.unknown_token_id")
    fast = FastTokenizer(
        models.BPE(
            vocab=_ids(tokens), merges=merges, byte_fallback=True, fuse_unk=True,
            unk_token=tokens[unknown] if isinstance(unknown, int) else None,
        )
    )  # fmt: skip
    blanks = normalizers.Replace(" ", _BLANK)
    fast.normalizer = normalizers.Sequence([normalizers.Prepend(_BLANK), blanks]) if blank_before else blanks
    back = [decoders.Replace(_BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]
    fast.decoder = decoders.Sequence([*back, decoders.Strip(" ", 1, 0)] if blank_before else back)
    return fast


def _ids(tokens: list[str]) -> dict[str, int]:
    return {token: index for index, token in enumerate(tokens)}


def _merges_of(scores: Mapping[str, float]) -> _Merges:
    """SentencePiece has no merges: of all pairs that are a piece together it joins the one with the highest score.

    So each way to cut a piece into two is a merge, in the order of the scores.
    """
    found = [
        (-score, -cut, piece[:cut], piece[cut:])
        for piece, score in scores.items()
        for cut in range(1, len(piece))
        if piece[:cut] in scores and piece[cut:] in scores
    ]
    return [(left, right) for _, _, left, right in sorted(found)]
