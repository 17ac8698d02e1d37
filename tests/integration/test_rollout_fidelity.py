"""The law of token fidelity, over sessions that do all that harnesses do, and after tampering."""

import asyncio
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow.parquet as parquet
import pytest
from rollout_support import RENDERER, plan, task, world

from polar import trajectory
from polar.cli import app
from polar.cli.run_folder import RunFolder
from polar.cli.verify import verify_run
from polar.engines import read_tape
from polar.store import read_journal
from polar.types import Message

CONFIG = "model: smollm2-135m\nrollout: {}\n"
TASKS = (
    task("ask one; ask two; ask three; write out 42", name="turns"),
    task("ask one; retry; ask two", name="retry"),
    task("ask one; ask two; edit another; ask three", name="edit"),
    task("leave unheard; ask one", name="leave"),
    task("exit 1", name="silent"),
)


@pytest.fixture(scope="module")
def rolled_out(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("fidelity") / "run"
    run.mkdir()
    asyncio.run(_roll_out(run))
    return run


async def _roll_out(run: Path) -> None:
    async with world(run, chunk_tokens=2) as at:
        groups = await at.rollout().collect_all(plan(*TASKS, samples=2))
    (run / "config.yaml").write_text(CONFIG)
    (run / "trajectories").mkdir()
    table = trajectory.to_table(
        [each for group in groups for each in group.trajectories], phase="train", step=0
    )
    parquet.write_table(table, run / "trajectories" / "step-00000.parquet")


@pytest.fixture
def run(rolled_out, tmp_path) -> Path:
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "trajectories").mkdir()
    for name in ("config.yaml", "journal.sqlite", "engine.tape", "trajectories/step-00000.parquet"):
        (copy / name).write_bytes((rolled_out / name).read_bytes())
    return copy


def calls_of(run: Path) -> dict[str, list]:
    """All calls, by task."""
    found = {}
    with read_journal(run / "journal.sqlite") as journal:
        for record in journal.sessions():
            for attempt in range(record.session.attempt + 1):
                calls = journal.calls(record.session.id, attempt)
                found.setdefault(record.session.task_id, []).append(calls)
    return found


def tamper(run: Path, statement: str, *values: object) -> None:
    connection = sqlite3.connect(run / "journal.sqlite")
    with connection:
        connection.execute("PRAGMA foreign_keys = OFF")
        assert connection.execute(statement, values).rowcount == 1
    connection.close()


def a_call(run: Path, column: str, where: str = "parent_id IS NOT NULL") -> tuple[int, bytes]:
    """Choose a call of the journal: its row and what it holds in a column."""
    connection = sqlite3.connect(run / "journal.sqlite")
    row = connection.execute(
        f"SELECT ordinal, {column} FROM calls WHERE {where} ORDER BY ordinal DESC LIMIT 1"
    ).fetchone()
    connection.close()
    return row


def exit_code(run: Path) -> int:
    with pytest.raises(SystemExit) as ended:
        app.main(["verify", str(run)])
    return int(ended.value.code or 0)


def test_every_session_obeys_the_law_and_the_engines_own_recording(run):
    found = calls_of(run)
    everything = [call for sessions in found.values() for calls in sessions for call in calls]
    for calls in (calls for sessions in found.values() for calls in sessions):
        trajectory.check(calls, trajectory.build(calls))
    tape = [
        trajectory.TapeRecord(each.prompt_sha256, each.prompt_tokens, each.token_ids, each.logprobs)
        for each in read_tape(run / "engine.tape")
    ]
    assert trajectory.check_tape(everything, tape) == 0
    assert verify_run(RunFolder(run)).violations == []


def test_the_run_holds_what_it_is_meant_to_test(run):
    found = calls_of(run)
    turns, retry, edit, leave = (found[name][0] for name in ("turns", "retry", "edit", "leave"))
    assert [call.parent_id for call in turns] == [None, turns[0].id, turns[1].id]
    assert np.array_equal(retry[0].prompt_ids, retry[1].prompt_ids)
    assert len(trajectory.build(retry).traces) == 2
    assert edit[-1].fork_reason is not None
    assert leave[0].finish_reason == "abandoned"
    assert len(leave[0].sampled_ids) > 0
    assert [len(calls) for calls in found["silent"]] == [0, 0, 0, 0]


def test_a_sound_run_is_verified(run):
    assert exit_code(run) == 0


def test_a_dropped_call_is_found(run):
    ordinal, _ = a_call(run, "id", "id NOT IN (SELECT base_id FROM calls WHERE base_id NOT NULL)")
    tamper(run, "DELETE FROM calls WHERE ordinal = ?", ordinal)
    assert exit_code(run) == 8


def test_a_doubled_call_is_found(run):
    ordinal, _ = a_call(run, "id")
    connection = sqlite3.connect(run / "journal.sqlite")
    names = [row[1] for row in connection.execute("PRAGMA table_info(calls)")][1:]
    connection.close()
    others = ", ".join("id || 'x'" if name == "id" else name for name in names)
    tamper(
        run,
        f"INSERT INTO calls ({', '.join(names)}) SELECT {others} FROM calls WHERE ordinal = ?",
        ordinal,
    )
    assert exit_code(run) == 8


def test_a_reply_that_was_tokenized_again_is_found(run):
    ordinal, sampled = a_call(run, "sampled", "finish_reason = 'stop'")
    text = RENDERER.decode(np.frombuffer(sampled, "<i4")[:-1].tolist())
    again = [
        token for letter in text for token in RENDERER.reply_ids(Message("assistant", letter))[:-1]
    ]
    assert RENDERER.decode(again) == text
    assert len(again) > len(sampled) // 4
    arrays = np.array(again, "<i4"), np.zeros(len(again), "<f4"), np.zeros(len(again), "<i4")
    tamper(
        run,
        "UPDATE calls SET sampled = ?, logprobs = ?, versions = ? WHERE ordinal = ?",
        *(array.tobytes() for array in arrays),
        ordinal,
    )
    assert exit_code(run) == 8


@pytest.mark.parametrize(
    ("column", "kind"), [("prompt_tail", "<i4"), ("sampled", "<i4"), ("logprobs", "<f4")]
)
def test_a_single_changed_value_is_found(run, column, kind):
    ordinal, blob = a_call(run, column)
    values = np.frombuffer(blob, kind).copy()
    values[0] = values[0] - 0.5 if kind == "<f4" else values[0] + 1
    tamper(run, f"UPDATE calls SET {column} = ? WHERE ordinal = ?", values.tobytes(), ordinal)
    assert exit_code(run) == 8
