"""What `coa sft --launch` would start, read back by accelerate's own parser and plugins; and whether it fits."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from accelerate.commands.config.config_args import ClusterConfig, load_config_from_file
from accelerate.commands.launch import _validate_launch_command, launch_command_parser
from accelerate.utils import FullyShardedDataParallelPlugin, patch_environment
from accelerate.utils.launch import prepare_multi_gpu_env
from pydantic import ValidationError
from torch.distributed.fsdp import StateDictType
from typer.testing import CliRunner

from coa.choices import Device, Offload, Sharding
from coa.cli import app
from coa.errors import TrainingError
from coa.models.footprint import ModelShape
from coa.sft import SftConfig, plan
from coa.sft.dry_run import memory_of, savings
from coa.sft.launch import Launch, command, environment, refuse_impossible
from coa.sft.sharding import refuse_lost_adapters
from coa.training.settings import Lora
from coa.trajectory import write
from support.builders import make_trajectory
from support.commands import save_tiny_model

QWEN_7B = {
    "hidden_size": 3584, "num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4,
    "intermediate_size": 18_944, "vocab_size": 152_064, "tie_word_embeddings": False,
}  # fmt: skip
SHAPE_7B = ModelShape(7_615_616_512, 28, 3584, 18_944, 3584, 512, 152_064, False)
SHAPE_32B = ModelShape(32_763_876_352, 64, 5120, 27_648, 5120, 1024, 152_064, False)
LONG = SftConfig(model="m", data=("d",), gradient_checkpointing=True)


def parsed(launch: Launch) -> Any:
    """As accelerate reads the command."""
    words = command(launch, ["-m", "coa.cli", "sft", "--out", "o"])
    args = launch_command_parser().parse_args(words[3:])
    return _validate_launch_command(args)[0]


@pytest.mark.parametrize("sharding", Sharding)
def test_every_shipped_config_is_one_that_accelerate_knows(sharding: Sharding) -> None:
    path = Path(command.__code__.co_filename).parent / f"{sharding}.yaml"
    config = load_config_from_file(str(path))  # refuses keys that it does not know
    assert isinstance(config, ClusterConfig) and config.distributed_type == {
        Sharding.FSDP2: "FSDP", Sharding.DEEPSPEED: "DEEPSPEED",
    }[sharding]  # fmt: skip
    assert sorted(path.parent.glob("*.yaml")) == [path.parent / f"{name}.yaml" for name in sorted(Sharding)]


def test_accelerate_makes_an_fsdp2_plugin_of_the_command() -> None:
    args = parsed(Launch(gpus_per_node=8, nnodes=4, node_rank=3, main_address="first:2000"))
    assert (args.num_processes, args.num_machines, args.machine_rank) == (32, 4, 3)
    assert (args.main_process_ip, args.main_process_port) == ("first", 2000)
    assert args.training_script == "coa.cli" and args.module and args.training_script_args == ["sft", "--out", "o"]
    with patch_environment(**prepare_multi_gpu_env(args)):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2 and plugin.reshard_after_forward is True and plugin.cpu_ram_efficient_loading
    assert plugin.state_dict_type == StateDictType.SHARDED_STATE_DICT and not plugin.activation_checkpointing


def test_offloading_reaches_the_plugin() -> None:
    with patch_environment(**prepare_multi_gpu_env(parsed(Launch(offload=Offload.ACTIVATIONS)))):
        plugin = FullyShardedDataParallelPlugin()
    assert plugin.activation_checkpointing and plugin.activation_checkpointing_offload
    with patch_environment(**prepare_multi_gpu_env(parsed(Launch(offload=Offload.OPTIMIZER)))):
        assert FullyShardedDataParallelPlugin().cpu_offload is not None
    args = parsed(Launch(sharding=Sharding.DEEPSPEED, offload=Offload.OPTIMIZER))
    assert (args.use_deepspeed, args.zero_stage) == (True, 3)
    assert (args.offload_optimizer_device, args.offload_param_device) == ("cpu", "cpu")


def test_a_try_on_a_cpu_stays_on_this_machine() -> None:
    found = environment(Launch(device=Device.CPU, gpus_per_node=2))
    assert found["CUDA_VISIBLE_DEVICES"] == "" and found["GLOO_SOCKET_IFNAME"] == "lo"


def test_what_cannot_work_is_refused_before_a_process_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValidationError, match="--main-address"):
        Launch(nnodes=2)
    with pytest.raises(ValidationError, match="at most 1 for 2"):
        Launch(nnodes=2, node_rank=2, main_address="first")
    activations = Launch(offload=Offload.ACTIVATIONS)
    for launch, config in [
        (activations, LONG.model_copy(update={"lora": Lora()})),
        (activations, LONG.model_copy(update={"gradient_checkpointing": False})),
        (activations.model_copy(update={"sharding": Sharding.DEEPSPEED}), LONG),
        (Launch(), LONG.model_copy(update={"sequence_parallel_size": 3})),
        (Launch(), LONG.model_copy(update={"num_eval_tasks": 5})),
    ]:
        with pytest.raises(TrainingError) as refused:
            refuse_impossible(launch, config)
        assert refused.value.hint
    # An accelerate config of the user's own can ask for the same.
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    monkeypatch.setenv("FSDP_ACTIVATION_CHECKPOINTING", "true")
    refuse_lost_adapters(None)
    with pytest.raises(TrainingError, match="empty adapter"):
        refuse_lost_adapters(Lora())


def test_the_memory_of_a_gpu_is_the_sum_worked_out_by_hand() -> None:
    parts = memory_of(SHAPE_7B, LONG, Launch(), 32_768).parts
    whole, head, layer = 7_615_616_512, 152_064 * 3584, SHAPE_7B.layer
    assert parts["weights"] == parts["gradients"] == whole // 2 and parts["optimizer"] == whole
    # bf16: the hidden width of 28 layers, and all that one layer needs.
    assert parts["activations"] == 2 * 32_768 * (28 * 3584 + 9 * 3584 + 2 * 512 + 4 * 18_944)
    assert parts["gathered"] == 2 * (2 * layer + head) + 6 * layer
    assert parts["logits"] == (256 << 20) + 6 * head
    half = memory_of(SHAPE_7B, LONG.model_copy(update={"sequence_parallel_size": 2}), Launch(), 32_768).parts
    assert 2 * half["activations"] == parts["activations"]


@pytest.mark.parametrize(
    ("shape", "launch", "changed", "fits"),
    [
        (SHAPE_7B, Launch(), {}, True),
        (SHAPE_7B, Launch(), {"gradient_checkpointing": False}, False),
        (SHAPE_7B, Launch(gpus_per_node=1), {}, False),
        (SHAPE_32B, Launch(), {}, False),
        (SHAPE_32B, Launch(nnodes=2, main_address="a"), {}, False),
        (SHAPE_32B, Launch(nnodes=2, main_address="a"), {"sequence_parallel_size": 2}, True),
        (SHAPE_32B, Launch(nnodes=4, main_address="a"), {}, True),
        (SHAPE_32B, Launch(offload=Offload.OPTIMIZER), {}, True),
    ],
)
def test_which_runs_of_32k_tokens_fit_into_80_gb(shape: ModelShape, launch: Launch, changed: Any, fits: bool) -> None:
    found = memory_of(shape, LONG.model_copy(update=changed), launch, 32_768)
    assert (found.total <= 72e9) == fits, found


@pytest.mark.parametrize("launch", [Launch(), Launch(gpus_per_node=4), Launch(nnodes=2, main_address="a")])
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("shape", [SHAPE_7B, SHAPE_32B])
def test_each_piece_of_advice_is_enough_by_itself(shape: ModelShape, launch: Launch, checkpointing: bool) -> None:
    config = LONG.model_copy(update={"gradient_checkpointing": checkpointing})
    for advice in savings(shape, config, launch, 32_768, 80):
        changed, on = config, launch
        for option, value in re.findall(r"--(\S+) (\S+)", advice.partition(" (")[0]):
            if option == "set":
                name, _, given = value.partition("=")
                fields = {
                    "gradient_checkpointing": True,
                    "lora": Lora(),
                    "sequence_parallel_size": given.isdecimal() and int(given),
                }
                name = name.partition(".")[0]
                changed = changed.model_copy(update={name: fields[name]})
            else:
                key = option.replace("-", "_")
                on = on.model_copy(update={key: Offload(value) if key == "offload" else int(value)})
        refuse_impossible(on, changed)
        assert memory_of(shape, changed, on, 32_768).total <= 72e9, advice


def test_a_dry_run_says_whether_it_fits_what_to_change_and_what_it_would_start(tmp_path: Path) -> None:
    save_tiny_model(tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    (tmp_path / "model" / "config.json").write_text(json.dumps(QWEN_7B))
    runs = [make_trajectory(("answer", "x " * 200), question=f"Who {n}?", profile="nano") for n in range(8)]
    write(tmp_path / "runs.jsonl", runs)
    config = SftConfig(model=str(tmp_path / "model"), data=(str(tmp_path / "runs.jsonl"),), batch_size=8, max_steps=1)
    one = plan(config, launch=Launch(gpus_per_node=1), gpu_memory_gb=40)
    assert one.fits is False and any("--gpus-per-node 8 (" in advice for advice in one.advice)
    assert any(line.startswith("does not fit into 40 GB; hint: ") for line in one.lines())
    eight = plan(config, launch=Launch(gpus_per_node=8), program=["-m", "coa.cli", "sft"])
    assert eight.fits and eight.rows_per_update == 8 and eight.processes == 8
    assert "fits into 80 GB" in eight.lines() and eight.launch_command is not None
    assert eight.launch_command.endswith("--main_process_port 0 -m coa.cli sft")

    words = ["sft", "--model", config.model, "--data", config.data[0], "--launch", "--dry-run", "--json"]
    done = CliRunner().invoke(app, [*words, "--gpus-per-node", "4", "--gpu-memory-gb", "40"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["plan"]["processes"] == 4
    wrong = CliRunner().invoke(app, [*words, "--gpus-per-node", "4", "--nnodes", "2"])
    assert wrong.exit_code == 2 and "--main-address" in wrong.output
