"""The measurements: latency and rate, streams, long sessions, memory, storage."""

import asyncio
import statistics
from dataclasses import asdict, replace

import numpy as np

from gateway_parts.load import Answer, Turns, converse, measure
from gateway_parts.material import Material, streamed
from gateway_parts.report import Cell, Record
from gateway_parts.servers import Engine, Server

_EDGE_TURNS = 50


async def measure_latency(
    record: Record,
    servers: list[Server],
    material: Material,
    cells: list[Cell],
    *,
    seconds: float,
    turns: int,
) -> None:
    """Take every server's turn in every cell, one after the other, so that noise meets all."""
    for cell in cells:
        held = material.turns(cell.prompt_tokens, count=turns, openings=cell.openings)
        for server in servers:
            found = await measure(server, held, clients=cell.clients, seconds=seconds)
            p50, p99 = np.percentile(found.later_s, [50, 99]) * 1e3
            record.add(
                "latency",
                target=server.name,
                captures=server.captures,
                **asdict(cell),
                p50_ms=p50,
                p99_ms=p99,
                first_ms=float(np.median(found.first_s)) * 1e3,
                requests_s=found.requests_s,
                cpu_ms=found.cpu_s * 1e3,
                calls=len(found.later_s) + len(found.first_s),
            )


async def measure_streams(
    record: Record, engine: Engine, servers: list[Server], turns: Turns, *, token_ms: float
) -> None:
    """Time the first piece of text of a reply that is sampled at a fixed pace."""
    await asyncio.to_thread(engine.set_pace, token_ms)
    for server in servers:
        entrances = await asyncio.to_thread(server.enter, 1)
        answers = (await converse(server.url, entrances[0], streamed(turns)))[1:]
        await asyncio.to_thread(server.leave, entrances)
        record.add(
            "stream",
            target=server.name,
            token_ms=token_ms,
            first_text_ms=_median_ms(answers, lambda answer: answer.first_content_s),
            whole_ms=_median_ms(answers, lambda answer: answer.taken_s),
            calls=len(answers),
        )
    await asyncio.to_thread(engine.set_pace, 0.0)


async def measure_long_session(record: Record, servers: list[Server], turns: Turns) -> None:
    """Compare the last turns of a session with its first, and with a fresh session's.

    A prompt of 400 turns is longer, and has more messages, whoever sends it. The fresh session
    begins with all that the long one ended with; what differs is only what the server remembers.
    """
    for server in servers:
        long = [answer.taken_s for answer in await _alone(server, turns)]
        late = replace(turns, history=turns.count - _EDGE_TURNS, count=_EDGE_TURNS)
        fresh = [answer.taken_s for answer in await _alone(server, late)]
        first, last = np.median(long[1 : _EDGE_TURNS + 1]), np.median(long[-_EDGE_TURNS:])
        record.add(
            "session",
            target=server.name,
            turns=turns.count,
            first_50_ms=first * 1e3,
            last_50_ms=last * 1e3,
            last_to_first=last / first,
            fresh_50_ms=float(np.median(fresh[1:])) * 1e3,
            last_to_fresh=last / float(np.median(fresh[1:])),
        )


async def measure_memory(
    record: Record, server: Server, turns: Turns, *, calls: int, clients: int
) -> None:
    """Fit the memory of a server's process over many calls; sessions end after their turns."""
    samples, done = [(0, server.process.rss_mb())], 0
    while done < calls:
        entrances = await asyncio.to_thread(server.enter, clients)
        async with asyncio.TaskGroup() as group:
            for entrance in entrances:
                group.create_task(converse(server.url, entrance, turns))
        await asyncio.to_thread(server.leave, entrances)
        done += clients * turns.count
        samples.append((done, server.process.rss_mb()))
    half = np.array(samples[len(samples) // 2 :])
    slope = float(np.polyfit(half[:, 0], half[:, 1], 1)[0]) if len(half) > 1 else None
    record.add(
        "memory",
        target=server.name,
        calls=done,
        start_mb=samples[0][1],
        middle_mb=float(half[0, 1]),
        end_mb=samples[-1][1],
        slope_mb_per_1000_calls=None if slope is None else slope * 1e3,
    )


async def measure_storage(record: Record, server: Server, turns: Turns) -> None:
    """Divide what one session adds on disk by its turns, but for the opening."""
    sizes = []
    for count in (1, 1 + turns.count):
        before = await _settled_bytes(server)
        if before is None:
            return
        await _alone(server, replace(turns, count=count))
        sizes.append((await _settled_bytes(server) or 0) - before)
    record.add(
        "storage",
        target=server.name,
        turns=turns.count,
        opening_bytes=sizes[0],
        bytes_per_turn=(sizes[1] - sizes[0]) / turns.count,
    )


async def _alone(server: Server, turns: Turns) -> list[Answer]:
    """Hold one conversation while nothing else is asked."""
    entrances = await asyncio.to_thread(server.enter, 1)
    answers = await converse(server.url, entrances[0], turns)
    await asyncio.to_thread(server.leave, entrances)
    return answers


async def _settled_bytes(server: Server) -> int | None:
    """Read the size on disk when it no longer grows."""
    size = server.stored_bytes()
    for _ in range(50):
        await asyncio.sleep(0.2)
        again = server.stored_bytes()
        if again == size:
            return size
        size = again
    return size


def _median_ms(answers: list[Answer], of) -> float:
    return statistics.median(map(of, answers)) * 1e3
