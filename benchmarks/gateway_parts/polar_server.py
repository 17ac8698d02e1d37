"""Polar's gateway in a process of its own, before a vLLM server; sessions by lines of JSON.

    python polar_server.py MODEL ENGINE_URL FOLDER

Each line `{"open": N}` opens N sessions and is answered with their keys; `{"close": [KEY, ...]}`
closes them and is answered with nothing. The first line printed is the address.
"""

import asyncio
import json
import sys
from pathlib import Path

from polar.cli.loop import keep_loaded, run_async
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, SessionPolicy
from polar.rendering import load_renderer
from polar.store import SqliteJournal
from polar.types import Session, SessionId, TaskId


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def read_lines():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def open_sessions(gateway: Gateway, journal: SqliteJournal, first: int, count: int):
    for number in range(first, first + count):
        session = Session(SessionId(f"s{number}"), TaskId("t"), "g", 0, f"key{number}")
        await journal.open_session(session, phase="rollout", step=0)
        await gateway.open(session, SessionPolicy())
        yield session.key


async def main(model: str, engine_url: str, folder: Path) -> None:
    renderer = load_renderer(model)
    engine = VllmEngine(VllmSettings(urls=(engine_url,)))
    opened = 0
    async with SqliteJournal.open(folder / "journal.db") as journal:
        gateway = Gateway(engine, renderer, journal)
        async with gateway.serve() as address:
            keep_loaded()
            say({"url": address.url})
            async for line in read_lines():
                count = line.get("open", 0)
                say([key async for key in open_sessions(gateway, journal, opened, count)])
                opened += count
                for key in line.get("close", ()):
                    await gateway.close(SessionId(key.replace("key", "s")))
    await engine.aclose()


if __name__ == "__main__":
    run_async(main(sys.argv[1], sys.argv[2], Path(sys.argv[3])))
