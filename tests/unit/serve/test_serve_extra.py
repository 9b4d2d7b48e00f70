"""Without the extra `serve`, whoever wants to serve learns what to install. Each import is really blocked."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from coa.doctor import examine

HINT = "coa setup serve"


def without(package: str, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python in which this package cannot be imported."""
    blocked = f"import sys\nsys.modules[{package!r}] = None\n{code}"
    return subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)


@pytest.mark.parametrize("package", ["uvicorn", "prometheus_client"])
def test_the_command_names_what_to_install(package: str) -> None:
    done = without(package, "from coa.cli import main\nmain(['serve', '--model', 'nano'])")
    assert done.returncode == 1 and f"needs the package {package}" in done.stderr
    assert HINT in done.stderr and "Traceback" not in done.stderr


def test_python_gets_the_same_as_an_error_of_coa() -> None:
    done = without("uvicorn", "import coa\ntry:\n    coa.serve()\nexcept coa.CoaError as error:\n    print(error.hint)")
    assert HINT in done.stdout, done.stderr


def test_keys_and_settings_need_no_extra(tmp_path: Path) -> None:
    code = f"from coa.cli import main\nmain(['serve', '--add-key', 'me', '--keys-file', {str(tmp_path / 'keys')!r}])"
    done = without("starlette", code)
    assert done.returncode == 0 and done.stdout.startswith("coa_"), done.stderr
    done = without("uvicorn", "from coa.cli import main\nmain(['serve', '--model', 'nano', '--dry-run'])")
    assert done.returncode == 0 and "8080" in done.stdout, done.stderr


def test_the_doctor_says_that_serving_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.metadata.version

    def version(name: str) -> str:
        if name == "uvicorn":
            raise importlib.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    (serving,) = (check for check in examine() if check.what == "serving behind an API")
    assert not serving.works and not serving.needed and HINT in (serving.hint or "")
