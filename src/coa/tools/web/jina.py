"""The Jina reader as a fetcher: a service opens the page in a real browser and returns Markdown.

The address is checked before it is sent, so that nobody can use the service to ask about our private network. What the
service itself may reach is not our concern.
"""

from __future__ import annotations

from typing import Final

from coa.http import Client, Patience, Spent, Unserved
from coa.tools.documents.record import Document

HOSTED: Final = "https://r.jina.ai"


class JinaReader(Client):
    def __init__(self, key: str, *, url: str = HOSTED) -> None:
        headers = {"Authorization": f"Bearer {key}", "Accept": "application/json", "X-Retain-Images": "none"}
        patience = Patience(attempts=2, timeout_s=22.0)
        super().__init__("the Jina reader", url, headers=headers, secrets=[key], patience=patience)

    async def read(self, url: str, spent: Spent) -> Document:
        answer = await self.post("/", {"url": url}, spent)
        data = answer.get("data") if isinstance(answer, dict) else None
        if not isinstance(data, dict) or not isinstance(data.get("content"), str):
            raise Unserved("the Jina reader answers in a form that cannot be read")
        title, date = str(data.get("title") or ""), str(data.get("publishedTime") or "")
        return Document(text=data["content"].strip(), title=title, date=date, note="read by the Jina reader")
