"""Task + model + tools -> trajectory, one or thousands at a time."""

from coa.runtime.best_of import Select, select
from coa.runtime.chain import Called, Chain, ChainEvent, Observed, run
from coa.runtime.guide import Constrain
from coa.runtime.many import BatchProgress, run_many
from coa.runtime.setting import Prompt, Setting

__all__ = [
    "BatchProgress",
    "Called",
    "Chain",
    "ChainEvent",
    "Constrain",
    "Observed",
    "Prompt",
    "Select",
    "Setting",
    "run",
    "run_many",
    "select",
]
