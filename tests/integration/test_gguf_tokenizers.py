"""Tokenizers from GGUF files give the ids that llama.cpp and transformers give for the same files."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coa.models.pre_tokenizers import WORDS
from coa.models.tokenizer import TextTokenizer, load_tokenizer
from support.gguf_files import byte_level, sentence_piece, texts

SERVERS = """
import json, sys, urllib.request, xllamacpp
asked = json.load(sys.stdin)
for path in asked["paths"]:
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.hostnames = path, 0, ["127.0.0.1"]
    params.n_ctx, params.n_parallel, params.warmup = 64, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    found = []
    for text in asked["texts"]:
        body = json.dumps({"content": text, "add_special": False, "parse_special": False}).encode()
        request = urllib.request.Request(server.listening_address + "/tokenize", body)
        found.append(json.load(urllib.request.urlopen(request))["tokens"])
    print("ids", json.dumps(found), flush=True)
    del server
"""
KINDS = {words: name for name, words in reversed(list(WORDS.items()))}
"""One name for each pre-tokenizer."""


def whole(tok: TextTokenizer, text: str) -> list[int]:
    """As a prompt: with the blank before it, if the model has one."""
    return list(tok._whole.encode(text, add_special_tokens=False).ids)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("gguf")
    made = {name: byte_level(folder / f"{name}.gguf", name) for name in KINDS.values()}
    made["llama 2"] = sentence_piece(folder / "llama2.gguf", blank_before=True, architecture="llama")
    made["gemma"] = sentence_piece(folder / "gemma.gguf", blank_before=False)
    return made


def test_ids_are_those_of_llama_cpp(files: dict[str, Path]) -> None:
    pytest.importorskip("xllamacpp", reason="pip install xllamacpp to test against a real llama.cpp server")
    # With these, llama.cpp only approximates the models' own patterns, for numbers or for capitals inside words.
    approximated = ("tiny_aya", "deepseek-llm", "kimi-k2", "gpt-4o", "tekken")
    compared = {name: path for name, path in files.items() if name not in approximated}
    odd = texts(60, marks=False)
    asked = json.dumps({"paths": [str(path) for path in compared.values()], "texts": odd})
    done = subprocess.run([sys.executable, "-c", SERVERS], input=asked, capture_output=True, text=True, timeout=300)
    answers = [json.loads(line[4:]) for line in done.stdout.splitlines() if line.startswith("ids ")]
    assert len(answers) == len(compared), done.stderr[-2000:]
    for (name, path), theirs in zip(compared.items(), answers, strict=True):
        tok = load_tokenizer(path)
        assert [whole(tok, text) for text in odd] == theirs, name


@pytest.mark.parametrize("name", ["qwen2", "qwen35", "llama3", "dbrx", "gpt-2", "gpt-4o", "tekken"])
def test_ids_are_those_of_transformers(name: str, files: dict[str, Path]) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(str(files[name].parent), gguf_file=files[name].name)
    tok = load_tokenizer(files[name])
    odd = texts(200)
    assert [whole(tok, text) for text in odd] == [theirs.encode(text, add_special_tokens=False) for text in odd]


@pytest.mark.parametrize(("architecture", "blank_before"), [("phi3", True), ("gemma3", False)])
def test_sentencepiece_ids_are_those_of_transformers(architecture: str, blank_before: bool, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    path = sentence_piece(tmp_path / "m.gguf", blank_before=blank_before, architecture=architecture)
    theirs = transformers.AutoTokenizer.from_pretrained(str(tmp_path), gguf_file=path.name)
    tok = load_tokenizer(path)
    odd = texts(200)
    assert [whole(tok, text) for text in odd] == [theirs.encode(text, add_special_tokens=False) for text in odd]
