"""Task + model + tools -> trajectory, one or thousands at a time."""

from coa.runtime.best_of import best_of, select
from coa.runtime.chain import Chain, run
from coa.runtime.config import AskConfig, RunConfig
from coa.runtime.many import BatchProgress, run_many
from coa.runtime.opening import ask, open_setting
from coa.runtime.setting import Prompt, Setting
from coa.runtime.streaming import Called, ChainEvent, Observed

__all__ = [
    "AskConfig",
    "BatchProgress",
    "Called",
    "Chain",
    "ChainEvent",
    "Observed",
    "Prompt",
    "RunConfig",
    "Setting",
    "ask",
    "best_of",
    "open_setting",
    "run",
    "run_many",
    "select",
]
