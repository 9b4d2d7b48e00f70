"""JSON bodies of requests and answers. What does not fit in a request is refused by the name of its field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.responses import Response

from coa.serve.api_error import ApiError


class Body(BaseModel):
    """Base of everything that a client sends: types are exact, and a field that nobody knows is refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(value), status, media_type="application/json")


B = TypeVar("B", bound=BaseModel)


def read_body(model: type[B], raw: bytes) -> B:
    """The body as a `model`; ApiError 400 that names the first field that is wrong."""
    try:
        data = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise ApiError(400, f"The body is not valid JSON: {error}.", code="invalid_json") from None
    if not isinstance(data, dict):
        raise ApiError(400, "The body must be a JSON object.", code="invalid_json")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise refusal(error, data) from None


def refusal(error: ValidationError, data: object) -> ApiError:
    """The problem that lies deepest in the data. Where a field may have several forms, pydantic reports one problem for
    each; the deepest belongs to the form that the client meant."""
    problems = [(_path(problem["loc"], data), problem) for problem in error.errors(include_url=False)]
    path, problem = max(problems, key=lambda one: len(one[0]))
    param = param_of(path)
    match problem["type"]:
        case "missing":
            return ApiError(400, f"`{param}` is required.", code="missing_required_parameter", param=param)
        case "extra_forbidden":
            message = f"`{param}` is not a parameter that this server knows."
            return ApiError(400, message, code="unknown_parameter", param=param)
        case "union_tag_not_found" | "union_tag_invalid" if isinstance(problem["input"], dict):
            return _wrong_kind(param, problem.get("ctx", {}))
        case "union_tag_not_found":
            return ApiError(400, f"`{param}` must be an object.", code="invalid_value", param=param)
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    where = f"`{param}`: " if param else ""
    return ApiError(400, f"{where}{message}.", code="invalid_value", param=param or None)


def _wrong_kind(param: str, about: Mapping[str, Any]) -> ApiError:
    """For an object of which one field, mostly `type`, decides which others it has."""
    field = str(about.get("discriminator", "")).strip("'")
    param = f"{param}.{field if field.isidentifier() else 'type'}"
    tag, known = about.get("tag"), str(about.get("expected_tags", "")).replace("'", "`")
    if tag is None:
        return ApiError(400, f"`{param}` must be a string.", code="missing_required_parameter", param=param)
    return ApiError(400, f"`{param}`: {tag!r} is not supported; it can be {known}.", code="invalid_value", param=param)


def param_of(path: Sequence[str | int]) -> str:
    """`messages[0].content`."""
    param = ""
    for part in path:
        param += f"[{part}]" if isinstance(part, int) else f".{part}" if param else part
    return param


def _path(loc: Sequence[str | int], data: Any) -> list[str | int]:
    """The location without the names of the union members that pydantic tried."""
    path: list[str | int] = []
    for at, part in enumerate(loc):
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if inside:
            data = data[part]
        elif not (isinstance(data, dict) and at == len(loc) - 1 and isinstance(part, str) and _is_name(part)):
            continue
        path.append(part)
    return path


def _is_name(part: str) -> bool:
    """Whether it may be the name of a field; pydantic also writes `list[...]` and `function-before[...]`."""
    return part.isidentifier() and part not in ("str", "int", "float", "bool", "none")
