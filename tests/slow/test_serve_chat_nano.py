"""The model that comes with the package, behind Chat Completions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI

from coa.runtime import RunConfig
from coa.serve.config import ServeConfig
from coa.serve.server import serve


@pytest.mark.slow
def test_nano_holds_a_conversation_with_its_own_tools(tmp_path: Path) -> None:
    config = ServeConfig(run=RunConfig(model="nano", temperature=0.0), port=0, state=tmp_path / "state")
    with serve(config) as server, OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        question: Any = {"role": "user", "content": "What is 370 times 48?"}
        said: Any = client.chat.completions.create(model="nano", messages=[question]).choices[0].message
        assert said.content == "17760"
        assert [item["agent"] for item in said.coa if item["kind"] == "tool" and item["ok"]]
        follow_up: Any = {"role": "user", "content": "And times 49?"}
        chunks = client.chat.completions.create(
            model="nano", messages=[question, said, follow_up], stream=True, max_completion_tokens=64
        )
        deltas = [chunk.choices[0].delta for chunk in chunks]
    assert len([delta for delta in deltas if delta.content or (delta.model_extra or {}).get("reasoning")]) > 5
