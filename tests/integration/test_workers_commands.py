"""Commands with a gateway of several processes: what is refused, verified and gone on with."""

import asyncio
import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from replica_process import ReplicaProcess
from rollout_support import AGENT, appeared, task
from tiny_models import write_tiny_model

from polar.cli import app
from polar.errors import JournalError
from polar.store import read_journal
from polar.tasks import write_tasks

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def server():
    """A server in vLLM's wire form, which a command in this process or in another can use."""
    replica = ReplicaProcess(0.0)
    with asyncio.Runner() as runner:
        runner.run(replica.start())
        yield replica.url
        runner.run(replica.kill())


@pytest.fixture
def config(tmp_path, model, server) -> Path:
    (tmp_path / "agent.py").write_text(AGENT)
    python = f"{shlex.quote(sys.executable)} -I -S {tmp_path}/agent.py"
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model": str(model),
                "engine": {"name": "vllm", "settings": {"urls": [server]}},
                "gateway": {"workers": 2},
                "harness": {
                    "name": "shell",
                    "settings": {"command": f"exec {python} {{base_url}} {{key}} {{instruction}}"},
                },
                "runtime": {"name": "local", "settings": {"preload": False}},
                "tasks": {
                    "train": str(tmp_path / "tasks.jsonl"),
                    "heldout": str(tmp_path / "tasks.jsonl"),
                },
                "rollout": {"max_tokens": 8},
            }
        )
    )
    return path


@pytest.fixture
def polar(capsys, monkeypatch, tmp_path):
    """Run a command in a folder of its own: exit code, what it said, what it complained of."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app.main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


@pytest.mark.parametrize("command", ["train", "rollout"])
def test_workers_before_an_engine_in_the_runs_own_process_are_refused(
    polar, config, tmp_path, command
):
    chosen = json.loads(config.read_text())
    config.write_text(json.dumps(chosen | {"engine": {"name": "embedded"}}))
    write_tasks(tmp_path / "tasks.jsonl", [task("ask what")])
    named = [config] if command == "train" else [tmp_path / "tasks.jsonl", "--config", config]
    code, _, complained = polar(command, *named, "--run", tmp_path / "run")
    assert code == 2
    told = " ".join(complained.split())
    assert "gateway.workers" in told
    assert "in the run's own process, so other processes cannot use it" in told
    assert "Set gateway.workers to 0" in told


def test_a_killed_rollout_goes_on_with_its_workers_and_all_tapes_verify(polar, config, tmp_path):
    run = tmp_path / "run"
    waits = f"ask what; signal {tmp_path}/pid; await {tmp_path}/go; write out 42"
    write_tasks(
        tmp_path / "tasks.jsonl",
        [task(f"ask {n}; ask more; write out 42", name=f"t{n}") for n in "abcd"]
        + [task(waits, name="waits")],
    )
    rollout = ("rollout", tmp_path / "tasks.jsonl", "--config", config, "--run", run)
    command = [sys.executable, "-m", "polar", *map(str, rollout)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        asyncio.run(appeared(tmp_path / "pid"))
        while states(run).count("completed") < 4:
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    (tmp_path / "go").touch()

    code, said, complained = polar(*rollout)
    assert code == 0, said + complained
    assert states(run) == ["completed"] * 5
    with read_journal(run / "journal.sqlite") as journal:
        attempts = {r.session.task_id: r.session.attempt for r in journal.sessions()}
    assert attempts == {"ta": 0, "tb": 0, "tc": 0, "td": 0, "waits": 1}
    code, said, complained = polar("verify", run)
    assert code == 0, said + complained
    assert "requests on the engine's tape, each a call" in said
    assert {path.name for path in run.glob("engine.tape*")} == {"engine.tape.1", "engine.tape.2"}

    (run / "engine.tape.2").unlink()
    code, _, complained = polar("verify", run)
    assert code == 8
    assert "engine.tape.1" in complained


def test_sessions_of_a_worker_that_is_killed_run_again_and_the_run_verifies(
    polar, config, tmp_path
):
    run = tmp_path / "run"
    stays = f"ask what; signal {tmp_path}/pid; await {tmp_path}/go; ask more; write out 42"
    write_tasks(tmp_path / "tasks.jsonl", [task(stays, name="stays")])
    killing = threading.Thread(target=kill_workers, args=(tmp_path,))
    killing.start()
    rollout = ("rollout", tmp_path / "tasks.jsonl", "--config", config, "--run", run)
    code, said, complained = polar(*rollout)
    killing.join()
    assert code == 0, said + complained
    with read_journal(run / "journal.sqlite") as journal:
        (record,) = journal.sessions()
        earlier = journal.calls(record.session.id, 0)
    assert (record.state, record.session.attempt, len(earlier)) == ("completed", 1, 1)
    assert "of the gateway has ended (exit -9)" in (run / "run.log").read_text()
    code, said, complained = polar("verify", run)
    assert code == 0, said + complained


def states(run: Path) -> list[str]:
    """What the journal says of the sessions, if there is one by now."""
    with contextlib.suppress(JournalError), read_journal(run / "journal.sqlite") as journal:
        return [record.state for record in journal.sessions()]
    return []


def kill_workers(folder: Path) -> None:
    """Kill all workers of this process once a harness waits, and let it go on."""
    asyncio.run(appeared(folder / "pid"))
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    for pid in map(int, children):
        if b"polar.cli.gateway_worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)
    (folder / "go").touch()
