"""Options that have a fixed set of values. They import nothing, so that `--help` can list the values at once."""

from enum import StrEnum


class Mode(StrEnum):
    """How to talk to a model server."""

    AUTO = "auto"
    """Token ids where the server can exchange them, else chat."""
    TOKENS = "tokens"
    CHAT = "chat"


class CacheMode(StrEnum):
    """What to do with the answers of tools."""

    OFF = "off"
    RECORD = "record"
    """Answer from the cache file; call the tool for what is not in it, and keep the answer."""
    REPLAY = "replay"
    """Answer from the cache file alone."""


class Constrain(StrEnum):
    """When to hold a model to the protocol by constrained decoding."""

    AUTO = "auto"
    """Small models in this process, unless coa trained them."""
    ALWAYS = "always"
    NEVER = "never"


class Precision(StrEnum):
    """Type of the numbers that a model in this process multiplies."""

    AUTO = "auto"
    """bf16 where the GPU or the CPU has units for it, else fp32."""
    FP32 = "fp32"
    BF16 = "bf16"


class Select(StrEnum):
    """How to choose one of several attempts."""

    MAJORITY = "majority"
    SELF_CHECK = "self-check"
    JUDGE = "judge"


class PromptSource(StrEnum):
    """Where the prompt of a task comes from."""

    PROFILE = "profile"
    ROW = "row"
    """Each task brings its own."""


class RlEngine(StrEnum):
    """What carries out a run of `coa rl`."""

    LOCAL = "local"
    """This process, on one CPU or GPU."""
    VERL = "verl"
    """verl on a Ray cluster."""


class Target(StrEnum):
    """What `coa export` writes."""

    TRAJECTORIES = "trajectories"
    TASKS = "tasks"
    MESSAGES = "messages"
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    VERL = "verl"
    ATIF = "atif"
    OTLP = "otlp"
    MODEL = "model"
    """Spans of OpenTelemetry."""


class Sharding(StrEnum):
    """What divides a model among processes that train it."""

    FSDP2 = "fsdp2"
    DEEPSPEED = "deepspeed"


class Device(StrEnum):
    """What training processes compute on."""

    CUDA = "cuda"
    CPU = "cpu"


class Offload(StrEnum):
    """What training keeps in the memory of the machine instead of the GPU's."""

    NONE = "none"
    ACTIVATIONS = "activations"
    """What gradient checkpointing keeps of each layer."""
    OPTIMIZER = "optimizer"
    """The optimizer's states, and the weights and gradients while the GPU does not need them."""


class TorchBuild(StrEnum):
    """Which build of torch to install."""

    AUTO = "auto"
    """The CPU build on Linux without an NVIDIA driver, else the default one."""
    CPU = "cpu"
    DEFAULT = "default"
    """The one of the index that pip or uv is set up with."""
