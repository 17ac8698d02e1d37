"""`polar rollout` and `polar train` from end to end on a tiny model, and what they refuse."""

import dataclasses
import json
import os
import re
import shlex
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from rollout_support import AGENT, is_alive, task
from tiny_models import write_tiny_model
from transformers import AutoModelForCausalLM

from polar.cli import app
from polar.engines import read_tape
from polar.harnesses.shell import Shell
from polar.store import read_journal
from polar.tasks import write_tasks
from polar.types import Message


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def config(tmp_path, model) -> Path:
    """A config of a run that takes seconds."""
    (tmp_path / "agent.py").write_text(AGENT)
    python = f"{shlex.quote(sys.executable)} -I -S {tmp_path}/agent.py"
    write_tasks(tmp_path / "train.jsonl", [task(f"ask {n}; ask more", name=f"t{n}") for n in "ab"])
    write_tasks(tmp_path / "heldout.jsonl", [task("ask what; write out 42", name="h")])
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model": str(model),
                "harness": {
                    "name": "shell",
                    "settings": {"command": f"exec {python} {{base_url}} {{key}} {{instruction}}"},
                },
                "runtime": {"name": "local", "settings": {"preload": False}},
                "tasks": {
                    "train": str(tmp_path / "train.jsonl"),
                    "heldout": str(tmp_path / "heldout.jsonl"),
                },
                "rollout": {"max_tokens": 8},
                "loop": {"steps": 1, "tasks_per_step": 2, "group_size": 2},
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


def explained_metrics() -> set[str]:
    """What the documentation says that a step's row of metrics holds."""
    page = (Path(__file__).parents[2] / "docs/training.md").read_text(encoding="utf-8")
    table = page.split("## Reading the metrics")[1].split("\n## ")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines() if line.startswith("| `")]
    found = set(re.findall(r"`(\w+)`", "".join(rows)))
    assert len(found) > 50
    return found


def test_a_run_trains_leaves_everything_and_verifies(polar, config, tmp_path):
    run = tmp_path / "run"
    code, said, complained = polar("train", config, "--run-dir", run)
    assert (code, complained) == (0, ""), said + complained
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["phase"] for row in rows] == ["heldout_before", "train", "heldout_after"]
    assert explained_metrics() - rows[1].keys() == set()
    summary = json.loads((run / "summary.json").read_text())
    assert summary["heldout_pass_at_1_before"] == summary["heldout_pass_at_1_after"] == 1.0
    assert (run / "curve.png").exists()
    AutoModelForCausalLM.from_pretrained(run / "checkpoints" / "final")
    assert polar("verify", run)[0] == 0
    assert "step   1/1" in said
    assert f"polar show heldout_after-0001-000-00 --run {run}" in said
    assert polar("show", "heldout_after-0001-000-00", "--run", run)[0] == 0
    code, _, complained = polar("train", config, "--run", run)
    assert code == 2
    assert "holds a run already" in complained
    code, said, _ = polar("train", "--resume", run, "--set", "loop.steps=2")
    assert code == 0
    assert "resuming after step 1" in said
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [(row["phase"], row["step"]) for row in rows] == [
        ("heldout_before", 0),
        ("train", 1),
        ("train", 2),
        ("heldout_after", 2),
    ]
    assert polar("verify", run)[0] == 0


SCORER = """
#!{python}
import json, sys

call = json.load(sys.stdin)
sample = int(call["session_id"].split("-")[3])
print(json.dumps(float(call["index"] == 1 and sample % 2)) if sample < 3 else "null")
"""
"""Rewards the second call of every other session, and scores no call of the last one."""


@pytest.mark.parametrize("kind", ["python", "command"])
def test_scores_of_calls_are_learned_from_where_all_outcomes_are_the_same(
    polar, config, tmp_path, kind
):
    scorer = tmp_path / "scorer.py"
    if kind == "command":
        scorer.write_text(SCORER.lstrip().format(python=sys.executable))
        scorer.chmod(0o755)
        named = {"command": [str(scorer)]}
    else:
        scorer.write_text(
            "def score(call):\n"
            "    sample = int(call.session_id.split('-')[3])\n"
            "    return float(call.index == 1 and sample % 2) if sample < 3 else None\n"
        )
        named = {"python": f"{scorer}:score"}
    chosen = json.loads(config.read_text()) | {"gateway": {"scorer": named}}
    config.write_text(json.dumps(chosen))
    loop = ("loop.steps=1", "loop.group_size=4", "loop.heldout_sessions=0", "train.lr=0.01")
    rows = {}
    for credit in ("outcome", "steps"):
        run = tmp_path / credit
        wanted = [x for s in (*loop, f"train.credit={credit}") for x in ("--set", s)]
        code, said, complained = polar("train", config, "--run", run, *wanted)
        assert code == 0, said + complained
        (row,) = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        rows[credit] = row
        assert (row["reward_mean"], row["calls"], row["scored_calls"]) == (0.0, 16, 12)
        assert row["step_reward_mean"] == pytest.approx(2 / 12)
        assert polar("verify", run)[0] == 0
    assert (rows["outcome"]["optimizer_steps"], rows["outcome"]["unscored_calls"]) == (0, None)
    assert rows["outcome"]["groups_without_spread"] == 2
    assert (rows["steps"]["optimizer_steps"], rows["steps"]["unscored_calls"]) == (1, 4)
    assert rows["steps"]["groups_without_spread"] == 0
    assert rows["steps"]["grad_norm"] > 0.0
    assert rows["steps"]["loss"] != 0.0
    weights = [
        AutoModelForCausalLM.from_pretrained(tmp_path / credit / "checkpoints" / "final")
        for credit in ("outcome", "steps")
    ]
    assert any(
        not torch.equal(a, b)
        for a, b in zip(*(model.parameters() for model in weights), strict=True)
    )


def test_an_asynchronous_run_verifies_and_bounds_the_age_of_its_tokens(polar, config, tmp_path):
    run = tmp_path / "run"
    gambles = [task(f"ask {n}; ask more; gamble out", name=f"t{n}") for n in "abcd"]
    write_tasks(tmp_path / "train.jsonl", gambles)
    wanted = (
        "loop.steps=4",
        "loop.group_size=4",
        "loop.max_staleness=1",
        "loop.evaluate_every=2",
        "loop.refills=1",
    )
    sets = [part for each in wanted for part in ("--set", each)]
    code, said, complained = polar("train", config, "--run", run, *sets)
    assert (code, complained) == (0, ""), said + complained
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if row["phase"] == "train"] == [1, 2, 3, 4]
    assert [row["step"] for row in rows if row["phase"] == "heldout"] == [2]
    assert max(row["weight_version"] for row in rows if row["phase"] == "train") >= 2
    assert max(row["staleness_max"] for row in rows if row["phase"] == "train") <= 1
    assert (run / "trajectories" / "heldout-00002.parquet").exists()
    assert polar("verify", run)[0] == 0


def test_a_rollout_goes_on_where_it_stopped(polar, config, tmp_path):
    write_tasks(tmp_path / "one.jsonl", [task("ask a; write out 42", name="a")])
    arguments = ("rollout", tmp_path / "one.jsonl", "--config", config, "--run", "run")
    code, said, complained = polar(*arguments, "-n", 2)
    assert code == 0, complained
    again = polar(*arguments, "-n", 3)
    assert again[0] == 0
    assert "polar show rollout-0000-000-00" in said
    with read_journal(tmp_path / "run" / "journal.sqlite") as journal:
        assert [record.session.attempt for record in journal.sessions()] == [0, 0, 0]
        assert len(list(read_tape(tmp_path / "run" / "engine.tape"))) == 3
    assert polar("verify", "run")[0] == 0


def test_a_rollout_leaves_a_folder_alone_whose_sessions_are_not_its_own(polar, config, tmp_path):
    write_tasks(tmp_path / "one.jsonl", [task("ask a; write out 42", name="a")])
    arguments = ("rollout", tmp_path / "one.jsonl", "--config", config, "--run", "run")
    assert polar(*arguments)[0] == 0
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    for override, what in (
        ("model=/no/such", "another `model`"),
        ("rollout.max_tokens=9", "another `rollout`"),
    ):
        code, _, complained = polar(*arguments, "--set", override)
        assert code == 2
        assert what in complained
    (tmp_path / "run" / "metrics.jsonl").touch()
    assert "that of a training" in polar(*arguments)[2]
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


@pytest.mark.timeout(300)
def test_a_stopped_training_ends_cleanly_and_goes_on(config, tmp_path):
    data = json.loads(config.read_text())
    write_tasks(
        tmp_path / "train.jsonl",
        [task(f"ask a; signal {tmp_path}/pid; await {tmp_path}/go", name=n) for n in "ab"],
    )
    config.write_text(json.dumps(data))
    polar = (sys.executable, "-c", "from polar.cli.app import main; main()")
    run = tmp_path / "run"
    process = subprocess.Popen(
        [*polar, "train", config, "--run", run], stdout=subprocess.PIPE, text=True
    )
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.01)
    busy = subprocess.run(
        [*polar, "train", "--resume", run], capture_output=True, text=True, check=False
    )
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=30)
    (tmp_path / "go").touch()
    assert process.returncode == 130
    assert f"polar train --resume {run}" in said
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert busy.returncode == 2
    assert "another process is running in the run folder" in busy.stderr
    resumed = subprocess.run([*polar, "train", run], capture_output=True, text=True, check=False)
    assert resumed.returncode == 0, resumed.stderr
    with read_journal(run / "journal.sqlite") as journal:
        first = journal.sessions(phase="heldout_before")
    assert [record.session.attempt for record in first] == [0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("command", "number"),
    [("train", signal.SIGINT), ("rollout", signal.SIGHUP), ("run", signal.SIGTERM)],
)
def test_a_command_that_is_told_to_end_again_and_again_leaves_nothing_behind(
    config, tmp_path, command, number
):
    wait = f"ask a; signal {tmp_path}/pid; await {tmp_path}/go"
    write_tasks(tmp_path / "train.jsonl", [task(wait, name=name) for name in "ab"])
    run, temporary = tmp_path / "run", tmp_path / "tmp"
    temporary.mkdir()
    arguments = {
        "train": ("train", config, "--run", run, "--set", "loop.heldout_sessions=0"),
        "rollout": ("rollout", tmp_path / "train.jsonl", "--config", config, "--run", run),
        "run": ("run", "--config", config, "--run", run, "--", wait),
    }[command]
    # Whoever starts the tests may have SIGHUP ignored, as nohup does, and children inherit that.
    program = (
        "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL); "
        "from polar.cli.app import main; main()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, "TMPDIR": str(temporary)},
        stderr=subprocess.PIPE,
        text=True,
    )
    while not (tmp_path / "pid").exists():
        assert process.poll() is None
        time.sleep(0.01)
    for _ in range(4):
        process.send_signal(number)
        time.sleep(0.02)
    _, complained = process.communicate(timeout=30)
    assert process.returncode == 128 + number, complained
    assert "Traceback" not in complained
    assert not is_alive(int((tmp_path / "pid").read_text()))
    assert not list(temporary.glob("polar-*"))
    assert not list(run.glob("work/*"))
    with read_journal(run / "journal.sqlite") as journal:
        assert sum(len(journal.calls(each.session.id)) for each in journal.sessions()) >= 1
    if command == "run":
        assert (run / "trajectories" / "run-00000.parquet").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "what", "remedy"),
    [
        (("train", "CONFIG", "--set", "loop.stepz=3"), 2, "loop.stepz", "steps"),
        (("demo", "--set", "train.lrr=3"), 2, "train.lrr", "lr"),
        (("demo", "--set", "train.lr"), 2, "does not set anything", "KEY=VALUE"),
        (("demo", "--set", "model.x=1"), 2, "has the value", "holds other keys"),
        (("demo", "--harness", "mini_swe_agnet"), 2, "mini_swe_agnet", "mini_swe_agent"),
        (("demo", "--engine", "vlm"), 2, "vlm", "vllm"),
        (("rollout", "TASKS", "--harness", "pie"), 2, "pie", "pi"),
        (("train", "no.yaml"), 2, "no such config file", "Check the path"),
        (("train",), 2, "either a config file or --resume", "--help"),
        (("train", "--resume", "nowhere"), 2, "no run to resume", "interrupted"),
        (("train", "."), 2, "no run to resume", "interrupted"),
        (("train", ".", "--resume", "nowhere"), 2, "either a config file or", "--help"),
        (("train", ".", "--run", "new"), 2, "written where it is", "Leave --run out"),
        (("train", "CONFIG", "--set", "model=/no/such"), 3, "/no/such", ""),
        (("train", "CONFIG", "--set", "tasks.train=/no/such"), 2, "/no/such", ""),
        (
            ("train", "CONFIG", "--set", "tasks.train=null"),
            2,
            "no tasks to train on",
            "tasks.train",
        ),
        (("train", "CONFIG", "--set", "tasks.train=BROKEN"), 2, "broken.jsonl:2", ""),
        (("rollout", "BROKEN", "--config", "CONFIG"), 2, "broken.jsonl:2", ""),
        (("train", "CONFIG", "--run", "/proc/no"), 2, "cannot be made", "may write"),
        (("train", "MISSING"), 3, "/no/such/mini", "Correct `executable`"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_is_wrong_is_told_once_with_what_to_do(
    polar, config, tmp_path, arguments, code, what, remedy
):
    write_tasks(tmp_path / "tasks.jsonl", [task("ask a")])
    good = (tmp_path / "tasks.jsonl").read_text()
    (tmp_path / "broken.jsonl").write_text(good + '{"id": "x"\n')
    missing = json.loads(config.read_text())
    missing["harness"] = {"name": "mini_swe_agent", "settings": {"executable": "/no/such/mini"}}
    (tmp_path / "missing.json").write_text(json.dumps(missing))
    names = {"TASKS": "tasks.jsonl", "BROKEN": "broken.jsonl", "MISSING": "missing.json"}
    names["CONFIG"] = str(config)
    given = list(arguments)
    for name, value in names.items():
        given = [argument.replace(name, value) for argument in given]
    found, _, complained = polar(*given)
    assert found == code, complained
    assert what in complained
    assert remedy in complained
    assert complained.count("error:") == 1
    assert "Traceback" not in complained
    assert not list(tmp_path.glob("runs/*/journal.sqlite"))


def test_a_warm_start_without_an_expert_is_refused_before_anything_is_sampled(polar, config):
    code, _, complained = polar("train", config, "--set", "loop.warm_start.sessions=2")
    assert code == 2, complained
    assert "has no expert to learn from" in complained


def test_a_harness_that_cannot_be_played_by_an_expert_is_told(polar, config, tmp_path):
    lesson = dataclasses.replace(task("ask a"), expert=("true",))
    write_tasks(tmp_path / "train.jsonl", [lesson])
    code, _, complained = polar("train", config, "--set", "loop.warm_start.sessions=2")
    assert code == 2, complained
    assert "the harness shell has no expert" in complained


@pytest.mark.parametrize("record", ["expert.tape", "engine.tape"])
def test_the_experts_calls_are_verified_against_a_tape_of_their_own(
    polar, config, tmp_path, monkeypatch, record
):
    lesson = dataclasses.replace(task("ask a; write out 42"), expert=("true",))
    write_tasks(tmp_path / "train.jsonl", [lesson])
    monkeypatch.setattr(Shell, "expert_turns", lambda self, commands: (Message("assistant", "ok"),))
    config.write_text(config.read_text().replace('"steps": 1', '"steps": 0'))
    code, _, complained = polar(
        "train", config, "--run", "run", "--set", "loop.warm_start.sessions=1"
    )
    assert code == 0, complained
    assert polar("verify", "run")[0] == 0
    (tmp_path / "run" / record).unlink()
    assert polar("verify", "run")[0] == 8


OUTSIDER = """
import json, pathlib, sys, urllib.request

def ask(method, url, token, **body):
    headers = {"Authorization": "Bearer " + token, "Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    return json.load(urllib.request.urlopen(request, timeout=60))

control, token_file, base_url, key = sys.argv[1:]
token = pathlib.Path(token_file).read_text().strip()
chat = {"model": "m", "messages": [{"role": "user", "content": "from outside"}]}
opened = ask("POST", control + "/sessions", token, task_id="mine")
ask("POST", opened["base_url"] + "/v1/chat/completions", opened["key"], **chat)
ask("DELETE", control + "/sessions/" + opened["id"], token)
ask("POST", base_url + "/chat/completions", key, **chat)
"""


def test_a_run_serves_sessions_from_outside_and_verifies(polar, config, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    program, token = tmp_path / "outsider.py", tmp_path / "token"
    program.write_text(OUTSIDER)
    line = f"exec {shlex.quote(sys.executable)} -I -S {program} http://127.0.0.1:{port} {token}"
    data = json.loads(config.read_text())
    data["harness"]["settings"]["command"] = line + " {base_url} {key}"
    data["gateway"] = {"control": {"token_file": str(token), "port": port}}
    config.write_text(json.dumps(data))
    write_tasks(tmp_path / "one.jsonl", [task("ask", name="a")])

    code, said, complained = polar(
        "rollout", tmp_path / "one.jsonl", "--config", config, "--run", "run"
    )

    assert code == 0, complained
    assert f"control API at http://127.0.0.1:{port}" in said
    assert stat.S_IMODE(token.stat().st_mode) == 0o600
    with read_journal(tmp_path / "run" / "journal.sqlite") as journal:
        (outside,) = journal.sessions(phase="external")
        (call,) = journal.calls(outside.session.id)
    assert (outside.session.task_id, call.messages[0].content) == ("mine", "from outside")
    assert polar("verify", "run")[0] == 0


def test_a_rollout_says_why_sessions_were_not_graded(polar, config, tmp_path):
    broken = [task("exit 3", name="silent"), task("ask a; write out 42", name="good")]
    write_tasks(tmp_path / "some.jsonl", broken)
    code, said, _ = polar(
        "rollout", tmp_path / "some.jsonl", "--config", config, "--run", "run", "-n", 2
    )
    assert code == 0
    assert "2 x failed while running: the harness made no model call (exit 3)" in said
