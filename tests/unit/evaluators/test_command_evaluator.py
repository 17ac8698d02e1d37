import asyncio
import os
from collections.abc import Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from blockbuster import blockbuster_ctx

from polar.errors import ConfigError, RuntimeFailed
from polar.evaluators import Evaluation, from_spec
from polar.runtimes.base import ExecResult, Place, ProcessSpec, SandboxSpec
from polar.types import EvaluatorSpec, Limits, Task, TaskId


class ScriptedRuntime:
    """Starts sandboxes in which every process ends as it was told to, and remembers them."""

    def __init__(self, result: ExecResult) -> None:
        self.result = result
        self.started: list[SandboxSpec] = []
        self.ran: list[tuple[ProcessSpec, float]] = []
        self.seen: dict[str, str] = {}

    @asynccontextmanager
    async def start(self, spec: SandboxSpec):
        self.started.append(spec)
        yield ScriptedSandbox(self, spec)

    def protections(self) -> Mapping[str, bool]:
        return {}

    async def aclose(self) -> None:
        pass


class ScriptedSandbox:
    def __init__(self, runtime: ScriptedRuntime, spec: SandboxSpec) -> None:
        self.runtime, self.spec = runtime, spec
        self.place = Place(work_dir=str(spec.work_dir), home="/home", gateway_url=None)

    async def run(self, spec: ProcessSpec, *, timeout_s: float) -> ExecResult:
        self.runtime.ran.append((spec, timeout_s))
        await asyncio.to_thread(self.look_around)
        return self.runtime.result

    def look_around(self) -> None:
        for folder in (self.spec.work_dir, *self.spec.read_only):
            for path in sorted(folder.rglob("*")):
                name = f"{folder.name}/{path.relative_to(folder)}"
                is_text = path.is_file() and os.access(path, os.R_OK)
                self.runtime.seen[name] = path.read_text() if is_text else ""


def ended(exit_code=0, *, stdout="", stderr="", timed_out=False) -> ExecResult:
    return ExecResult(exit_code, stdout, stderr, timed_out, wall_s=0.1)


def grade(work_dir: Path, runtime: ScriptedRuntime, **config):
    spec = EvaluatorSpec("command", {"run": "sh $GRADER/check.sh", **config})
    task = Task(TaskId("t"), "x", spec, limits=Limits(memory_mb=77))
    evaluation = Evaluation(task=task, work_dir=work_dir, runtime=runtime)
    return asyncio.run(from_spec(spec).grade(evaluation))


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "a.txt").write_text("plum\n")
    return folder


@pytest.mark.parametrize(("exit_code", "reward"), [(0, 1.0), (1, 0.0), (2, 0.0), (137, 0.0)])
def test_the_exit_code_is_the_reward(work, exit_code, reward):
    found = grade(work, ScriptedRuntime(ended(exit_code, stdout="reward: 0.5\n")))
    assert (found.reward, found.passed) == (reward, reward == 1.0)
    assert found.details["exit_code"] == exit_code


@pytest.mark.parametrize(
    ("stdout", "reward"),
    [
        ("reward: 0.5", 0.5),
        ("noise\nReward:1\n\n", 1.0),
        ("reward: 1e-2\n", 0.01),
        ("reward: 0\n", 0.0),
        ("reward: 1\nmore\n", 0.0),
        ("reward: 1.5\n", 0.0),
        ("reward: -1\n", 0.0),
        ("reward: nan\n", 0.0),
        ("reward: 1.1.1\n", 0.0),
        ("", 0.0),
    ],
)
def test_the_last_line_is_the_reward_when_asked_for(work, stdout, reward):
    found = grade(work, ScriptedRuntime(ended(3, stdout=stdout)), reward="last_line")
    assert found.reward == reward
    assert found.passed == (reward == 1.0)


def test_a_task_passes_from_the_set_reward_on(work):
    runtime = ScriptedRuntime(ended(stdout="reward: 0.8"))
    assert grade(work, runtime, reward="last_line", pass_at=0.8).passed
    assert not grade(work, runtime, reward="last_line", pass_at=0.9).passed


def test_a_grader_that_times_out_gives_no_reward(work):
    runtime = ScriptedRuntime(ended(0, stdout="reward: 1", timed_out=True))
    found = grade(work, runtime, reward="last_line", timeout_s=2.5)
    assert (found.reward, found.passed) == (0.0, False)
    assert found.details["timed_out"]
    assert runtime.ran[0][1] == 2.5


@pytest.mark.parametrize("exit_code", [126, 127])
def test_a_command_that_the_shell_cannot_run_is_a_broken_grader(work, exit_code):
    with pytest.raises(RuntimeFailed, match="chekc: not found"):
        grade(work, ScriptedRuntime(ended(exit_code, stderr="sh: 1: chekc: not found\n")))


def test_the_grader_sees_a_copy_of_the_work_and_its_own_files_elsewhere(work):
    runtime = ScriptedRuntime(ended())
    grade(work, runtime, files={"check.sh": "true\n", "data/x": "y"})
    sandbox, (process, _) = runtime.started[0], runtime.ran[0]
    assert runtime.seen == {
        "work/a.txt": "plum\n",
        "grader/check.sh": "true\n",
        "grader/data": "",
        "grader/data/x": "y",
    }
    assert sandbox.work_dir != work
    assert process.argv == ("sh", "-c", "sh $GRADER/check.sh")
    assert process.env["GRADER"] == str(sandbox.read_only[0])
    assert sandbox.gateway_url is None
    assert sandbox.limits.memory_mb == 77


def test_nothing_is_left_behind_and_the_work_is_as_it_was(work):
    runtime = ScriptedRuntime(ended())
    grade(work, runtime, files={"check.sh": "true\n"})
    assert not runtime.started[0].work_dir.parent.exists()
    assert [path.name for path in work.iterdir()] == ["a.txt"]


def test_links_are_copied_as_links_and_special_files_are_left_out(work):
    (work / "out").symlink_to("/etc/passwd")
    (work / "loop").symlink_to(".")
    os.mkfifo(work / "pipe")
    runtime = ScriptedRuntime(ended())
    assert grade(work, runtime).passed
    assert set(runtime.seen) == {"work/a.txt", "work/out", "work/loop"}


def test_a_work_folder_that_is_too_large_is_not_copied(work):
    with (work / "big").open("wb") as file:
        file.truncate(1 << 40)
    runtime = ScriptedRuntime(ended())
    found = grade(work, runtime, max_work_mb=1)
    assert (found.reward, found.passed) == (0.0, False)
    assert "holds more than 1048576 bytes" in found.details["why"]
    assert runtime.started == []


def test_a_work_folder_that_was_replaced_by_a_link_is_not_graded(work):
    moved = work.rename(work.parent / "moved")
    work.symlink_to(moved)
    runtime = ScriptedRuntime(ended())
    assert not grade(work, runtime).passed
    assert runtime.started == []


def test_only_the_end_of_a_long_output_is_kept(work):
    found = grade(work, ScriptedRuntime(ended(stdout="x" * 9000 + "end")))
    assert len(found.details["stdout"]) == 2000
    assert found.details["stdout"].endswith("end")


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "the key `run` is missing"),
        ({"run": ""}, "`run` is ''"),
        ({"run": "x", "file": {}}, "Did you mean `files`?"),
        ({"run": "x", "files": {"../x": ""}}, "leaves its folder"),
        ({"run": "x", "reward": "stdout"}, "`reward` is 'stdout'"),
        ({"run": "x", "timeout_s": 0}, "`timeout_s` is 0"),
        ({"run": 3, "reword": "x"}, "Also: "),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(config, text):
    with pytest.raises(ConfigError) as caught:
        from_spec(EvaluatorSpec("command", config))
    assert text in str(caught.value)
    assert caught.value.where == "evaluator `command`"


def test_grading_does_not_block_the_loop(work):
    with blockbuster_ctx("polar.evaluators"):
        assert grade(work, ScriptedRuntime(ended()), files={"check.sh": "true\n"}).passed
