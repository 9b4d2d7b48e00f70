"""`coa sft`: fine-tune a model on trajectories."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from coa.choices import Device, Offload, Sharding
from coa.cli import options

if TYPE_CHECKING:
    from coa.sft.launch import Launch

_EVAL = "Evaluation during training"
_GPUS = "Many GPUs"


def sft(
    config: Annotated[
        Path | None, typer.Argument(help="TOML file with settings, such as configs/sft/nano.toml.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Model to train: a model folder, a hub id, or smollm2.", rich_help_panel=options.AGENT),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option(help="Trajectories or AFM SFT rows: a file, a folder or a hub id. Repeatable."),
    ] = None,
    profile: Annotated[str | None, typer.Option(help="Profile of the data; data of any other is refused.")] = None,
    eval_tasks: Annotated[
        str | None,
        typer.Option("--eval-tasks", "--tasks", rich_help_panel=_EVAL,
                     help="Tasks to run the agent on. Default: some of the data's are held out."),
    ] = None,
    num_eval_tasks: Annotated[
        int | None,
        typer.Option("--num-eval-tasks", "--init-eval", min=0,
                     help="Number of held-out tasks to run the agent on before, during and after training.",
                     rich_help_panel=_EVAL),
    ] = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(help="Tool for these runs as name=setting or name=module:factory. Repeatable.",
                     rich_help_panel=_EVAL),
    ] = None,
    world: Annotated[
        str | None, typer.Option(help="Offline world whose tools to use for these runs.", rich_help_panel=_EVAL)
    ] = None,
    launch: Annotated[
        bool, typer.Option("--launch", help="Start one process for each GPU, with accelerate.", rich_help_panel=_GPUS)
    ] = False,
    sharding: Annotated[
        Sharding, typer.Option(help="What divides the model among the GPUs.", rich_help_panel=_GPUS)
    ] = Sharding.FSDP2,
    gpus_per_node: Annotated[
        int | None,
        typer.Option(min=1, help="Number of processes on each machine. Default: all GPUs; 2 with --device cpu.",
                     rich_help_panel=_GPUS),
    ] = None,
    nnodes: Annotated[
        int, typer.Option(min=1, help="Number of machines; start the command on each.", rich_help_panel=_GPUS)
    ] = 1,
    node_rank: Annotated[
        int, typer.Option(min=0, help="Rank of this machine among --nnodes, from 0.", rich_help_panel=_GPUS)
    ] = 0,
    main_address: Annotated[
        str | None,
        typer.Option(metavar="HOST:PORT", help="Address of machine 0, where there are several.", rich_help_panel=_GPUS),
    ] = None,
    device: Annotated[
        Device,
        typer.Option(help="Where the processes train: on GPUs, or on this CPU to try it out.", rich_help_panel=_GPUS),
    ] = Device.CUDA,
    offload: Annotated[
        Offload,
        typer.Option(help="What to keep in the machine's memory instead of the GPU's.", rich_help_panel=_GPUS),
    ] = Offload.NONE,
    gpu_memory_gb: Annotated[
        float,
        typer.Option(min=1, help="Memory of a GPU; --dry-run says whether the run fits into it.",
                     rich_help_panel=_GPUS),
    ] = 80.0,
    settings: options.Set = None,
    show_settings: options.ShowSettings = False,
    dry_run: options.DryRunPlan = False,
    out: options.RunFolder = None,
    as_json: options.Json = False,
) -> None:  # fmt: skip
    """Fine-tune a model on trajectories. The loss covers what the model wrote, not prompts or observations."""
    from coa.cli.configuring import misused, resolve
    from coa.cli.progress import terminal_progress
    from coa.cli.terminal import show_warnings
    from coa.cli.training import close, this_command
    from coa.sft import SftConfig, plan
    from coa.sft import sft as train
    from coa.sft.launch import is_launched, start

    show_warnings()
    given = {
        "model": model, "data": tuple(data) if data else None, "profile": profile, "num_eval_tasks": num_eval_tasks,
        "eval_tasks": eval_tasks, "tools": tuple(tool) if tool else None, "world": world,
    }  # fmt: skip
    where = None
    unused = [
        flag
        for flag, given_here in {
            "--sharding": sharding is not Sharding.FSDP2, "--gpus-per-node": gpus_per_node is not None,
            "--nnodes": nnodes != 1, "--node-rank": node_rank != 0, "--main-address": main_address is not None,
            "--device": device is not Device.CUDA, "--offload": offload is not Offload.NONE,
        }.items()
        if given_here
    ]  # fmt: skip
    if unused and not launch:
        raise misused(f"{unused[0]} is for several processes", "add --launch")
    if launch:
        where = _launch(sharding=sharding, device=device, gpus_per_node=gpus_per_node, nnodes=nnodes,
                        node_rank=node_rank, main_address=main_address, offload=offload)  # fmt: skip
    program = ["-m", "coa.cli", *(word for word in sys.argv[1:] if word != "--dry-run")]
    chosen = resolve(
        SftConfig, config, settings, given, show_settings=show_settings, dry_run=dry_run, as_json=as_json,
        plan=partial(plan, launch=where, gpu_memory_gb=gpu_memory_gb, program=program),
    )  # fmt: skip
    if out is None:
        raise misused("the run needs a folder: add --out runs/sft")
    if where is not None and not is_launched():
        start(where, chosen, program)  # each process runs this same command
        return
    close(train(chosen, out, command=this_command(), progress=terminal_progress()), out, as_json=as_json)


def _launch(
    *, sharding: Sharding, device: Device, gpus_per_node: int | None, nnodes: int, node_rank: int,
    main_address: str | None, offload: Offload,
) -> Launch:  # fmt: skip
    from pydantic import ValidationError

    from coa.cli.configuring import misused
    from coa.config import first_problem
    from coa.sft.launch import Launch, devices_here

    processes = gpus_per_node or (2 if device is Device.CPU else devices_here())
    if not processes:
        raise misused(
            "this machine has no NVIDIA GPU", "--device cpu tries the run here; --gpus-per-node N plans for N"
        )
    try:
        return Launch(
            sharding=sharding, device=device, gpus_per_node=processes, nnodes=nnodes, node_rank=node_rank,
            main_address=main_address, offload=offload,
        )  # fmt: skip
    except ValidationError as error:
        raise misused(first_problem(error)) from error
