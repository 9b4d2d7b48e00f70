"""Open Responses: `POST /v1/responses` and what belongs to it."""

from coa.serve.responses.endpoint import routes

__all__ = ["routes"]
