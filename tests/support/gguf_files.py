"""Small GGUF files with tokenizers of every kind: complete models of a few weights, so that llama.cpp serves them."""

from __future__ import annotations

import json
import random
from functools import cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import models, normalizers, pre_tokenizers, trainers

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6
SPECIALS = ["<|im_start|>", "<|im_end|>"]

_WORDS = [
    "the quick brown fox", " jumps over", " 's", "I'm", "WE'LL", "don'T", "12345", " 3.14159", "$100", "#!", "!abc",
    "camelCase HTTPServer", "http://a.b/c?d=1", "def f(x):", "</think>", "  ", "    ", "\n", "\r\n", "\n\n\n", "\t\t",
    " \n ", "/\n", "…", "—", "«»", "²³", "x²", "Ⅷ", "٣٤٥", "ǅ", "ÀÉÎ", "日本語のテキスト", "中文字符", "한국어",
    "Привет мир", "עברית", "العربية", "🙂", "👩‍👩‍👧", "\u00a0", "\u200b",
]  # fmt: skip
MARKS = ["नमस्ते", "ไทยที่", "e\u0301", "\u3000"]
"""Combining marks and a wide blank, where llama.cpp does not follow the patterns of some models."""


def texts(count: int, *, marks: bool = True, seed: int = 0) -> list[str]:
    """Texts of odd pieces in random order."""
    rng = random.Random(seed)
    pieces = _WORDS + (MARKS if marks else [])
    return ["".join(rng.choices(pieces, k=rng.randint(1, 12))) for _ in range(count)]


def byte_level(path: Path, pre: str | None, *, architecture: str = "llama", **changes: Any) -> Path:
    """Byte-level BPE. Its merges do not respect any words, so that every difference of pre-tokenizers shows."""
    tokens, merges = byte_vocabulary()
    types = [CONTROL] * len(SPECIALS) + [NORMAL] * (len(tokens) - len(SPECIALS))
    fields = {"model": "gpt2", "tokens": tokens, "token_type": types, "merges": merges, "bos_token_id": 0}
    return _write(path, architecture, {**fields, "eos_token_id": 1, **({"pre": pre} if pre else {}), **changes})


def sentence_piece(path: Path, *, blank_before: bool, architecture: str = "llama", **changes: Any) -> Path:
    """SentencePiece's BPE with scores and bytes; without `blank_before` with runs of blanks as added tokens (Gemma)."""
    runs = [] if blank_before else ["\n" * n for n in range(1, 5)] + [" " * n for n in range(2, 32)]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *runs]
    pieces = [piece for piece in _pieces() if piece not in first and not (runs and "\u2581\u2581" in piece)]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[USER_DEFINED] * len(runs), *[NORMAL] * len(pieces)]
    scores = [0.0] * 259 + [-1000.0] * len(runs) + [-float(n) for n in range(len(pieces))]
    fields = {
        "model": "llama", "pre": "default", "tokens": first + pieces, "token_type": types, "scores": scores,
        "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0, "add_space_prefix": blank_before,
    }  # fmt: skip
    return _write(path, architecture, {**fields, **changes})


@cache
def byte_vocabulary() -> tuple[list[str], list[str]]:
    fast = FastTokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    fast.train_from_iterator(texts(400, seed=1), trainer)
    return _ordered(fast), [" ".join(pair) for pair in json.loads(fast.to_str())["model"]["merges"]]


@cache
def _pieces() -> list[str]:
    """In the order in which they were merged, single characters last, as in SentencePiece."""
    fast = FastTokenizer(models.BPE())
    fast.normalizer = normalizers.Replace(" ", "\u2581")
    lines = [line for text in texts(400, seed=1) for line in text.splitlines()]
    fast.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1200, show_progress=False))
    return sorted(_ordered(fast), key=lambda piece: len(piece) == 1)


def _ordered(fast: FastTokenizer) -> list[str]:
    vocabulary = fast.get_vocab()
    return sorted(vocabulary, key=lambda token: vocabulary[token])


def _write(path: Path, architecture: str, fields: dict[str, Any]) -> Path:
    """`fields` of the tokenizer that are None are left out."""
    writer = gguf.GGUFWriter(path, architecture)
    size, vocabulary = 32, len(fields["tokens"] or [])
    for name, number in (
        ("context_length", 512), ("embedding_length", size), ("block_count", 1), ("feed_forward_length", size),
        ("attention.head_count", 2), ("attention.head_count_kv", 2), ("rope.dimension_count", 16),
        ("vocab_size", vocabulary),
    ):  # fmt: skip
        writer.add_uint32(f"{architecture}.{name}", number)
    writer.add_float32(f"{architecture}.attention.layer_norm_rms_epsilon", 1e-5)
    for name, value in fields.items():
        key = f"tokenizer.ggml.{name}"
        if isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif value is not None:
            writer.add_string(key, value)
    square = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    shapes = {"token_embd": (vocabulary, size), "output": (vocabulary, size), "output_norm": (size,)}
    shapes |= {f"blk.0.{name}": (size, size) for name in square}
    shapes |= {f"blk.0.{name}": (size,) for name in ("attn_norm", "ffn_norm")}
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(scale=0.02, size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
