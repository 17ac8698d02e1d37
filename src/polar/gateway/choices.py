"""Several replies to one request: followed together, up to the first that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from polar.dialects import ChoicesEncoder, Dialect, GivesChoices, StreamEncoder
from polar.errors import PolarError
from polar.gateway.call import RunningCall
from polar.gateway.feed import Ending, Reader
from polar.types import Chat, Reply

__all__ = ["all_replies", "readers_of", "stream_writer", "write_replies"]


@contextmanager
def readers_of(calls: Sequence[RunningCall]) -> Iterator[list[Reader]]:
    """Follow all calls from their start; leaving the context is leaving them all."""
    with ExitStack() as exits:
        yield [exits.enter_context(call.feed.reader()) for call in calls]


async def all_replies(endings: Sequence[Coroutine[Any, Any, Ending]]) -> list[Reply] | PolarError:
    """Wait for all replies, or for the first ending that is none: nothing is waited for then."""
    if len(endings) == 1:
        ending = await endings[0]
        return ending if isinstance(ending, PolarError) else [ending]
    failed: list[BaseException] = []
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_reply(ending)) for ending in endings]
    except* PolarError as group_error:
        failed += group_error.exceptions
    error = next(iter(failed), None)
    return error if isinstance(error, PolarError) else [task.result() for task in tasks]


async def _reply(ending: Coroutine[Any, Any, Ending]) -> Reply:
    ended = await ending
    if isinstance(ended, PolarError):
        raise ended
    return ended


def write_replies(
    dialect: Dialect, chat: Chat, replies: Sequence[Reply], *, response_id: str, created: int
) -> bytes:
    """Write a whole response."""
    if chat.choices == 1:
        return dialect.response(chat, replies[0], response_id=response_id, created=created)
    return _choosing(dialect).choices(chat, replies, response_id=response_id, created=created)


@dataclass(frozen=True, slots=True)
class _OneReply:
    """A stream of one reply, written like one of several."""

    each: tuple[StreamEncoder]

    def end(self, replies: Sequence[Reply]) -> bytes:
        return self.each[0].end(replies[0])


def stream_writer(
    dialect: Dialect, chat: Chat, *, response_id: str, created: int, prompt_tokens: int
) -> ChoicesEncoder:
    """Start to encode a streamed response."""
    if chat.choices > 1:
        choosing = _choosing(dialect)
        return choosing.choices_encoder(chat, response_id=response_id, created=created)
    encoder = dialect.encoder(
        chat, response_id=response_id, created=created, prompt_tokens=prompt_tokens
    )
    return _OneReply((encoder,))


def _choosing(dialect: Dialect) -> GivesChoices:
    if not isinstance(dialect, GivesChoices):
        raise TypeError(f"the dialect {dialect.name} reads wishes for choices it cannot write")
    return dialect
