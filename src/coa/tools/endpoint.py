"""A model that helps a tool: to summarise a page, to look at an image. One request, no conversation.

Tools do not know `coa.models`, which is for the model that plays the agents; this has the little that tools need.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from coa.http import Client, Patience, Spent, Unserved


class ChatEndpoint:
    """An OpenAI-compatible server and its model. The key is sent to the server and shown nowhere."""

    def __init__(self, url: str, model: str = "", key: str = "") -> None:
        self.url = url.rstrip("/").removesuffix("/chat/completions").removesuffix("/v1")
        self.model = model
        self._client = Client(
            "the model endpoint",
            self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            secrets=[key],
            patience=Patience(attempts=2, timeout_s=60.0),
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], prefix: str) -> ChatEndpoint | None:
        """From `PREFIX_URL`, `PREFIX_MODEL` and `PREFIX_KEY`; None if there is no URL."""
        url = environment.get(f"{prefix}_URL", "")
        model, key = environment.get(f"{prefix}_MODEL", ""), environment.get(f"{prefix}_KEY", "")
        return cls(url, model, key) if url else None

    @property
    def longest_s(self) -> float:
        """The time for all attempts and the pauses between them."""
        patience = self._client.patience
        return patience.attempts * (patience.timeout_s + 2 * patience.backoff_s)

    async def ask(self, messages: list[JsonValue], spent: Spent, *, max_tokens: int = 1024) -> str:
        """The text of the answer. Raises `Unserved` if there is none."""
        body: dict[str, JsonValue] = {"messages": messages, "max_tokens": max_tokens, "temperature": 0}
        if self.model:
            body["model"] = self.model
        answer = await self._client.post("/v1/chat/completions", body, spent)
        try:
            text = answer["choices"][0]["message"]["content"]
        except (KeyError, IndexError, TypeError) as error:
            raise Unserved("the model endpoint answers in a form that cannot be read") from error
        if not isinstance(text, str) or not text.strip():
            raise Unserved("the model endpoint answers without text")
        return text.strip()

    async def close(self) -> None:
        await self._client.close()
