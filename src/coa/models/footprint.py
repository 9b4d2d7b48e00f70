"""How large a model is and how much memory it takes, from its headers: no weights and no torch are loaded.

`shape_of` reads the `config.json` and the headers of the safetensors files of a model folder, the header of a GGUF
file, or the `config.json` of a hub id. An adapter has the shape of its base. `Memory` is an estimate by parts, each
with a name that says what it is for; docs/guides/sft.md has the formulas and what they gave beside a measured run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from coa.errors import ModelError
from coa.models.gguf import read_header, read_tensors
from coa.models.places import is_url, weights_place
from coa.models.tokenizer import SMOLLM2, result_folder, smollm2_file
from coa.trajectory.types import Frozen

_HINT: Final = "give a model folder, a hub id, nano, smollm2, or the URL of a model server"
PROGRAM_BYTES: Final = 480 << 20
"""What Python with torch and transformers takes before a model is loaded, as measured."""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """The sizes of a decoder-only transformer."""

    parameters: int
    layers: int
    hidden: int
    intermediate: int
    query: int
    """Width of the queries of all heads."""
    keys: int
    """Width of the keys of all key heads, and of the values."""
    vocabulary: int
    tied: bool
    """Whether input and output embeddings are the same weights."""

    @property
    def embeddings(self) -> int:
        return self.vocabulary * self.hidden * (1 if self.tied else 2)

    @property
    def layer(self) -> int:
        """Number of weights in one layer."""
        return (self.parameters - self.embeddings) // max(self.layers, 1)

    @property
    def linear_sides(self) -> int:
        """Sum of inputs and outputs of the linear parts of a layer: a LoRA adapter has this times its rank."""
        attention = 2 * (self.hidden + self.query) + 2 * (self.hidden + self.keys)
        return attention + 3 * (self.hidden + self.intermediate)

    @property
    def cached(self) -> int:
        """Numbers that one token of a context takes in the cache of keys and values."""
        return 2 * self.layers * self.keys


class Memory(Frozen):
    """An estimate of the peak memory, in bytes, by what takes it."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def __str__(self) -> str:
        named = ", ".join(f"{name} {gigabytes(size)}" for name, size in self.parts.items() if size >= 5 << 20)
        return f"about {gigabytes(self.total)} ({named})"


def gigabytes(size: int) -> str:
    return f"{size / 1e9:.2f} GB"


def running_memory(shape: ModelShape, *, kv_bytes: int, weight_bytes: int = 4) -> Memory:
    """Of a model in this process: its weights, the file they are read from, the packed copy that the engine makes for
    speed, and contexts."""
    return Memory(
        parts={
            "weights": weight_bytes * shape.parameters,
            "loading": weight_bytes * shape.parameters,
            "packed copy of the weights": weight_bytes * (shape.parameters - shape.embeddings),
            "contexts": kv_bytes,
            "program": PROGRAM_BYTES,
        }
    )


def shape_of(source: str | Path) -> ModelShape | None:
    """The shape of a model; None for a server, and where its files do not say. A model that is not there is refused."""
    if is_url(str(source)):
        return None
    if str(source) == SMOLLM2:
        return _of_gguf(smollm2_file())
    folder = Path(result_folder(source))
    if not folder.is_dir():
        folder = Path(weights_place(source))
    return _of_folder(folder, source) if folder.is_dir() else _of_hub(str(source))


def _of_folder(folder: Path, source: str | Path) -> ModelShape | None:
    adapter = folder / "adapter_config.json"
    if adapter.is_file():
        base = _json(adapter).get("base_model_name_or_path")
        return shape_of(str(base)) if base else None
    config = folder / "config.json"
    if not config.is_file():
        raise ModelError(f"{source} holds no model: there is no config.json in it", hint=_HINT)
    sizes = [prod(shape) for file in folder.glob("*.safetensors") for shape in _shapes_in(file)]
    return _shape(_json(config), sum(sizes) or None)


def _of_hub(name: str) -> ModelShape | None:
    from huggingface_hub import hf_hub_download

    try:
        file = hf_hub_download(name, "config.json")
    except Exception as error:  # the library's errors have no common base
        reason = f"cannot get config.json of {name!r} from the hub: {type(error).__name__}: {error}"
        raise ModelError(reason, hint=_HINT) from error
    return _shape(_json(Path(file)), None)


def _of_gguf(file: Path) -> ModelShape:
    header, tensors = read_header(file), read_tensors(file)
    name = str(header["general.architecture"])

    def get(key: str) -> int:
        value = header[f"{name}.{key}"]
        assert isinstance(value, int), key
        return value

    hidden, heads = get("embedding_length"), get("attention.head_count")
    vocabulary = tensors["token_embd.weight"][-1]
    return ModelShape(
        sum(map(prod, tensors.values())), get("block_count"), hidden, get("feed_forward_length"), hidden,
        hidden // heads * get("attention.head_count_kv"), vocabulary, "output.weight" not in tensors,
    )  # fmt: skip


def _shape(config: Mapping[str, Any], parameters: int | None) -> ModelShape | None:
    config = config.get("text_config") or config
    try:
        hidden, layers, heads = config["hidden_size"], config["num_hidden_layers"], config["num_attention_heads"]
        intermediate, vocabulary = config["intermediate_size"], config["vocab_size"]
    except KeyError:
        return None  # a model of another kind
    head = config.get("head_dim") or hidden // heads
    query, keys = heads * head, (config.get("num_key_value_heads") or heads) * head
    tied = bool(config.get("tie_word_embeddings", False))
    if parameters is None:
        if any("expert" in key for key in config):
            return None  # the sizes of experts are spelled differently by each family
        layer = 2 * hidden * (query + keys) + 3 * hidden * intermediate + 2 * hidden
        parameters = vocabulary * hidden * (1 if tied else 2) + layers * layer + hidden
    return ModelShape(parameters, layers, hidden, intermediate, query, keys, vocabulary, tied)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}", hint=_HINT) from error
    return found if isinstance(found, dict) else {}


def _shapes_in(file: Path) -> list[list[int]]:
    """The shapes of the tensors in a safetensors file, from its header."""
    try:
        with file.open("rb") as opened:
            header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
        return [tensor["shape"] for name, tensor in header.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, MemoryError, OverflowError) as error:
        raise ModelError(f"{file} is not a readable safetensors file: {error}", hint="copy the model again") from error
