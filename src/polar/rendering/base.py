"""What a renderer is: messages to token ids, ids to messages, and the bridge between turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from polar.types import CallId, Delta, IntArray, Message, TokenIds, ToolSpec

__all__ = ["IncrementalParser", "OpensCalls", "Prepared", "Renderer"]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """A prompt ready for the engine, and where it hangs in the session's token tree."""

    prompt_ids: IntArray
    """int32 [prompt]"""
    parent_id: CallId | None
    """The call that this prompt extends exactly (its prompt + sampled ids are a prefix)."""
    fork_reason: str | None
    """Why no earlier call could be extended although the session has some: `edited_message`,
    `new_conversation`, `changed_tools`, `retry`, `unclosed_turn`, `no_bridge`; of prompts
    that the engine makes, `server_rendering`. The gateway adds `compaction`, which only the kinds
    of calls tell, and `sibling`, for further replies to one request."""
    opening_tokens: int = 0
    """How many of the last ids begin the reply for the model; they are no part of what a request
    with the same messages begins with."""

    @property
    def opening_ids(self) -> IntArray:
        """Ids that begin the reply."""
        return self.prompt_ids[len(self.prompt_ids) - self.opening_tokens :]


class IncrementalParser(Protocol):
    """Turns sampled ids into deltas as they arrive, whatever the chunking."""

    def feed(self, token_ids: Sequence[int]) -> list[Delta]:
        """Take more sampled ids and return what is certain by now (never half a character)."""
        ...

    def finish(self) -> tuple[list[Delta], Message]:
        """Return what was held back, and the whole message; the deltas add up to the message."""
        ...


class Renderer(Protocol):
    """Rendering for one model family. Pure but for the tokenizer it holds."""

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        """Ids that end an assistant turn."""
        ...

    @property
    def fingerprint(self) -> str:
        """Hash of vocabulary and chat template, to compare with the engine's tokenizer."""
        ...

    def render(self, messages: Sequence[Message], tools: Sequence[ToolSpec]) -> list[int]:
        """Render a whole conversation, ending in the generation prompt.

        Raises:
            BadRequest: The model's template cannot express the conversation.
        """
        ...

    def reply_ids(self, reply: Message) -> list[int]:
        """Ids that a model would sample to give this reply, its end-of-turn token included.

        For scripted experts only: a reply that was sampled is never rendered again.

        Raises:
            BadRequest: The model's template cannot express the reply.
        """
        ...

    def bridge(
        self,
        previous_ids: TokenIds,
        new_messages: Sequence[Message],
        tools: Sequence[ToolSpec],
        *,
        prompt_tokens: int = 0,
    ) -> list[int] | None:
        """Tokens to append to `previous_ids` (prompt + sampled ids of a call) for the next turn.

        Args:
            previous_ids: What the engine's context held when the turn before ended.
            new_messages: What the harness appended after that turn.
            tools: The tools of the conversation.
            prompt_tokens: How many of `previous_ids` were the prompt; the rest was sampled.

        Returns:
            The delta, which starts with the end-of-turn token where the turn was cut before it;
            None where the template is not prefix-stable, so that the caller forks.
        """
        ...

    def parser(
        self,
        tools: Sequence[ToolSpec],
        *,
        new_tool_call_id: Callable[[], str],
        calls_flow: bool = False,
    ) -> IncrementalParser:
        """Start parsing one reply.

        Args:
            tools: The tools of the conversation.
            new_tool_call_id: Makes the id of each tool call.
            calls_flow: Whether a call may begin before all of it is sampled, where the form of
                the model's calls allows it. If it then proves to be no valid call, it stays as
                one whose arguments are no JSON object. Otherwise what is no valid call is text.
        """
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of the ids, special tokens included, for people to read."""
        ...


@runtime_checkable
class OpensCalls(Protocol):
    """A renderer that can begin a reply such that it is the call of a tool."""

    def call_opening(self, name: str | None) -> list[int] | None:
        """Ids to append to a prompt, after which the model can only go on with a call.

        A turn without reasoning is written as the model's template writes one.

        Args:
            name: The tool to call, whose arguments the model is to go on with; absent: it is to go
                on with a tool's name.

        Returns:
            The ids; None where the model's form of a call is not known.
        """
        ...
