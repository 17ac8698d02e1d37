"""Conversations held over plain HTTP connections, and how long their turns took."""

import asyncio
import re
import time
import uuid
from dataclasses import dataclass
from urllib.parse import urlsplit

import httptools
import numpy as np
import orjson

from gateway_parts.engine import MODEL
from gateway_parts.servers import Entrance, Server

_CONTENT = re.compile(rb'"content": ?"[^"]')


SALT = "{salt}"
"""Stands in a text where each conversation, and each place of it, has something of its own."""


@dataclass(frozen=True)
class Turns:
    """A conversation to hold."""

    system: str
    """May have salt in it, as the opening has: see `SALT`."""
    opening: str
    reply: str
    """What the model says in each turn."""
    result: str
    """What the harness appends after each reply."""
    count: int
    max_tokens: int
    stream: bool = False
    history: int = 0
    """Turns that are part of the first request already."""

    def first_messages(self) -> list[dict]:
        """Begin a conversation: no two begin alike, so none serves another."""
        salt = uuid.uuid4().hex[:8]
        messages = [
            {"role": "system", "content": _salted(self.system, salt)},
            {"role": "user", "content": _salted(self.opening, salt)},
        ]
        return messages + self.history * self.appended()

    def appended(self) -> list[dict]:
        """Go on: what the model said, and what the harness appends to it."""
        return [
            {"role": "assistant", "content": self.reply},
            {"role": "user", "content": self.result},
        ]


@dataclass(frozen=True)
class Answer:
    body: bytes
    taken_s: float
    first_content_s: float
    """Until the first piece of the reply's text was there."""
    ended_at: float


class Connection:
    """One HTTP/1.1 connection with as little of its own as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port, limit=2**20))

    async def post(self, entrance: Entrance, body: bytes) -> Answer:
        """Post and take the time until the whole answer is there."""
        extra = "".join(f"{name}: {value}\r\n" for name, value in entrance.headers)
        head = (
            f"POST {entrance.path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            f"{extra}Content-Length: {len(body)}\r\n\r\n"
        )
        answer = _Answer()
        parser = httptools.HttpResponseParser(answer)
        started = time.perf_counter()
        self._writer.write(head.encode() + body)
        first_s = None
        while not answer.complete:
            data = await self._reader.read(2**18)
            if not data:
                raise RuntimeError(f"the answer broke off: {answer.body[-2000:]!r}")
            parser.feed_data(data)
            if first_s is None and _CONTENT.search(data):
                first_s = time.perf_counter() - started
        ended_at = time.perf_counter()
        taken_s = ended_at - started
        if parser.get_status_code() != 200:
            raise RuntimeError(f"{parser.get_status_code()}: {answer.body[:2000]!r}")
        return Answer(answer.body, taken_s, taken_s if first_s is None else first_s, ended_at)

    def close(self) -> None:
        self._writer.close()


class _Answer:
    def __init__(self) -> None:
        self.body, self.complete = b"", False

    def on_body(self, part: bytes) -> None:
        self.body += part

    def on_message_complete(self) -> None:
        self.complete = True


def _salted(text: str, salt: str) -> str:
    """Write the salt with a number, so that no stretch of a text repeats another of it either."""
    first, *rest = text.split(SALT)
    return first + "".join(f"{salt}{number:04x}{part}" for number, part in enumerate(rest))


async def converse(
    url: str, entrance: Entrance, turns: Turns, *, until: float = float("inf")
) -> list[Answer]:
    """Hold one conversation over one connection, at most until a time."""
    messages = turns.first_messages()
    request = {"model": MODEL, "max_tokens": turns.max_tokens, "messages": messages}
    if turns.stream:
        request["stream"] = True
    connection = await Connection.open(entrance.url or url)
    answers = []
    try:
        while len(answers) < turns.count and time.perf_counter() < until:
            answers.append(await connection.post(entrance, orjson.dumps(request)))
            if not turns.stream:
                _check(answers[-1], turns)
            messages += turns.appended()
    finally:
        connection.close()
    return answers


def _check(answer: Answer, turns: Turns) -> None:
    """An answer that is not the model's reply must not count as a fast one."""
    said = orjson.loads(answer.body)["choices"][0]["message"]["content"]
    if said != turns.reply:
        raise RuntimeError(f"the reply is not what the engine said: {said[:200]!r}")


@dataclass(frozen=True)
class Measured:
    """What one kind of load came to."""

    first_s: np.ndarray
    """The first turn of each conversation."""
    later_s: np.ndarray
    requests_s: float
    cpu_s: float
    """Of the server's process, a call: what it takes whoever else uses the cores."""


async def measure(server: Server, turns: Turns, *, clients: int, seconds: float) -> Measured:
    """Hold conversations, one after the other in each client, until the time is up."""
    await _rounds(server, turns, clients=min(clients, 2), seconds=None)  # connections, caches
    before_s = server.process.cpu_s()
    held, calls = await _rounds(server, turns, clients=clients, seconds=seconds)
    cpu_s = (server.process.cpu_s() - before_s) / calls
    first = np.array([answers[0].taken_s for answers in held])
    later = np.array([answer.taken_s for answers in held for answer in answers[1:]])
    return Measured(first, later, sum(map(len, held)) / seconds, cpu_s)


async def _rounds(
    server: Server, turns: Turns, *, clients: int, seconds: float | None
) -> tuple[list[list[Answer]], int]:
    """One conversation a client, or as many as fit; calls that end too late are left out.

    Returns:
        The conversations, and how many calls there were with those that ended too late.
    """
    until = float("inf") if seconds is None else time.perf_counter() + seconds
    held: list[list[Answer]] = []
    calls = 0

    async def client() -> None:
        nonlocal calls
        while not held or seconds is not None:
            entrances = await asyncio.to_thread(server.enter, 1)
            answers = await converse(server.url, entrances[0], turns, until=until)
            await asyncio.to_thread(server.leave, entrances)
            calls += len(answers)
            held.append([answer for answer in answers if answer.ended_at <= until])
            if time.perf_counter() >= until:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(clients):
            group.create_task(client())
    return [answers for answers in held if answers], calls
