"""A `Model` whose weights are in this process, and the loading of weights."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch
import transformers
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, enable_progress_bars
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel

from coa.choices import Precision
from coa.errors import ModelError
from coa.folder import cache_place, lock_file, replacing
from coa.models.base import Context, Finish, Generation, OnText, Sampling
from coa.models.local.engines import Engines
from coa.models.local.lean import suits
from coa.models.local.narrow import narrow_products
from coa.models.local.request import Decoded, Request
from coa.models.places import weights_place
from coa.models.precision import computes_in_bf16
from coa.models.tokenizer import SMOLLM2, TextTokenizer, load_tokenizer, result_folder, smollm2_file
from coa.trajectory import Tokenizer, Tokens, Usage
from coa.trajectory.grammar import Grammar

if TYPE_CHECKING:
    from peft import PeftModel

TAG: Final = "chain-of-agents"
"""Is in the header of the model card of every model that coa trained."""
SMALL: Final = 1_000_000_000
"""Number of parameters from which on a model is trusted to follow the protocol without constraints."""


class LocalModel:
    """A causal LM in this process. Many `generate` calls at once share its batches."""

    def __init__(
        self, model: PreTrainedModel, tokenizer: Tokenizer, *, name: str, max_rows: int = 32, kv_bytes: int = 2 << 30,
        constrained_by_default: bool = False, temperature: float = 1.0, bf16: bool = False,
    ) -> None:  # fmt: skip
        """With `temperature`, the distribution of the model at that temperature counts as the distribution of the
        model: the settings of a call apply to it, and logprobs are taken from it. With `bf16` an engine on a CPU
        multiplies in bf16; on a GPU the type of the weights decides."""
        self.name = name
        self.tokenizer = tokenizer
        self.constrained_by_default = constrained_by_default
        self._engines = Engines(
            model, tokenizer, max_rows=max_rows, kv_bytes=kv_bytes, temperature=temperature, bf16=bf16
        )

    @property
    def longest(self) -> int:
        """Largest number of tokens of one run, its continuation included."""
        return self._engines.longest

    @property
    def unconstrainable(self) -> str | None:
        spelled = self._engines.spellings is not None
        return None if spelled else f"the tokens of {self.name} do not spell the same text everywhere"

    @property
    def tokens_written(self) -> int:
        return self._engines.tokens_written

    async def generate(
        self, context: Context, *, stop: Sequence[str], sampling: Sampling, on_text: OnText = None,
        grammar: Grammar | None = None,
    ) -> Generation:  # fmt: skip
        if context.ids is None:
            raise ModelError("a local model needs the context as ids")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Decoded] = loop.create_future()
        request = Request(
            ids=list(context.ids),
            stop=tuple(stop),
            sampling=sampling,
            done=lambda result: _settle(loop, future, result),
            on_text=None if on_text is None else _in_loop(loop, on_text),
            grammar=grammar,
        )
        try:
            self._engines.submit(request)
            result = await future
        except asyncio.CancelledError:
            request.cancelled = True
            raise
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"the local model {self.name} cannot continue: {error}") from error
        usage = Usage(
            prompt_tokens=len(context.ids),
            completion_tokens=len(result.ids) + (result.finish is Finish.END),
            cached_tokens=len(context.ids) - result.computed,
            model_calls=1,
        )
        text = self.tokenizer.decode(result.ids)
        tokens = Tokens(ids=tuple(result.ids), logprobs=tuple(result.logprobs))
        kept = result.log_kept
        return Generation(text, result.finish, usage, tokens, kept is not None, log_kept=kept, ended=result.ended)

    def forget(self) -> None:
        """Call this when the weights have changed, and only between calls of `generate`."""
        self._engines.forget()

    @contextmanager
    def in_step(self, runs: Iterable[int]) -> Iterator[Callable[[int], None]]:
        """Inside this context, the runs with these seeds, and no others, get the same numbers to the last bit however
        long their tools take. Call the function that it yields when a run is over; all must be over at the end."""
        with self._engines.in_step(runs) as leave:
            yield leave

    async def close(self) -> None:
        await asyncio.to_thread(self._engines.close)


def _in_loop(loop: asyncio.AbstractEventLoop, on_text: Callable[[str], None]) -> Callable[[str], None]:
    def forward(text: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(on_text, text)

    return forward


def _settle(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Decoded], result: Decoded | Exception) -> None:
    def set_result() -> None:
        if future.done():
            return
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    if not loop.is_closed():
        loop.call_soon_threadsafe(set_result)


def load_local(
    source: str | Path, *, max_rows: int = 32, kv_bytes: int | None = None, precision: Precision = Precision.AUTO
) -> LocalModel:
    """Open `nano`, `smollm2`, a model folder, or a hub id.

    Small models are constrained to the protocol by default, unless coa trained them."""
    bf16 = uses_bf16(precision)
    gpu = torch.cuda.is_available()
    model, tokenizer = load_weights(source, dtype=torch.bfloat16 if bf16 and gpu else torch.float32)
    if bf16 and not gpu and not suits(model):
        narrow_products(model)
    small = sum(weight.numel() for weight in model.parameters()) < SMALL
    return LocalModel(
        model, tokenizer, name=str(source), max_rows=max_rows, kv_bytes=kv_bytes or _room_for_contexts(),
        constrained_by_default=small and not _trained_as_agents(source), bf16=bf16,
    )  # fmt: skip


def uses_bf16(precision: Precision) -> bool:
    """Whether a model computes in bf16 on this machine's GPU, or on its CPU if it has none."""
    return computes_in_bf16(precision, gpu=torch.cuda.is_bf16_supported() if torch.cuda.is_available() else None)


def _trained_as_agents(source: str | Path) -> bool:
    """Whether `coa sft` or `coa rl` made it, which its model card says."""
    card = Path(result_folder(source)) / "README.md"
    return card.is_file() and TAG in card.read_text(encoding="utf-8", errors="replace").partition("\n#")[0]


def _room_for_contexts() -> int:
    """A fifth of the free memory, within bounds: contexts for which there is no room are computed again and again."""
    least, most = 2 << 30, 8 << 30
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            free = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return least
    return max(min(free // 5, most), least)


def load_weights(
    source: str | Path, *, dtype: torch.dtype | None = None, device: str | None = None
) -> tuple[PreTrainedModel, TextTokenizer]:
    """Weights and tokenizer of `nano`, `smollm2`, a model or adapter folder, the folder of a training run, or a hub id.

    The default is bf16 on a GPU and fp32 on a CPU, where engines make their own copies of the weights.
    """
    _hide_weight_bars()
    source = result_folder(source)
    adapter = Path(source) if is_adapter(source) else None
    base = base_of_adapter(adapter) if adapter else str(source)
    folder = str(smollm2_folder() if base == SMOLLM2 else weights_place(base))
    gpu = torch.cuda.is_available()
    dtype = dtype or (torch.bfloat16 if gpu else torch.float32)
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except SafetensorError as error:
        raise ModelError(
            f"the weights of {base} are damaged or incomplete: {error}", hint="download or save the model again"
        ) from error
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        raise ModelError(
            f"cannot load a model from {base}: {error}",
            hint="give a model folder, a hub id, nano, smollm2, or the URL of a model server",
        ) from error
    model.to(device or ("cuda" if gpu else "cpu"))  # type: ignore[arg-type]
    if adapter is not None:
        model = with_adapter(model, adapter).merge_and_unload()
        model.requires_grad_(True)  # peft has frozen the base below the adapter; merged, all of it can be trained
    return model, load_tokenizer(SMOLLM2 if str(source) == SMOLLM2 else str(adapter or folder))


def _hide_weight_bars() -> None:
    """Switch off the progress bars that transformers shows whenever it reads or writes weights in this process.

    Downloads keep theirs: they take minutes, and the progress bars of the hub appear only on a terminal.
    """
    downloads_hidden = are_progress_bars_disabled()
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    if not downloads_hidden:
        enable_progress_bars()


def is_adapter(source: str | Path) -> bool:
    return (Path(result_folder(source)) / "adapter_config.json").is_file()


def base_of_adapter(adapter: Path) -> str:
    """Name or folder of the model that an adapter belongs to."""
    name = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8")).get("base_model_name_or_path")
    if not name:
        raise ModelError(f"{adapter}/adapter_config.json does not name the model that the adapter belongs to")
    return str(name)


def with_adapter(model: PreTrainedModel, adapter: Path, *, trainable: bool = False) -> PeftModel:
    try:
        from peft import PeftModel
    except ImportError as error:
        raise ModelError(f"{adapter} is an adapter, and loading one needs peft", needs=["local"]) from error
    try:
        return PeftModel.from_pretrained(model, str(adapter), is_trainable=trainable)
    except (OSError, RuntimeError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise ModelError(
            f"the adapter {adapter} cannot be loaded over its base {base_of_adapter(adapter)}: {error}",
            hint="check base_model_name_or_path in its adapter_config.json",
        ) from error


def smollm2_folder() -> Path:
    """The embedded 4-bit weights as a plain model folder. It is made once, as reading the GGUF takes half a minute."""
    file = smollm2_file()
    folder = cache_place(f"{file.stem}-{file.stat().st_size}")
    if not (folder / "config.json").is_file():
        with lock_file(folder, wait=True):
            if not (folder / "config.json").is_file():  # another process may have made it meanwhile
                # From 5.17 on, transformers may keep the 4-bit blocks; earlier versions always gave plain weights.
                packable = hasattr(transformers, "GgufConfig")
                plain = {"quantization_config": transformers.GgufConfig(dequantize=True)} if packable else {}
                weights = AutoModelForCausalLM.from_pretrained(
                    str(file.parent), gguf_file=file.name, dtype=torch.float32, **plain
                )
                with replacing(folder) as part:
                    weights.save_pretrained(part)
    return folder
