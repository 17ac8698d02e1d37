"""A small run folder, written by the real parts: journal, trajectories, engine tape, config."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet

from polar.config import RunConfig, load_config, write_config
from polar.engines import SampleRequest, TapedEngine
from polar.engines.scripted import ScriptedEngine
from polar.rendering.tiny import tiny_tokenizer
from polar.store import SqliteJournal
from polar.trajectory import build, to_table
from polar.types import (
    Call,
    CallId,
    CallKind,
    Completed,
    Grade,
    Message,
    Sampling,
    Session,
    SessionId,
    TaskId,
    Trajectory,
)

FIRST = SessionId("train-0001-000-00")
SECOND = SessionId("train-0001-000-01")
SESSION = Session(FIRST, TaskId("list-it"), "g", 0, "a-key")
OUTCOME = Completed(Grade(0.5, passed=False, details={"note": "half \x1b[31m done"}), exit_code=0)


def write_run(root: Path) -> Path:
    """Write a run folder of two sessions of two calls each."""
    model = root / "model"
    model.mkdir(parents=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save_pretrained(model)
    for name in ("config.json", "model.safetensors"):
        (model / name).write_text("{}")
    run = root / "runs" / "one"
    (run / "trajectories").mkdir(parents=True)
    write_config(run / "config.yaml", load_config(None, [f"model={model}"], RunConfig))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    asyncio.run(_record(run, ids))
    return run


async def _record(run: Path, ids) -> None:
    replies = [ids(text) for text in ("ls -la \x1b[2J", "cat a", "echo é", "aside")]
    engine = TapedEngine(ScriptedEngine(replies), run / "engine.tape")
    trajectories = []
    async with SqliteJournal.open(run / "journal.sqlite") as journal:
        for session_id, kinds in ((FIRST, ("main", "main")), (SECOND, ("main", "auxiliary"))):
            session = Session(session_id, TaskId("list-it"), "g", 0, f"key-{session_id}")
            await journal.open_session(session, phase="train", step=1)
            calls = await _calls(session, kinds, ids, engine)
            for call in calls:
                await journal.add_call(call)
            await journal.set_state(session, "completed", OUTCOME)
            built = build(calls)
            trajectories.append(
                Trajectory(
                    session_id, session.task_id, "g", built.traces, 0.5, OUTCOME, built.report
                )
            )
    await engine.aclose()
    table = await asyncio.to_thread(to_table, trajectories, phase="train", step=1)
    await asyncio.to_thread(parquet.write_table, table, run / "trajectories" / "step-00001.parquet")


async def _calls(
    session: Session, kinds: Sequence[CallKind], ids, engine: TapedEngine
) -> list[Call]:
    """Ask twice: the second prompt extends the first call where its kind is `main`."""
    calls: list[Call] = []
    for index, kind in enumerate(kinds):
        parent = calls[-1] if calls and kind == "main" else None
        before = [] if parent is None else [*parent.prompt_ids, *parent.sampled_ids]
        prompt = [*before, *ids(f"<|im_start|>user number {index} of {session.id}")]
        chunks = [chunk async for chunk in engine.sample(SampleRequest(prompt, Sampling()))]
        calls.append(
            make_call(
                prompt=prompt,
                sampled=[token for chunk in chunks for token in chunk.token_ids],
                logprobs=[logprob for chunk in chunks for logprob in chunk.logprobs],
                session=session,
                index=index,
                parent=parent,
                kind=kind,
                fork_reason=None if parent is not None or not calls else "new_conversation",
                measured_tokens=index if session.id == FIRST else 0,
                discarded_tokens=3 * index if session.id == FIRST else 0,
            )
        )
    return calls


def make_call(
    *, prompt, sampled, logprobs=None, session=SESSION, index=0, parent=None, **changes
) -> Call:
    """Make a call of ids and logprobs alone."""
    call = Call(
        id=CallId(f"{session.id}-{index}"),
        session_id=session.id,
        attempt=session.attempt,
        index=index,
        parent_id=None if parent is None else parent.id,
        prompt_ids=np.array(list(prompt), np.int32),
        sampled_ids=np.array(list(sampled), np.int32),
        logprobs=np.array(logprobs or [-1.0] * len(sampled), np.float32),
        weight_versions=np.zeros(len(sampled), np.int32),
        messages=(Message("user", "list it"),),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", "ls"),
        finish_reason="stop",
    )
    return replace(call, **changes)
