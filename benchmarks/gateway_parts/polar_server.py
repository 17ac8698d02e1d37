"""Polar's gateway in a process of its own, before a vLLM server; sessions by lines of JSON.

    python polar_server.py MODEL ENGINE_URL FOLDER --workers N

Each line `{"open": N}` opens N sessions and is answered with their keys and addresses;
`{"close": [KEY, ...]}` closes them and is answered with nothing. The first line printed is the
address.
"""

import asyncio
import json
import sys
from functools import partial
from pathlib import Path

from polar.cli.gateway_worker import Welcome, spawn_worker
from polar.cli.loop import keep_loaded, run_async
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import Gateway, GatewaySettings, ModelBoundary, SessionPolicy
from polar.gateway.workers import Workers
from polar.rendering import load_renderer
from polar.store import JournalSettings, SqliteJournal
from polar.types import Session, SessionId, TaskId


def say(value: object) -> None:
    print(json.dumps(value), flush=True)


async def read_lines():
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        yield json.loads(line)


async def open_sessions(gateway: ModelBoundary, journal: SqliteJournal, first: int, count: int):
    for number in range(first, first + count):
        session = Session(SessionId(f"s{number}"), TaskId("t"), "g", 0, f"key{number}")
        await journal.open_session(session, phase="rollout", step=0)
        yield session.key, await gateway.open(session, SessionPolicy())


def gateway_of(
    model: str, engine: VllmEngine, folder: Path, workers: int, journal: SqliteJournal
) -> Gateway | Workers:
    """Make a gateway of one process or of several."""
    if not workers:
        return Gateway(engine, load_renderer(model), journal)

    def welcome(number, weights):
        return Welcome(
            make_engine=partial(VllmEngine, engine.settings),
            make_renderer=partial(load_renderer, model),
            settings=GatewaySettings(),
            journal=folder / "journal.db",
            cache_mb=JournalSettings().cache_mb,
            tape=None,
            weights=weights,
        )

    chosen = GatewaySettings(workers=workers)
    return Workers(engine, journal, chosen, spawn=spawn_worker, welcome=welcome)


async def main(model: str, engine_url: str, folder: Path, workers: int) -> None:
    opened = 0
    engine = VllmEngine(VllmSettings(urls=(engine_url,)))
    async with SqliteJournal.open(folder / "journal.db") as journal:
        gateway = gateway_of(model, engine, folder, workers, journal)
        async with gateway.serve():
            keep_loaded()
            say({"url": gateway.place()})
            async for line in read_lines():
                count = line.get("open", 0)
                say([each async for each in open_sessions(gateway, journal, opened, count)])
                opened += count
                for key in line.get("close", ()):
                    await gateway.close(SessionId(key.replace("key", "s")))
    await engine.aclose()


if __name__ == "__main__":
    run_async(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[5])))
