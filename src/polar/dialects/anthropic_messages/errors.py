"""Writes errors in Anthropic's form."""

from __future__ import annotations

from typing import Any

from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    PolarError,
    RequestTooLarge,
    RequestTooSlow,
    Unauthorized,
    UnknownRoute,
)

__all__ = ["write_error"]

_KINDS: tuple[tuple[type[PolarError], tuple[int, str]], ...] = (
    (ContextOverflow, (400, "invalid_request_error")),
    (RequestTooLarge, (413, "request_too_large")),
    (RequestTooSlow, (408, "timeout_error")),
    (BadRequest, (400, "invalid_request_error")),
    (Unauthorized, (401, "authentication_error")),
    (UnknownRoute, (404, "not_found_error")),
    (EngineError, (503, "overloaded_error")),
    (PolarError, (500, "api_error")),
)
"""Error -> HTTP status and type; the first that fits."""


def write_error(error: PolarError) -> tuple[int, dict[str, Any]]:
    """Write an error as HTTP status and body; a stream sends the body as an event."""
    status, kind = next(form for class_, form in _KINDS if isinstance(error, class_))
    return status, {"type": "error", "error": {"type": kind, "message": _message(error)}}


def _message(error: PolarError) -> str:
    if isinstance(error, ContextOverflow):
        # Clients know this sentence and read the numbers out of it, to shorten by as much.
        return f"prompt is too long: {error.prompt_tokens} tokens > {error.max_context} maximum"
    return str(error)
