"""A team without a framework that keeps its messages, as rows that say who called whom."""

from __future__ import annotations

import json

from openai import OpenAI

from teams import bare_loop, common


def undecorated(name: str) -> bare_loop.Decorator:
    return lambda function: function


if __name__ == "__main__":
    team = bare_loop.Team(OpenAI(), undecorated, undecorated)
    answer = team.run(question=common.question())
    folder = common.traces()
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in team.conversations))
    print(answer)
