"""A stand-in for the model of `team.py`, so that the team runs without a model server: python scripted_model.py PORT

It answers Chat Completions requests by rule. Like a small model it subtracts some years in the wrong order, so that the
recordings hold wrong answers for `coa distill` to filter out.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from uuid import uuid4

RULES = {  # how a question begins: the fact that it is about, and the calculation
    "How many people": (r"(\d+) inhabitants", "{a} + {b}"),
    "How many years": (r"founded in (\d+)", "{b} - {a}"),
    "How many metres": (r"elevation (\d+)", "{a} - {b}"),
}


def reply(messages):
    """What the agent says, the tool that it calls, and the arguments."""
    system, request = messages[0]["content"], messages[1]["content"]
    results = [message["content"] for message in messages if message["role"] == "tool"]
    if "You are the researcher" in system:
        return "I look the towns up.", "lookup", {"towns": request}
    if "You are the analyst" in system:
        return "I work it out.", "calculator", {"expression": request}
    if len(results) == 2:
        return "That is the result.", "final_answer", {"answer": int(results[1])}
    if len(results) == 1:
        fact, calculation = next(rule for start, rule in RULES.items() if request.startswith(start))
        a, b = re.findall(fact, results[0])
        if "founded" in request and int(a) % 3 == 0:
            a, b = b, a  # the mistake
        return "Both facts are known. The analyst calculates.", "ask_analyst", {"input": calculation.format(a=a, b=b)}
    towns = ", ".join(re.findall(r"[A-Z]\w+", request)[1:])
    return f"The researcher looks up {towns}.", "ask_researcher", {"input": towns}


class Model(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        text, name, arguments = reply(json.loads(body)["messages"])
        call = {
            "id": f"call_{uuid4().hex}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        }
        message = {"role": "assistant", "content": text, "tool_calls": [call]}
        read, written = len(body) // 4, len(json.dumps(message)) // 4  # about as many as a tokenizer would count
        answer = {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 0,
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
            "usage": {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written},
        }
        self.answer(answer)

    def do_GET(self):
        self.answer({"object": "list", "data": [{"id": "scripted", "object": "model"}]})

    def answer(self, content):
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Model).serve_forever()
