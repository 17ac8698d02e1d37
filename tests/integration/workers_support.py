"""A gateway of several processes before servers of `vllm_replica.py`."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
from gateway_support import ByteRenderer

from polar.cli.gateway_worker import Welcome, spawn_worker
from polar.cli.run_folder import RunFolder
from polar.engines import read_tape
from polar.engines.settings import VllmSettings
from polar.engines.vllm import VllmEngine
from polar.gateway import GatewaySettings, SessionPolicy
from polar.gateway.workers import Workers
from polar.store import SqliteJournal
from polar.trajectory import TapeRecord, check_tape
from polar.types import Call, Session, SessionId, TaskId

IMPORTED = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")))
"""Where a worker finds the renderer that it is sent."""

SERVERS = {
    "check_interval_s": 0.2,
    "check_timeout_s": 5.0,
    "connect_timeout_s": 5.0,
    "tries": 50,
}


@dataclass
class WorkersSetup:
    """Workers that serve, with all that they stand on."""

    folder: RunFolder
    gateway: Workers
    engine: VllmEngine
    journal: SqliteJournal
    pids: list[int]
    """Of all workers that were started, in that order."""
    at: list[str]
    """Where each of them serves."""
    sessions: list[Session] = field(default_factory=list)
    urls: dict[SessionId, str] = field(default_factory=dict)

    async def open(self, policy: SessionPolicy | None = None, at: str | None = None) -> Session:
        number = len(self.sessions) + 1
        key = f"key-{number}-secret"
        session = Session(SessionId(f"s{number}"), TaskId("t"), "g", 0, key)
        self.sessions.append(session)
        await self.journal.open_session(session, phase="train", step=0)
        chosen = policy or SessionPolicy()
        self.urls[session.id] = await self.gateway.open(session, chosen, at)
        return session

    def base(self, session: Session) -> str:
        return f"{self.urls[session.id]}/s/{session.key}/v1"

    def http(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(timeout=60, trust_env=False)

    async def ask(self, session: Session, *contents: str, http: httpx.AsyncClient) -> str:
        """Ask without a stream; user and assistant messages alternate."""
        roles = ("user", "assistant")
        messages = [{"role": roles[n % 2], "content": text} for n, text in enumerate(contents)]
        body = {"model": "m", "messages": messages}
        answer = await http.post(f"{self.base(session)}/chat/completions", json=body)
        answer.raise_for_status()
        return answer.json()["choices"][0]["message"]["content"]

    async def stream(self, session: Session, text: str, *, http) -> AsyncIterator[str]:
        body = {"model": "m", "stream": True, "messages": [{"role": "user", "content": text}]}
        url = f"{self.base(session)}/chat/completions"
        async with http.stream("POST", url, json=body) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: {"):
                    yield json.loads(line[6:])["choices"][0]["delta"].get("content") or ""

    async def calls(self) -> list[Call]:
        found = [await self.journal.calls(each.id, each.attempt) for each in self.sessions]
        return [call for calls in found for call in calls]

    def kill(self, number: int) -> None:
        """Kill the worker that was started as the so-manieth."""
        os.kill(self.pids[number], signal.SIGKILL)

    async def check_tapes(self, calls: Sequence[Call]) -> None:
        """See that the tapes and the calls tell of the same tokens."""
        await asyncio.to_thread(self._check_tapes, calls)

    def _check_tapes(self, calls: Sequence[Call]) -> None:
        entries = [entry for tape in self.folder.tapes() for entry in read_tape(tape)]
        records = [
            TapeRecord(each.prompt_sha256, each.prompt_tokens, each.token_ids, each.logprobs)
            for each in entries
        ]
        check_tape(calls, records)


@asynccontextmanager
async def workers_serving(
    path: Path,
    urls: Sequence[str],
    *,
    workers: int = 2,
    settings: dict | None = None,
    answer_s: float = 30.0,
) -> AsyncIterator[WorkersSetup]:
    """Serve by several processes; PYTHONPATH must hold `IMPORTED`."""
    folder = RunFolder(path)
    servers = VllmSettings(urls=tuple(urls), **SERVERS)
    engine = VllmEngine(servers)
    chosen = GatewaySettings(workers=workers, **(settings or {}))
    pids: list[int] = []
    at: list[str] = []

    async def spawn(number, link, listener):
        process = await spawn_worker(number, link, listener)
        pids.append(process.pid)
        at.append("http://{}:{}".format(*listener.getsockname()))
        return process

    def welcome(number, weights):
        return Welcome(
            make_engine=partial(VllmEngine, servers),
            make_renderer=ByteRenderer,
            settings=chosen,
            journal=folder.journal,
            cache_mb=1,
            tape=folder.worker_tape(number),
            weights=weights,
        )

    try:
        async with SqliteJournal.open(folder.journal) as journal:
            gateway = Workers(
                engine, journal, chosen, spawn=spawn, welcome=welcome, answer_s=answer_s
            )
            async with gateway.serve():
                yield WorkersSetup(folder, gateway, engine, journal, pids, at)
    finally:
        await engine.aclose()
