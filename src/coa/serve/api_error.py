"""Errors that a client gets, in the shape that OpenAI's clients and Open Responses know."""

from __future__ import annotations

from typing import Any


class ApiError(Exception):
    """A request that is refused. `param` names the field that is wrong."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after_s = (
            status, message, code, param, retry_after_s,
        )  # fmt: skip

    @property
    def kind(self) -> str:
        """The `type` of the error object."""
        if self.status == 401:
            return "authentication_error"
        if self.status == 403:
            return "permission_error"
        if self.status == 404:
            return "not_found"
        if self.status == 429:
            return "too_many_requests"
        return "invalid_request_error" if self.status < 500 else "server_error"

    def body(self) -> dict[str, Any]:
        return {"error": {"type": self.kind, "code": self.code, "message": self.message, "param": self.param}}


def unsupported(param: str, why: str) -> ApiError:
    """For a field of the standard that this server does not honour."""
    return ApiError(400, f"`{param}` is not supported: {why}", code="unsupported_parameter", param=param)
