"""A verl platform for machines without an accelerator: gloo, `torch.cpu`, and logical "GPU" slots of Ray."""

from __future__ import annotations

import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from verl.plugin.platform import PlatformBase, PlatformRegistry

NAME: Final = "cpu"
_DO_NOTHING: Final = (
    "empty_cache", "synchronize", "reset_peak_memory_stats", "ipc_collect", "set_per_process_memory_fraction",
    "set_device",
)  # fmt: skip
_NO_BYTES: Final = ("memory_allocated", "memory_reserved", "max_memory_allocated", "max_memory_reserved")


def _device_module() -> types.ModuleType:
    """Takes the place of `torch.cuda`, as far as verl uses it."""
    module: Any = types.ModuleType("coa_torch_cpu")
    for name in _DO_NOTHING:
        setattr(module, name, lambda *_, **__: None)
    for name in _NO_BYTES:
        setattr(module, name, lambda *_, **__: 0)
    module.is_available = lambda: False
    module.current_device = lambda: NAME
    module.device_count = lambda: 1
    module.mem_get_info = lambda *_: (0, 0)
    module.get_device_name = lambda *_: "CPU"
    module.get_rng_state, module.set_rng_state = torch.get_rng_state, torch.set_rng_state
    module.manual_seed = module.manual_seed_all = torch.manual_seed
    module.memory = types.SimpleNamespace(_set_allocator_settings=lambda *_: None)
    found: types.ModuleType = module
    return found


@PlatformRegistry.register(platform=NAME)
class CpuPlatform(PlatformBase):  # type: ignore[misc]
    device_name = NAME
    vendor_name = NAME
    device_module = _device_module()

    def is_available(self) -> bool:
        return True

    def is_platform_available(self, use_smi_check: bool = False) -> bool:
        return False  # never found by itself: VERL_PLATFORM=cpu asks for it

    def current_device(self) -> str:
        return NAME  # verl passes it to `.to()`

    def device_count(self) -> int:
        return 1

    def set_device(self, device_index: int) -> None:
        pass

    def synchronize(self, device_index: int | None = None) -> None:
        pass

    def manual_seed(self, seed: int) -> None:
        torch.manual_seed(seed)

    def manual_seed_all(self, seed: int) -> None:
        torch.manual_seed(seed)

    def set_allocator_settings(self, settings: str) -> None:
        pass

    def empty_cache(self) -> None:
        pass

    def get_device_capability(self, device_index: int = 0) -> tuple[None, None]:
        return None, None

    def communication_backend_name(self) -> str:
        return "gloo"

    def visible_devices_envvar(self) -> str:
        return "CUDA_VISIBLE_DEVICES"

    @contextmanager
    def nvtx_range(self, msg: str) -> Iterator[None]:
        yield

    def profiler_start(self) -> None:
        pass

    def profiler_stop(self) -> None:
        pass

    def ray_resource_name(self) -> str:
        return "GPU"  # verl counts no other resource; Ray is started with as many logical ones as there are processes

    def ray_noset_envvars(self) -> list[str]:
        return []

    def is_ipc_supported(self) -> bool:
        return False

    def cudart(self) -> None:
        return None
