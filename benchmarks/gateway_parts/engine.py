"""A loopback engine in a process of its own: vLLM's wire form, replies out of memory.

It answers `/inference/v1/generate` (token ids in and out) and `/v1/chat/completions` (with
`prompt_token_ids`, `token_ids` and logprobs where they are asked for), streamed and whole. Nothing
is computed and no JSON is parsed, so that what is measured is who stands before it. `POST /pace`
sets how long a token takes; 0 gives the whole reply at once, in one event.

The first user message names the prompt's length ("[8000 tokens]"); the prompt ids that chat
completions return grow by a fixed number a turn, and each prompt begins with the one before and
its reply, as with a real model.

    python engine.py REPLIES.json
"""

import asyncio
import json
import re
import sys
from dataclasses import dataclass
from functools import cache

import httptools
import uvloop

MODEL = "loopback"
MAX_CONTEXT = 1_000_000
RESULT_TOKENS = 30
"""What a turn's tool result adds to the prompt, beside the reply."""
_LENGTH = re.compile(rb"\[(\d+) tokens\]")
_MAX_TOKENS = re.compile(rb'"max_tokens": ?(\d+)')
_STREAM = re.compile(rb'"stream": ?true')
_IDS = re.compile(rb'"return_token_ids": ?true')
_LOGPROBS = re.compile(rb'"logprobs": ?(true|\d)')
_TEMPERATURE = re.compile(rb'"temperature": ?0\.5\b')


@dataclass(frozen=True)
class Said:
    """A reply: its text and its tokens, each with its piece of the text."""

    text: str
    token_ids: tuple[int, ...]
    pieces: tuple[str, ...]


class Pace:
    """How long a token takes."""

    token_s = 0.0


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def ids_text(token_ids) -> bytes:
    return ",".join(map(str, token_ids)).encode()


@cache
def opening_ids(count: int) -> bytes:
    return ids_text(1000 + number % 40_000 for number in range(count))


@cache
def turn_ids(said: Said) -> bytes:
    return b"," + ids_text([*said.token_ids, *range(500, 500 + RESULT_TOKENS)])


def logprob_entries(said: Said) -> list[dict]:
    pairs = zip(said.token_ids, said.pieces, strict=True)
    return [
        {"token": piece, "token_id": token_id, "logprob": -0.5, "bytes": None, "top_logprobs": []}
        for token_id, piece in pairs
    ]


@cache
def chat_parts(said: Said, ids: bool, logprobs: bool) -> tuple[bytes, bytes]:
    """What comes before and after the prompt ids in a whole chat completion."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": said.text},
        "logprobs": {"content": logprob_entries(said)} if logprobs else None,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": list(said.token_ids) if ids else None,
    }
    sampled = len(said.token_ids)
    usage = {"prompt_tokens": 8000, "completion_tokens": sampled, "total_tokens": 8000 + sampled}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": MODEL}
    body = dumps({**head, "choices": [choice], "usage": usage, "prompt_token_ids": ["#"]})
    before, _, after = body.partition(b'"#"')
    return before, after


@cache
def chat_events(said: Said, ids: bool, logprobs: bool) -> tuple[bytes, ...]:
    """The chunks of a streamed chat completion, one a token; the first without its prompt ids."""
    entries = logprob_entries(said)
    events = []
    for number, piece in enumerate(said.pieces):
        last = number == len(said.pieces) - 1
        choice = {
            "index": 0,
            "delta": {"content": "" if last else piece},
            "logprobs": {"content": [entries[number]]} if logprobs else None,
            "finish_reason": "stop" if last else None,
            "token_ids": [said.token_ids[number]] if ids else None,
        }
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        events.append(b"data: " + dumps({**head, "model": MODEL, "choices": [choice]}) + b"\n\n")
    return (*events, b"data: [DONE]\n\n")


@cache
def token_events(said: Said, *, whole: bool) -> tuple[bytes, ...]:
    """The events of `/inference/v1/generate`: one a token, or one for all."""
    size = len(said.token_ids) if whole else 1
    entries = logprob_entries(said)
    events = []
    for start in range(0, len(said.token_ids), size):
        last = start + size >= len(said.token_ids)
        choice = {
            "index": 0,
            "logprobs": {"content": entries[start : start + size]},
            "finish_reason": "stop" if last else None,
            "token_ids": list(said.token_ids[start : start + size]),
        }
        if last:
            span = {"version": "0", "start": 0, "end": len(said.token_ids)}
            choice["weight_versions"] = [span]
        events.append(b"data: " + dumps({"request_id": "r", "choices": [choice]}) + b"\n\n")
    return (*events, b"data: [DONE]\n\n")


def probe_answer(body: bytes) -> bytes:
    """One token with alternatives, whose distances double at half the temperature."""
    scale = 2.0 if _TEMPERATURE.search(body) else 1.0
    top = [{"token": "a", "token_id": 5 + n, "logprob": -scale * (1 + n)} for n in range(3)]
    entry = {"token": "a", "token_id": 5, "logprob": -scale, "top_logprobs": top}
    choice = {"index": 0, "logprobs": {"content": [entry]}, "token_ids": [5]}
    choice |= {"finish_reason": "length", "weight_versions": [{"version": "0"}]}
    return dumps({"request_id": "r", "choices": [choice]})


class Exchange(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, replies: list[Said]) -> None:
        self._replies = replies
        self._parser = httptools.HttpRequestParser(self)
        self._tasks: set[asyncio.Task] = set()

    def connection_made(self, transport) -> None:
        self._transport = transport

    def connection_lost(self, error) -> None:
        for task in self._tasks:
            task.cancel()

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._path, self._body = b"", []

    def on_url(self, url: bytes) -> None:
        self._path += url

    def on_body(self, part: bytes) -> None:
        self._body.append(part)

    def on_message_complete(self) -> None:
        body = b"".join(self._body)
        if self._path == b"/inference/v1/generate" and _STREAM.search(body):
            self._spawn(self._generate(body), at_once=not Pace.token_s)
        elif self._path == b"/v1/chat/completions":
            self._spawn(self._chat(body), at_once=not Pace.token_s)
        else:
            self._send(self._other(body))

    def _spawn(self, work, *, at_once: bool) -> None:
        """Answer; without an event loop's step in between where nothing is waited for."""
        if at_once:
            try:
                work.send(None)
            except StopIteration:
                return
            raise RuntimeError("an instant reply must not wait")
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _generate(self, body: bytes) -> None:
        events = token_events(self._fitting(body), whole=not Pace.token_s)
        await self._stream(events)

    async def _chat(self, body: bytes) -> None:
        said = self._fitting(body)
        ids, logprobs = _IDS.search(body) is not None, _LOGPROBS.search(body) is not None
        prompt = self._prompt(said, body) if ids else b""
        if _STREAM.search(body):
            events = chat_events(said, ids, logprobs)
            if ids:
                first = b'{"prompt_token_ids":[' + prompt + b"],"
                events = (events[0].replace(b"{", first, 1), *events[1:])
            await self._stream(events)
            return
        if Pace.token_s:
            await asyncio.sleep(Pace.token_s * len(said.token_ids))
        before, after = chat_parts(said, ids, logprobs)
        self._send(before + prompt + after)

    def _prompt(self, said: Said, body: bytes) -> bytes:
        found = _LENGTH.search(body)
        turns = (body.count(b'"role"') - 1) // 2
        return opening_ids(int(found[1]) if found else 100) + turns * turn_ids(said)

    def _fitting(self, body: bytes) -> Said:
        """Choose the longest reply that the request has room for."""
        found = _MAX_TOKENS.search(body)
        most = int(found[1]) if found else MAX_CONTEXT
        fitting = [said for said in self._replies if len(said.token_ids) <= most]
        return max(fitting or self._replies[:1], key=lambda said: len(said.token_ids))

    def _other(self, body: bytes) -> bytes:
        if self._path == b"/inference/v1/generate":
            return probe_answer(body)
        if self._path.startswith(b"/pace?token_ms="):
            Pace.token_s = float(self._path.partition(b"=")[2]) / 1000
        elif self._path == b"/v1/models":
            entry = {"id": MODEL, "object": "model", "max_model_len": MAX_CONTEXT}
            return dumps({"object": "list", "data": [entry]})
        return dumps({"version": "0.32.0", "is_paused": False})

    def _send(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        self._transport.write(head % len(body) + body)

    async def _stream(self, events: tuple[bytes, ...]) -> None:
        head = (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
            b"transfer-encoding: chunked\r\n\r\n"
        )
        parts = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
        if not Pace.token_s:
            self._transport.write(head + b"".join(parts) + b"0\r\n\r\n")
            return
        self._transport.write(head)
        now = asyncio.get_running_loop().time
        started = now()
        for number, part in enumerate(parts[:-1], start=1):
            await asyncio.sleep(max(0.0, started + number * Pace.token_s - now()))
            self._transport.write(part)
        self._transport.write(parts[-1] + b"0\r\n\r\n")


async def main(replies: list[Said]) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Exchange(replies), "127.0.0.1", 0, backlog=1024)
    print(json.dumps({"url": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}), flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        texts = json.load(file)
    uvloop.run(main([Said(t, tuple(ids), tuple(pieces)) for t, ids, pieces in texts]))
