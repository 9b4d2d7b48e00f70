"""For all tests: what takes long on a busy machine is not wrong, and a suite that passed once passes again.

Property tests draw the same examples each time, so that a change is judged by itself. `make test-slow` draws new ones
(`HYPOTHESIS_PROFILE=explore`); what it finds becomes an `@example` or a test of its own.
"""

import os
import signal
from collections.abc import Iterator

import pytest

# A shell lets its background jobs ignore Ctrl-C, and what they start would too; tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["HF_ENDPOINT"] = "http://127.0.0.1:9"  # no test asks the real hub for anything

from hypothesis import HealthCheck, settings

from coa.models import precision

settings.register_profile("coa", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "coa"))


@pytest.fixture(scope="session", autouse=True)
def cpu_without_bf16() -> Iterator[None]:
    """Tests give the same numbers on every CPU; those of bf16 say that there are units for it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(precision, "cpu_has_bf16", lambda: False)
        yield
