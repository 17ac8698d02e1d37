"""Latency that the gateway adds to a call, against the same engine behind a bare server.

Both serve the same replies over loopback from the same process tree; the difference is parsing,
splice, incremental parsing of the reply and the journal. The engine keeps a fixed rate, so what
is done while it samples costs nothing unless the CPU is full. Conversations grow turn by turn from
`--prompt-tokens` on, as an agent's do; the first turn (rendered whole) is reported apart.

    python benchmarks/gateway.py --prompt-tokens 8000 --clients 1 16 --model PATH_OR_HUB_ID
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import orjson
import uvloop

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "integration"))
from gateway_support import ByteRenderer

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.gateway import Gateway, SessionPolicy
from polar.gateway.server import serve_app
from polar.rendering import Renderer, load_renderer
from polar.store import SqliteJournal
from polar.types import Message, Session, SessionId, TaskId

APART_S = 0.0171
"""Between the starts of two clients, so that they do not march in step."""


class PacedEngine:
    """Samples the same reply again and again, a token a chunk, at a fixed rate."""

    def __init__(self, reply_ids: list[int], *, token_s: float) -> None:
        self._reply_ids = reply_ids
        self._token_s = token_s

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        now = asyncio.get_running_loop().time
        started = now()
        for number, token_id in enumerate(self._reply_ids, start=1):
            if self._token_s:
                await asyncio.sleep(max(0.0, started + number * self._token_s - now()))
            last = number == len(self._reply_ids)
            yield Chunk((token_id,), (-0.5,), 0, "stop" if last else None)

    async def probe(self) -> Capabilities:
        return Capabilities("instant", 1_000_000, True, True, True)


class BareApp:
    """What a server without a gateway would do: read, sample, answer."""

    def __init__(self, engine: PacedEngine, answer: bytes) -> None:
        self._engine = engine
        self._answer = answer

    async def __call__(self, scope, receive, send) -> None:
        body = b""
        while (message := await receive()) and message.get("more_body"):
            body += message["body"]
        orjson.loads(body + message["body"])
        async for _ in self._engine.sample(None):
            pass
        length = (b"content-length", str(len(self._answer)).encode())
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": self._answer})


class Connection:
    """One HTTP/1.1 connection with as little of its own as possible."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Connection":
        address = urlsplit(url)
        return cls(*await asyncio.open_connection(address.hostname, address.port))

    async def post(self, path: str, body: bytes) -> tuple[bytes, float]:
        """Post and return the body of the answer and the seconds it took."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        started = time.perf_counter()
        self._writer.write(head.encode() + body)
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answer.partition("content-length: ")[2].partition("\r\n")[0])
        content = await self._reader.readexactly(length)
        elapsed_s = time.perf_counter() - started
        if " 200 " not in answer:
            raise RuntimeError(content.decode())
        return content, elapsed_s

    def close(self) -> None:
        self._writer.close()


async def converse(url: str, path: str, opening: str, *, turns: int, delay_s: float) -> list[float]:
    """Hold one conversation and return the seconds of each turn."""
    await asyncio.sleep(delay_s)
    messages = [{"role": "user", "content": opening}]
    connection = await Connection.open(url)
    taken = []
    for turn in range(turns):
        body = json.dumps({"model": "m", "messages": messages}).encode()
        content, elapsed_s = await connection.post(path, body)
        taken.append(elapsed_s)
        reply = orjson.loads(content)["choices"][0]["message"]["content"]
        messages.append({"role": "assistant", "content": reply})
        messages.append({"role": "user", "content": f"turn {turn}: " + "result " * 20})
    connection.close()
    return taken


@asynccontextmanager
async def gateway_urls(engine, renderer, clients: int) -> AsyncIterator[tuple[str, list[str]]]:
    """Serve the gateway with one open session a client."""
    with tempfile.TemporaryDirectory() as folder:
        async with SqliteJournal.open(Path(folder) / "journal.db") as journal:
            gateway = Gateway(engine, renderer, journal)
            async with gateway.serve() as address:
                paths = []
                for number in range(clients):
                    key = f"key{number}"
                    session = Session(SessionId(f"s{number}"), TaskId("t"), "g", 0, key)
                    await journal.open_session(session, phase="rollout", step=0)
                    gateway.open(session, SessionPolicy())
                    paths.append(f"/s/{key}/v1/chat/completions")
                yield address.url, paths


async def measure(url: str, paths: list[str], opening: str, turns: int) -> tuple[np.ndarray, float]:
    """Seconds, [client, turn], of all conversations at once; CPU seconds of a turn."""
    started = time.process_time()
    runs = [
        converse(url, path, opening, turns=turns, delay_s=number * APART_S)
        for number, path in enumerate(paths)
    ]
    seconds = np.array(await asyncio.gather(*runs))
    return seconds, (time.process_time() - started) / seconds.size


def opening_of(renderer: Renderer, prompt_tokens: int) -> str:
    """Write a text of about so many tokens."""
    words = "the quick brown fox jumps over a lazy dog and 42 more lines of code; " * 100
    return (words * (1 + prompt_tokens // token_count(renderer, words)))[
        : len(words) * prompt_tokens // token_count(renderer, words)
    ]


def token_count(renderer: Renderer, text: str) -> int:
    return len(renderer.render([Message("user", text)], ()))


def reply_ids_of(renderer: Renderer) -> list[int]:
    """Take the ids of a reply of some forty words, with the id that ends a turn."""
    text = "The answer is in the file that I read before, so let me look at it again now. " * 3
    start = renderer.render([Message("user", text)], ())
    none = renderer.render([Message("user", "")], ())
    head = next(i for i, (a, b) in enumerate(zip(start, none, strict=False)) if a != b)
    count = len(start) - len(none)
    return [*start[head : head + count], renderer.stop_token_ids[0]]


def report(name: str, seconds: np.ndarray, cpu_s: float) -> None:
    later = seconds[:, 1:].ravel() * 1e3
    first = float(np.median(seconds[:, 0])) * 1e3
    p50, p95 = np.percentile(later, [50, 95])
    print(
        f"{name:24} p50 {p50:7.2f} ms   p95 {p95:7.2f} ms   "
        f"first turn {first:7.2f} ms   CPU {cpu_s * 1e3:5.2f} ms"
    )


async def main(arguments: argparse.Namespace) -> None:
    renderer = load_renderer(arguments.model) if arguments.model else ByteRenderer()
    reply_ids = reply_ids_of(renderer)
    engine = PacedEngine(reply_ids, token_s=arguments.token_ms / 1000)
    opening = opening_of(renderer, arguments.prompt_tokens)
    print(
        f"{arguments.turns} turns from {token_count(renderer, opening)} prompt tokens on, "
        f"{len(reply_ids)} sampled tokens a turn, one each {arguments.token_ms} ms"
    )
    answer = orjson.dumps({"choices": [{"message": {"content": "The answer is there. " * 10}}]})
    for clients in arguments.clients:
        async with serve_app(BareApp(engine, answer), host="127.0.0.1", port=0) as bare:
            direct = await measure(bare.url, ["/"] * clients, opening, arguments.turns)
        async with gateway_urls(engine, renderer, clients) as (url, paths):
            through = await measure(url, paths, opening, arguments.turns)
        report(f"direct, {clients} clients", *direct)
        report(f"gateway, {clients} clients", *through)
        added = np.median(through[0][:, 1:]) - np.median(direct[0][:, 1:])
        print(f"{'added at the median':24}     {added * 1e3:7.2f} ms")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--prompt-tokens", type=int, default=8000)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--token-ms", type=float, default=5.0, help="0: the whole reply at once")
    parser.add_argument("--model", help="tokenizer to render with; absent: one token a byte")
    uvloop.run(main(parser.parse_args()))
