"""Sessions of real harnesses in which a script of ours is the model."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness_support import CACHE, install

from polar.cli.harness_check import PlayedSession, play
from polar.config.families import settings_model
from polar.engines.base import Chunk, SampleRequest
from polar.engines.scripted import ScriptedEngine
from polar.harnesses import load
from polar.harnesses.base import Harness
from polar.rendering.tiny import tiny_renderer
from polar.runtimes import default_runtime
from polar.trajectory import build
from polar.types import Call, CallKind, Message, ToolCall

ROOMY = 2_000_000
"""Tokens of context that no session of these tests fills."""
TASK = "Create a file hello.txt that contains the word hello."
"""What the main agent's task says, and nobody else's."""


@dataclass(frozen=True)
class Turn:
    """What the script is asked: a prompt, and where in its conversation it stands."""

    prompt: str
    replies: int
    """Assistant turns before this one."""

    def offers(self, tool: str) -> bool:
        """Tell whether the model is offered a tool."""
        return f'"name": "{tool}"' in self.prompt


Script = Callable[[Turn], Message]


def made(name: str, **settings: Any) -> Harness:
    return load(name)(settings_model("harness", name)(cache=CACHE, **settings))


def say(text: str) -> Message:
    return Message("assistant", text)


def use(tool: str, /, **arguments: Any) -> Message:
    return Message("assistant", "", tool_calls=(ToolCall("scripted", tool, json.dumps(arguments)),))


def run(harness: Harness, command: str) -> Message:
    return harness.expert_turns((command,))[0]


class StallingEngine(ScriptedEngine):
    """Samples by a script, but where it is told to, only the first tokens of a reply."""

    def __init__(self, script: Any, stalls: Callable[[Sequence[int]], bool]) -> None:
        super().__init__(script, max_context=ROOMY)
        self._stalls = stalls

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        stalls = self._stalls(request.prompt_ids)
        async with aclosing(super().sample(request)) as chunks:
            async for chunk in chunks:
                yield chunk
                if stalls:
                    await asyncio.Event().wait()


async def played(
    harness: Harness,
    folder: Path,
    script: Script,
    *,
    stalls: Callable[[Turn], bool] = lambda turn: False,
) -> PlayedSession:
    """Install the harness if need be and play one session of it in the sandbox."""
    renderer = await asyncio.to_thread(tiny_renderer)

    def turn(prompt_ids: Sequence[int]) -> Turn:
        prompt = renderer.decode(prompt_ids)
        return Turn(prompt, prompt.count("<|im_start|>assistant\n") - 1)

    await asyncio.to_thread(install, harness)
    engine = StallingEngine(
        lambda prompt_ids: renderer.reply_ids(script(turn(prompt_ids))),
        lambda prompt_ids: stalls(turn(prompt_ids)),
    )
    runtime = default_runtime().runtime
    try:
        return await play(harness, runtime, folder, model=(engine, renderer))
    finally:
        await runtime.aclose()


@dataclass
class Account:
    """The calls of a session by kind, with what became of their tokens."""

    calls: tuple[Call, ...]
    by_kind: dict[CallKind, list[Call]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for call in self.calls:
            self.by_kind.setdefault(call.kind, []).append(call)
        self.dropped = dict(build(self.calls).report.dropped)
        self.traces = build(self.calls).traces

    def kinds(self) -> list[CallKind]:
        return [call.kind for call in self.calls]

    def sampled(self, kind: CallKind) -> int:
        return sum(len(call.sampled_ids) for call in self.by_kind.get(kind, ()))


def is_chain(calls: Sequence[Call]) -> bool:
    """Tell whether calls begin afresh once and then extend one another."""
    return calls[0].parent_id is None and all(
        call.parent_id == before.id and call.fork_reason is None for before, call in pairwise(calls)
    )
