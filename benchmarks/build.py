"""Time the building of trees and traces, from calls in memory and from the journal.

    python benchmarks/build.py                        200 and 2,000 turns, 32 sub-agents
    python benchmarks/build.py --baselines            also the tree with an object a token

One session that only appends: a system prompt, then turns of sampled and appended tokens, 835 new
tokens a turn, so that 200 turns are 167,000. The session with sub-agents has 200 turns in the main
line and 32 sub-agents of 12 turns each, whose calls come in turn. `tree` is the token tree alone,
`build` the tree, the traces and the account. From the journal, `read` turns the stored deltas into
calls, and what follows works on what was read.

Prints one JSON object a measurement. Times are the best of `--repeat`; on a machine that others use
too, compare the CPU's. Memory is what one more pass allocates (tracemalloc), its input not counted:
what its result keeps, and the most at one time.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import gc
import json
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from polar.store import SqliteJournal, read_journal
from polar.trajectory import TokenTree, build
from polar.types import Call, CallId, Message, Sampling, Session, SessionId, TaskId

SAMPLED, APPENDED, SYSTEM = 200, 635, 835
SESSION = Session(SessionId("s"), TaskId("t"), "g", 0, "key")


class Line:
    """A conversation that only appends, and its calls; prompts are views of one array."""

    def __init__(self, name: str, turns: int, rng: np.random.Generator) -> None:
        size = SYSTEM + turns * SAMPLED + (turns - 1) * APPENDED
        self._ids = rng.integers(0, 49_152, size, dtype=np.int32)
        self._name, self._turn = name, 0

    def call(self, index: int, kind: str) -> Call:
        """Make the next turn's call."""
        prompt = SYSTEM + self._turn * (SAMPLED + APPENDED)
        parent = CallId(f"{self._name}{self._turn - 1}") if self._turn else None
        messages = tuple(
            Message(role, f"{self._name} {turn}")
            for turn in range(self._turn + 1)
            for role in ("assistant", "user")
        )
        call = Call(
            id=CallId(f"{self._name}{self._turn}"),
            session_id=SESSION.id,
            attempt=0,
            index=index,
            parent_id=parent,
            prompt_ids=self._ids[:prompt],
            sampled_ids=self._ids[prompt : prompt + SAMPLED],
            logprobs=np.full(SAMPLED, -1.0, np.float32),
            weight_versions=np.zeros(SAMPLED, np.int32),
            messages=messages[1:],
            tools=(),
            sampling=Sampling(),
            reply=Message("assistant", f"{self._name} {self._turn + 1}"),
            finish_reason="stop",
            kind=kind,
        )
        self._turn += 1
        return call


def append_only(turns: int) -> list[Call]:
    """Make a session that only appends."""
    line = Line("c", turns, np.random.default_rng(0))
    return [line.call(index, "main") for index in range(turns)]


def with_subagents(turns: int = 200, agents: int = 32, agent_turns: int = 12) -> list[Call]:
    """Make a session whose sub-agents run side by side after the first turn."""
    rng = np.random.default_rng(1)
    main = Line("c", turns, rng)
    lines = [Line(f"a{agent}-", agent_turns, rng) for agent in range(agents)]
    calls = [main.call(0, "main")]
    for _ in range(agent_turns):
        calls += [line.call(len(calls) + k, "subagent") for k, line in enumerate(lines)]
    return calls + [main.call(len(calls) + k, "main") for k in range(turns - 1)]


class Node:
    """A token as an object, for comparison."""

    __slots__ = ("call", "children", "logprob")

    def __init__(self) -> None:
        self.children: dict[int, Node] = {}
        self.logprob: float | None = None
        self.call: CallId | None = None


def object_tree(calls: Iterable[Call]) -> Node:
    """Put calls in a tree of objects, as builders do that have one a token."""
    root = Node()
    for call in calls:
        at = root
        for token in call.prompt_ids.tolist():
            at = at.children.setdefault(token, Node())
        sampled = zip(call.sampled_ids.tolist(), call.logprobs.tolist(), strict=True)
        for token, logprob in sampled:
            at = at.children.setdefault(token, Node())
            at.logprob, at.call = logprob, call.id
    return root


def journal_of(calls: list[Call], path: Path) -> Path:
    """Store a session the way the gateway does."""

    async def store() -> None:
        async with SqliteJournal.open(path) as journal:
            await journal.open_session(SESSION, phase="rollout", step=0)
            for call in calls:
                await journal.add_call(call)

    asyncio.run(store())
    return path


def read(path: Path) -> list[Call]:
    with read_journal(path) as journal:
        return list(journal.calls(SESSION.id))


def own_copies(calls: list[Call]) -> list[Call]:
    """Give each call a prompt of its own, as calls have that came one by one."""
    return [dataclasses.replace(call, prompt_ids=call.prompt_ids.copy()) for call in calls]


def tokens_of(calls: list[Call]) -> int:
    return TokenTree(calls).size


def measure(work: Callable[[], object], repeat: int) -> dict[str, float]:
    """Time some work, and then see how much memory it takes."""
    walls, cpus = [], []
    for _ in range(repeat):
        gc.collect()
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    gc.collect()
    tracemalloc.start()
    result = work()
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del result
    return {
        "ms": round(min(walls) * 1e3, 1),
        "cpu_ms": round(min(cpus) * 1e3, 1),
        "kept_mb": round(kept / 1e6, 2),
        "peak_mb": round(peak / 1e6, 2),
    }


def report(session: str, calls: list[Call], options: argparse.Namespace) -> None:
    prompts = sum(len(call.prompt_ids) for call in calls)
    facts = {"session": session, "calls": len(calls), "tokens": tokens_of(calls)}
    work: dict[str, Callable[[], object]] = {
        "tree": lambda: TokenTree(calls),
        "build": lambda: build(calls),
    }
    with tempfile.TemporaryDirectory() as folder:
        path = journal_of(calls, Path(folder) / "journal.sqlite")
        facts["journal_mb"] = round(path.stat().st_size / 1e6, 2)
        facts["per_request_tokens"] = prompts + SAMPLED * len(calls)
        work |= {
            "journal: read": lambda: read(path),
            "journal: read, build": lambda: build(read(path)),
        }
        if 4 * prompts < 1_000_000_000:
            copies = own_copies(calls)
            work["build, prompts apart"] = lambda: build(copies)
            work["build, per_request"] = lambda: build(copies, builder="per_request")
            if options.baselines:
                work["tree with an object a token"] = lambda: object_tree(calls)
        print(json.dumps(facts), flush=True)
        for name, job in work.items():
            print(json.dumps({"what": name, **measure(job, options.repeat)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--turns", type=int, nargs="+", default=[200, 2_000])
    parser.add_argument("--baselines", action="store_true")
    options = parser.parse_args()
    for turns in options.turns:
        report(f"{turns} turns", append_only(turns), options)
    report("200 turns, 32 sub-agents", with_subagents(), options)


if __name__ == "__main__":
    main()
