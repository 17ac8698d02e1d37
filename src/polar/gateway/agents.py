"""Tells identical requests of several agents from the retries of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import orjson

from polar.gateway.call import RunningCall
from polar.gateway.policy import SessionPolicy
from polar.types import Chat, Message

__all__ = ["Agents", "Asked"]


@dataclass(frozen=True, slots=True)
class Asked:
    """What a request asks for, and who asks, however it wants it delivered."""

    chat: Chat
    agent: str | None
    """What its header says."""
    place: int = 0
    """Which of the agents with the same errand, where nothing else tells them apart."""
    choice: int = 0
    """Which of the replies that one request wants."""

    def __hash__(self) -> int:
        """Hash what nearly always tells requests apart, however long the conversation is."""
        said = self.chat.messages
        return hash((len(said), said[-1:], self.chat.sampling, self.agent, self.place, self.choice))


class Agents:
    """Knows how many agents of a session may ask for the same, for the model itself started them.

    Some harnesses send no header that tells their agents apart. But an agent's errand is an
    argument of a tool call that was sampled here: so many times as it was given, so many identical
    openings are not retries.

    Args:
        policy: Names the header or the tool.
    """

    def __init__(self, policy: SessionPolicy) -> None:
        self._policy = policy
        self._errands: Counter[str] = Counter()
        self._answered: Counter[Asked] = Counter()
        self._places = 0

    def asked(
        self, chat: Chat, headers: Mapping[str, str], running: Mapping[Asked, RunningCall]
    ) -> Asked:
        """Say what is asked and by whom; equal values are one call.

        Args:
            chat: The request.
            headers: Its headers, names in lower case.
            running: The calls that may be joined.
        """
        header = self._policy.agent_header
        agent = None if header is None else headers.get(header)
        asked = Asked(replace(chat, stream=False, include_usage=False), agent)
        started = self._started(chat)
        if started < 2 or self._policy.kind_of(chat, headers) != "subagent":
            return asked
        return self._placed(asked, started, running)

    def sampled(self, asked: Asked, reply: Message) -> None:
        """Take note of a finished reply: of the errands in it, and of an opening it answers."""
        if self._policy.agent_tool is None:
            return
        if self._started(asked.chat):
            self._answered[replace(asked, place=0)] += 1
        tool, argument = self._policy.agent_tool
        for call in reply.tool_calls:
            if call.name == tool and (errand := _argument(call.arguments, argument)):
                self._errands[errand] += 1

    def _started(self, chat: Chat) -> int:
        """Count the agents that were sent on the errand with which a request opens."""
        if not self._errands or any(message.role == "assistant" for message in chat.messages):
            return 0
        told = [message.content for message in chat.messages if message.role == "user"]
        found = (each for each in self._errands if any(each in text for text in told))
        return self._errands[max(found, key=len, default="")]

    def _placed(self, asked: Asked, started: int, running: Mapping[Asked, RunningCall]) -> Asked:
        """Give an agent a call of its own while there are fewer than agents were started.

        A retry takes over what its agent has left, and otherwise joins what runs.
        """
        same = [each for each in running if replace(each, place=0) == asked]
        left = next((each for each in same if running[each].feed.deserted), None)
        if left is None and self._answered[asked] + len(same) < started:
            self._places += 1
            return replace(asked, place=self._places)
        return left or next(iter(same), asked)


def _argument(arguments: str, name: str) -> str:
    """Read one text of a tool call's arguments; empty where there is none."""
    try:
        read = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return ""
    value = read.get(name) if isinstance(read, dict) else None
    return value.strip() if isinstance(value, str) else ""
