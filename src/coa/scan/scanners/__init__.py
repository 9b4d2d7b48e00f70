"""The scanners that come with coa. A new one is a file beside this one and a line here."""

from typing import Final

from coa.scan.finding import Scanner
from coa.scan.scanners.language_switches import LanguageSwitches
from coa.scan.scanners.loops import Loops
from coa.scan.scanners.refused_formats import RefusedFormats
from coa.scan.scanners.repeated_calls import RepeatedCalls
from coa.scan.scanners.reward_without_tools import RewardWithoutTools
from coa.scan.scanners.tool_errors import ToolErrors
from coa.scan.scanners.truncated_contexts import TruncatedContexts
from coa.scan.scanners.unsupported_answers import UnsupportedAnswers

SCANNERS: Final[tuple[type[Scanner], ...]] = (
    RepeatedCalls,
    ToolErrors,
    UnsupportedAnswers,
    RewardWithoutTools,
    TruncatedContexts,
    RefusedFormats,
    LanguageSwitches,
    Loops,
)
