"""Fine-tuning on many GPUs: one process for each, started by `accelerate launch` with a config that coa ships.

    setup = Launch(gpus_per_node=8)
    start(setup, config, ["-m", "coa.cli", "sft", "configs/sft/web-7b.toml", "--out", "runs/web-7b"])

Every process runs the given program, which calls `coa.sft` as it would alone. `is_launched` is true where a process is
one of several. Neither torch nor accelerate is loaded here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from pydantic import Field, model_validator

from coa.choices import Device, Offload, Sharding
from coa.errors import TrainingError
from coa.sft.checks import check
from coa.sft.config import SftConfig
from coa.training.footprint import Division
from coa.trajectory.types import Frozen

_LAUNCHED: Final = "COA_LAUNCHED"
_PORT: Final = 29500


class Launch(Frozen):
    """On how many devices to train, and how the model is divided among them."""

    sharding: Sharding = Sharding.FSDP2
    device: Device = Device.CUDA
    gpus_per_node: int = Field(8, ge=1)
    """Number of processes on each machine."""
    nnodes: int = Field(1, ge=1)
    """Number of machines; the command is started on each of them."""
    node_rank: int = Field(0, ge=0)
    """Number of this machine, from 0."""
    main_address: str | None = None
    """Address of machine 0, as HOST or HOST:PORT."""
    offload: Offload = Offload.NONE

    @property
    def processes(self) -> int:
        return self.gpus_per_node * self.nnodes

    @model_validator(mode="after")
    def _consistent(self) -> Launch:
        if self.main_address is not None and not re.fullmatch(r"[^:\s]+(:[0-9]+)?", self.main_address):
            raise ValueError(f"{self.main_address!r} is not an address: write HOST or HOST:PORT")
        if self.nnodes > 1 and not self.main_address:
            raise ValueError("several machines need the address of the first one: add --main-address HOST:PORT")
        if self.node_rank >= self.nnodes:
            raise ValueError(f"node_rank counts from 0, so it is at most {self.nnodes - 1} for {self.nnodes} machines")
        return self

    def division(self, config: SftConfig) -> Division:
        return Division(
            self.processes, sequence=config.sequence_parallel_size, offload=self.offload,
            gpu=self.device is Device.CUDA,
        )  # fmt: skip


def devices_here() -> int:
    """Number of NVIDIA GPUs of this machine, without torch."""
    return sum(1 for path in Path("/dev").glob("nvidia*") if path.name.removeprefix("nvidia").isdecimal())


def is_launched() -> bool:
    """Whether this process is one of those that `start` has started."""
    return os.environ.get(_LAUNCHED) == "1"


def refuse_impossible(launch: Launch, config: SftConfig) -> None:
    if launch.offload is Offload.ACTIVATIONS:
        if launch.sharding is Sharding.DEEPSPEED:
            raise TrainingError("--offload activations works with FSDP2 only", hint="--sharding fsdp2")
        if config.lora is not None:
            raise TrainingError(
                "--offload activations cannot be used with lora: peft would save an empty adapter",
                hint="leave --offload out and --set gradient_checkpointing=true; an adapter needs little memory",
            )
        if not config.gradient_checkpointing:
            raise TrainingError(
                "--offload activations moves what gradient checkpointing keeps, which is off",
                hint="--set gradient_checkpointing=true",
            )
    if config.num_eval_tasks and launch.processes > 1:
        raise TrainingError(
            "num_eval_tasks runs the agent in the training process, which only works with one process",
            hint="--set num_eval_tasks=0, and evaluate the checkpoints afterwards",
        )
    if launch.processes % config.sequence_parallel_size:
        raise TrainingError(
            f"sequence_parallel_size: groups of {config.sequence_parallel_size} processes cannot be formed from "
            f"{launch.processes}",
            hint="start a multiple of sequence_parallel_size processes",
        )


def command(launch: Launch, program: Sequence[str]) -> list[str]:
    """The command that starts the processes of this machine; `program` is a script, or `-m` and a module, with its
    arguments."""
    words = [
        sys.executable, "-m", "accelerate.commands.launch",
        "--config_file", str(Path(__file__).parent / f"{launch.sharding}.yaml"),
        "--num_processes", str(launch.processes), "--num_machines", str(launch.nnodes),
        "--machine_rank", str(launch.node_rank),
    ]  # fmt: skip
    if launch.main_address is None:
        words += ["--main_process_port", "0"]  # any that is free
    else:
        host, _, port = launch.main_address.partition(":")
        words += ["--main_process_ip", host, "--main_process_port", port or str(_PORT)]
    return [*words, *_offload_words(launch), *program]


def _offload_words(launch: Launch) -> list[str]:
    if launch.offload is Offload.ACTIVATIONS:
        return ["--fsdp_activation_checkpointing", "true", "--fsdp_activation_checkpointing_offload", "true"]
    if launch.offload is Offload.OPTIMIZER and launch.sharding is Sharding.FSDP2:
        return ["--fsdp_offload_params", "true"]
    if launch.offload is Offload.OPTIMIZER:
        return ["--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"]
    return []


def environment(launch: Launch) -> Mapping[str, str]:
    """What the processes get besides the environment of this one."""
    found = {_LAUNCHED: "1"}
    if launch.device is Device.CPU:
        found["CUDA_VISIBLE_DEVICES"] = ""
        threads = max((os.cpu_count() or 1) // launch.gpus_per_node, 1)
        found["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(threads))
        if launch.nnodes == 1 and sys.platform.startswith("linux"):
            found["GLOO_SOCKET_IFNAME"] = os.environ.get("GLOO_SOCKET_IFNAME", "lo")
    return found


def start(launch: Launch, config: SftConfig, program: Sequence[str]) -> None:
    """Start the processes of this machine and wait for them. A signal to this process goes to them.

    Settings and data are checked first, so that a mistake is reported once and not by every process.
    """
    refuse_impossible(launch, config)
    check(config)
    for name in ["accelerate", *(["deepspeed"] if launch.sharding is Sharding.DEEPSPEED else [])]:
        if importlib.util.find_spec(name) is None:
            if name == "accelerate":
                raise TrainingError(f"--launch needs {name}", needs=["train"])
            raise TrainingError(f"--launch needs {name}", hint=f"{sys.executable} -m pip install {name}")
    process = subprocess.Popen(command(launch, program), env=os.environ | environment(launch))
    before = signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    try:
        while True:
            try:
                code = process.wait()
                break
            except KeyboardInterrupt:  # which the processes have got too; they end by themselves
                continue
    finally:
        signal.signal(signal.SIGTERM, before)
    if code:
        raise TrainingError(
            f"the processes ended with exit code {code}; their messages are above",
            hint="the same command goes on from the last complete checkpoint",
        )


def shown(launch: Launch, program: Sequence[str]) -> str:
    """The command as one line for a shell."""
    words = shlex.join(command(launch, program))
    return " ".join([*(f"{name}={shlex.quote(value)}" for name, value in environment(launch).items()), words])
