"""A rollout whose process is killed, and the process that goes on."""

import asyncio
import os
import signal
import sys
from pathlib import Path

from rollout_support import appeared, is_alive, plan, task, world

from polar.store import read_journal
from polar.types import Completed

PROGRAM = """
import asyncio, sys
from pathlib import Path
from test_rollout_resume import collect

asyncio.run(collect(Path(sys.argv[1])))
"""


def the_plan(folder: Path):
    fast = task("ask what; write out 42", name="fast")
    waits = task(f"ask what; signal {folder}/pid; await {folder}/go; write out 42", name="waits")
    return plan(fast, waits, weight_version=0)


async def collect(folder: Path):
    async with world(folder) as at:
        groups = await at.rollout().collect_all(the_plan(folder))
        return groups, await at.journal.sessions()


def finished(folder: Path) -> None:
    """Wait until the first session is over, as the journal tells it."""
    while True:
        with read_journal(folder / "journal.sqlite") as journal:
            if any(record.state == "completed" for record in journal.sessions()):
                return


async def test_after_a_kill_only_unfinished_sessions_run_again_under_a_new_attempt(tmp_path):
    (tmp_path / "tmp").mkdir()
    paths = {"PYTHONPATH": str(Path(__file__).parent), "TMPDIR": str(tmp_path / "tmp")}
    env = {**os.environ, **paths}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, str(tmp_path), env=env
    )
    await appeared(tmp_path / "pid")
    await asyncio.to_thread(finished, tmp_path)
    process.send_signal(signal.SIGKILL)
    await process.wait()
    orphan = int((tmp_path / "pid").read_text())
    (tmp_path / "go").touch()

    groups, records = await collect(tmp_path)

    assert not is_alive(orphan)
    assert not await asyncio.to_thread(lambda: list((tmp_path / "work").iterdir()))
    assert [(r.session.task_id, r.session.attempt, r.state) for r in records] == [
        ("fast", 0, "completed"),
        ("waits", 1, "completed"),
    ]
    for group in groups:
        assert isinstance(group.trajectories[0].outcome, Completed)
        assert group.trajectories[0].reward == 1.0
