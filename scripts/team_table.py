"""Write the table of frameworks into docs/guides/frameworks.md anew, from the recordings in tests/corpus/teams.

python scripts/team_table.py            the table alone
python scripts/team_table.py --capture  run and record every team again first (installs the frameworks)
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.recorded_teams import CORPUS, matrix
from teams.capture import capture, frameworks

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- scripts/team_table.py writes the table -->\n", "<!-- end of the table -->\n"


def main() -> None:
    if "--capture" in sys.argv:
        for framework in frameworks():
            print(f"recording {framework}")
            shutil.rmtree(CORPUS / framework, ignore_errors=True)
            capture(framework, CORPUS / framework)
    page = ROOT / "docs" / "guides" / "frameworks.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{matrix()}\n{END}{after}")


if __name__ == "__main__":
    main()
