"""Makes the adapter of a long demo the one that comes with the package: `scripts/nano.py runs/long/sft`."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Final

import torch
from safetensors.torch import load_file, save_file

from coa.models.tokenizer import SMOLLM2, result_folder, smollm2_file

TARGET: Final = Path(__file__).parents[1] / "src" / "coa" / "models" / "nano"
MOST_BYTES: Final = 10_000_000


def main() -> None:
    source = Path(result_folder(sys.argv[1]))
    settings = json.loads((source / "adapter_config.json").read_text(encoding="utf-8"))
    if smollm2_file().stem not in (base := settings["base_model_name_or_path"]):  # a folder made of that file
        sys.exit(f"{source} is an adapter over {base}, not over {SMOLLM2}")
    settings["base_model_name_or_path"] = SMOLLM2
    card = _card(source, Path(sys.argv[1]))
    part = TARGET.with_name("nano.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    # The tokenizer is that of the base. Sixteen bits are enough for a difference to the weights.
    weights = load_file(source / "adapter_model.safetensors")
    narrow = {name: weight.to(torch.bfloat16) for name, weight in weights.items()}
    save_file(narrow, part / "adapter_model.safetensors", metadata={"format": "pt"})
    (part / "adapter_model.safetensors").chmod(0o644)
    (part / "adapter_config.json").write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    (part / "README.md").write_text(card, encoding="utf-8")
    size = sum(file.stat().st_size for file in part.iterdir())
    if size > MOST_BYTES:
        sys.exit(f"{part} has {size / 1e6:.1f} MB, more than {MOST_BYTES / 1e6:.0f}: train it with a lower rank")
    shutil.rmtree(TARGET, ignore_errors=True)
    part.rename(TARGET)
    print(f"{TARGET}: {size / 1e6:.1f} MB")


def _card(source: Path, run: Path) -> str:
    """The run's own card under the adapter's name, with what it is for and how good it is."""
    card = (source / "README.md").read_text(encoding="utf-8")
    report = json.loads((run.parent / "eval" / run.name / "report.json").read_text(encoding="utf-8"))
    found = report["results"]["metrics"]["pass@1"]
    about = (
        "An adapter over SmolLM2-135M-Instruct (Apache-2.0, as this is) that plays a chain of agents on the offline "
        "atlas world and knows nothing else. Held-out tasks, greedy, before it was cut to 16 bits: "
        f"{found['value']:.1%} [{found['low']:.1%}, {found['high']:.1%}] of {report['results']['tasks']}."
    )
    return re.sub(r"(?m)^# .+$", f"# nano\n\n{about}", card, count=1).replace("tags:", "license: apache-2.0\ntags:", 1)


if __name__ == "__main__":
    main()
