"""Tokenizers of every kind that matters, one real and the others trained here on text where merges cross tags."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from coa.models.chat_template import ChatTemplate
from coa.models.tokenizer import TextTokenizer, load_tokenizer

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIALS = ["<|im_start|>", "<|im_end|>"]
KINDS = ["smollm2", "byte_bpe", "metaspace_unigram", "llama_unigram"]


@cache
def tokenizer(kind: str) -> TextTokenizer:
    if kind == "smollm2":
        return load_tokenizer("smollm2")
    fast = {"byte_bpe": _byte_bpe, "metaspace_unigram": _metaspace_unigram, "llama_unigram": _llama_unigram}[kind]()
    return TextTokenizer(fast, ChatTemplate(TEMPLATE, {}), end_of_turn=fast.token_to_id("<|im_end|>"))


def _corpus() -> list[str]:
    """Tags that touch each other, blank lines after them, blanks before them: each pair often enough to be merged."""
    line = (
        "<think>so it goes</think><plan>a b</plan>\n\n<web_search>who was it</web_search>\n<observation>it was Ada"
        "</observation>\n\n\n<think>good</think> <answer>Ada</answer>\n <observation>more text here</observation>"
    )
    return [line] * 200 + ["the quick brown fox jumps over the lazy dog, 0123456789"] * 50


def _byte_bpe() -> FastTokenizer:
    """Byte-level BPE whose pre-tokenizer does not keep `>` from what follows it."""
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    fast.train_from_iterator(_corpus(), trainer)
    return fast


def _train_unigram(fast: FastTokenizer) -> FastTokenizer:
    """Unigram with byte fallback: no text is unknown to it."""
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<unk>", *SPECIALS], unk_token="<unk>", show_progress=False
    )
    fast.train_from_iterator(_corpus(), trainer)
    settings = json.loads(fast.to_str())
    settings["model"]["byte_fallback"] = True
    settings["model"]["vocab"] += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    return FastTokenizer.from_str(json.dumps(settings))


def _metaspace_unigram() -> FastTokenizer:
    fast = FastTokenizer(models.Unigram())
    fast.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always", split=False)
    fast.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="always", split=False)]
    )
    return _train_unigram(fast)


def _llama_unigram() -> FastTokenizer:
    """The older Llama layout: the blank is put in front by the normaliser and stripped by the decoder."""
    fast = FastTokenizer(models.Unigram())
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return _train_unigram(fast)
