"""A model that helps a tool: to summarise a page, to look at an image. One request, no conversation.

Tools do not know `coa.models`, which is for the model that plays the agents; this has the little that tools need.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from coa.http import Client, Patience, Spent, Unserved


class ChatEndpoint(Client):
    """An OpenAI-compatible server and its model. The key is sent to the server and shown nowhere."""

    def __init__(self, url: str, model: str = "", key: str = "") -> None:
        url = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        headers, patience = {"Authorization": f"Bearer {key}"} if key else {}, Patience(attempts=2, timeout_s=60.0)
        super().__init__("the model endpoint", url, headers=headers, secrets=[key], patience=patience)
        self.model = model

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], prefix: str) -> ChatEndpoint | None:
        """From `PREFIX_URL`, `PREFIX_MODEL` and `PREFIX_KEY`; None if there is no URL."""
        url = environment.get(f"{prefix}_URL", "")
        model, key = environment.get(f"{prefix}_MODEL", ""), environment.get(f"{prefix}_KEY", "")
        return cls(url, model, key) if url else None

    @property
    def longest_s(self) -> float:
        """The time for all attempts and the pauses between them."""
        return self.patience.attempts * (self.patience.timeout_s + 2 * self.patience.backoff_s)

    async def ask(self, messages: list[JsonValue], spent: Spent, *, max_tokens: int = 1024) -> str:
        """The text of the answer. Raises `Unserved` if there is none."""
        body: dict[str, JsonValue] = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
        if self.model:
            body["model"] = self.model
        answer = await self.post("/v1/chat/completions", body, spent)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise Unserved("the model endpoint answers in a form that cannot be read") from error
        if not isinstance(text, str) or not text.strip():
            raise Unserved("the model endpoint answers without text")
        return text.strip()
