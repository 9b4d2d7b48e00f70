"""What a server leaves behind when its process is asked to end."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from openai import OpenAI

from coa.trajectory import Stop, read

SERVER = '''
import sys
from coa.models.scripted import ScriptedModel
from coa.runtime import RunConfig
from coa.serve import ServeConfig, serve

config = ServeConfig(run=RunConfig(model="http://127.0.0.1:9", profile="nano"), name="agent", port=0, state=sys.argv[1])
call = """<think>I ask.</think>
<look_up>
```json
{"place": "Vell"}
```
</look_up>"""
server = serve(config, out=sys.argv[2], models={"agent": ScriptedModel([call])}, tools={"agent": {}})
server.run_forever(lambda server: print(server.url, flush=True))
print("closed", flush=True)
'''
LOOK_UP = {
    "type": "function",
    "name": "look_up",
    "description": "Looks a place up.",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_closes_the_service_before_the_process_ends(sent: signal.Signals, tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, tmp_path / "state", tmp_path / "out.jsonl"], stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        client = OpenAI(base_url=f"{process.stdout.readline().strip()}/v1", api_key="none", max_retries=0)
        # Nobody will continue this run: it is kept in memory only, and the server is about to end.
        said = client.responses.create(model="agent", input="How tall?", tools=[LOOK_UP], store=False)  # type: ignore[list-item]
        assert said.output[-1].type == "function_call"
        client.close()
        process.send_signal(sent)
        assert process.stdout.read() == "closed\n"
    assert process.returncode == 0
    assert [run.stop for run in read(tmp_path / "out.jsonl")] == [Stop.WAITING]
    assert [file.name for file in (tmp_path / "state").iterdir()] == ["runs.sqlite"]
