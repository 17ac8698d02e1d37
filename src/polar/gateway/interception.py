"""Applies the interceptors to a request, and tells what they changed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Self

from polar.errors import BadRequest, InterceptorFailed
from polar.gateway import interceptors
from polar.gateway.settings import InterceptorSpec
from polar.gateway.user_code import load_function
from polar.types import Chat, Sent

__all__ = ["Intercepted", "Interception"]

_log = logging.getLogger("polar.gateway")


@dataclass(frozen=True, slots=True)
class Intercepted:
    """A request on both sides of the interceptors."""

    seen: Chat
    """What the model sees."""
    sent: Sent | None
    """What the harness sent; absent where no interceptor changed it."""


class Interception:
    """All interceptors, applied one after the other.

    Args:
        steps: Name of each, and what rewrites the request.
    """

    def __init__(self, steps: Iterable[tuple[str, Callable[[Chat], Chat]]] = ()) -> None:
        self._steps = tuple(steps)

    @classmethod
    def of(cls, specs: Sequence[InterceptorSpec]) -> Self:
        """Make the interceptors that the config declares.

        Raises:
            ConfigError: There is none of a name, or a user's function cannot be imported.
        """
        return cls(map(_step, specs))

    def apply(self, chat: Chat) -> Intercepted:
        """Rewrite a request.

        Raises:
            BadRequest: An interceptor refuses it.
            InterceptorFailed: An interceptor broke.
        """
        seen = chat
        changed_by = []
        for name, rewrite in self._steps:
            rewritten = _rewritten(name, rewrite, seen)
            if rewritten != seen:
                changed_by.append(name)
            seen = rewritten
        if not changed_by:
            return Intercepted(chat, None)
        chosen = None if seen.model == chat.model else seen.model
        return Intercepted(
            seen, Sent(chat.model, chat.messages, chat.tools, tuple(changed_by), chosen)
        )


def _step(spec: InterceptorSpec) -> tuple[str, Callable[[Chat], Chat]]:
    if spec.python is not None:
        return spec.python, partial(load_function(spec.python), **spec.settings)
    assert spec.name is not None
    settings = interceptors.settings_model(spec.name).model_validate(spec.settings)
    return spec.name, interceptors.load(spec.name)(settings)


def _rewritten(name: str, rewrite: Callable[[Chat], Chat], chat: Chat) -> Chat:
    """Apply one interceptor, which may be anyone's code."""
    try:
        rewritten = rewrite(chat)
    except BadRequest:
        raise
    except Exception as error:
        _log.exception("the interceptor %s", name)
        raise InterceptorFailed(f"the interceptor {name} failed: {error!r}") from error
    if not isinstance(rewritten, Chat):
        kind = type(rewritten).__name__
        raise InterceptorFailed(f"the interceptor {name} returned {kind}, which is no Chat")
    return rewritten
