"""`visual_inspector`: a multimodal model looks at an image and answers a question about it.

Images come by address, under the same guard as pages, or from the task's files; never from elsewhere on disk.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Mapping
from typing import Final

from pydantic import JsonValue

from coa.addresses import public
from coa.errors import ToolError
from coa.http import Spent, Unserved
from coa.tools.base import Observation, Part, ToolContext
from coa.tools.documents.sniff import image_type
from coa.tools.endpoint import ChatEndpoint
from coa.tools.task_files import NoSuchFile, TaskFiles
from coa.tools.web.fetch import Fetcher, FetchFailed, FetchRules
from coa.tools.web.guard import Refused
from coa.tools.web.settings import allow_list, parse_setting
from coa.trajectory import Form, Shape
from coa.trajectory.shapes import ArgumentField

_MAX_BYTES: Final = 8 << 20


class VisualInspector:
    about = "looks at an image and answers a question about it."
    shape = Shape(
        form=Form.JSON,
        fields={
            "file_path": ArgumentField(about="the task's own file or an address"),
            "question": ArgumentField(about="what to look for"),
        },
    )

    uses = (Part.FILES,)

    def __init__(
        self, endpoint: ChatEndpoint, *, fetcher: Fetcher | None = None, files: TaskFiles | None = None
    ) -> None:
        self._endpoint, self._fetcher = endpoint, fetcher or Fetcher()
        self._files = files or TaskFiles(max_bytes=_MAX_BYTES)
        self.settings: JsonValue = [public(endpoint.url), endpoint.model]

    @property
    def timeout_s(self) -> float:
        return self._fetcher.rules.total_s + self._endpoint.longest_s + 10.0

    async def fingerprint(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> str:
        place = str(arguments.get("file_path", "")).strip()
        return "" if "://" in place else await asyncio.to_thread(self._files.fingerprint, context, place)

    async def call(self, arguments: Mapping[str, JsonValue], context: ToolContext) -> Observation:
        place, question = str(arguments.get("file_path", "")).strip(), str(arguments.get("question", "")).strip()
        spent = Spent()
        try:
            if "://" in place:
                body = (await self._fetcher.get(place, max_bytes=_MAX_BYTES)).body
            else:
                _, body = await asyncio.to_thread(self._files.read, context, place)
            media = image_type(body)
            if media is None:
                raise NoSuchFile(f"{place[:200]} is not a PNG, JPEG, GIF or WebP image")
            if len(body) > _MAX_BYTES:
                raise NoSuchFile(f"the image has {len(body):,} bytes; images up to {_MAX_BYTES:,} are looked at")
            data = f"data:{media};base64,{base64.b64encode(body).decode()}"
            image: JsonValue = {"type": "image_url", "image_url": {"url": data}}
            text: JsonValue = {"type": "text", "text": question or "What does the image show?"}
            answer = await self._endpoint.ask([{"role": "user", "content": [text, image]}], spent)
        except (NoSuchFile, Refused, FetchFailed, Unserved) as error:
            return Observation(f"error: {error}", ok=False, meta={"error": type(error).__name__})
        return Observation(f"image: {place}\n{answer}", meta={"image_bytes": len(body), "type": media, **spent.meta()})

    async def close(self) -> None:
        await self._fetcher.close()
        await self._endpoint.close()


def open_visual_inspector(setting: str | None, environment: Mapping[str, str]) -> VisualInspector:
    """Keys of the setting: url, model, allow. The key of the endpoint comes from the environment."""
    given = parse_setting("visual_inspector", setting, frozenset({"url", "model", "allow"}))
    named = {key: values[-1] for key, values in given.items()}
    url = named.get("url") or environment.get("COA_VISION_URL", "")
    if not url:
        raise ToolError("visual_inspector has no model to look with", hint="set COA_VISION_URL (and _MODEL, _KEY)")
    model = named.get("model") or environment.get("COA_VISION_MODEL", "")
    return VisualInspector(
        ChatEndpoint(url, model, environment.get("COA_VISION_KEY", "")),
        fetcher=Fetcher(FetchRules(allowed=allow_list(given.get("allow", []), environment))),
        files=TaskFiles.from_environment(environment),
    )
