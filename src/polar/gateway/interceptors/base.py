"""What an interceptor is: a pure function from what was sent to what the model sees."""

from __future__ import annotations

from typing import Any, Protocol

from polar.types import Chat

__all__ = ["Interceptor"]


class Interceptor(Protocol):
    """Rewrites requests.

    It is called with the whole conversation at every request, so it must be quick, must change
    nothing outside of it, and must give equal results for equal requests. Where it leaves the
    beginning of a conversation as it was at the request before, the conversation stays one chain
    of tokens; where it does not, the tree forks.
    """

    def __init__(self, settings: Any) -> None:
        """Take the settings: a strict pydantic model, named in the annotation."""
        ...

    def __call__(self, chat: Chat) -> Chat:
        """Return what the model is to see; of it, model, messages, tools and sampling count.

        Raises:
            BadRequest: The request is refused.
        """
        ...
