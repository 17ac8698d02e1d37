"""What every evaluator promises, whatever it looks at."""

import asyncio
import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from polar.errors import ConfigError
from polar.evaluators import Evaluation, from_spec, load, names
from polar.runtimes import default_runtime
from polar.tasks import lay_out, read_tasks
from polar.types import EvaluatorSpec, Limits, Task, TaskId

PAGE = Path(__file__, "../../../docs/tasks.md").resolve().read_text()


@dataclass(frozen=True)
class Subject:
    """An evaluator with settings under which `result.txt` must hold `right`."""

    name: str
    config: Mapping[str, Any] = field(default_factory=dict)


SUBJECTS = [
    Subject("files", {"checks": [{"path": "result.txt", "equals": "right\n"}]}),
    Subject(
        "command",
        {"run": 'diff result.txt "$GRADER/wanted.txt"', "files": {"wanted.txt": "right\n"}},
    ),
    Subject(
        "command",
        {
            "run": 'sh "$GRADER/check.sh"',
            "files": {"check.sh": 'test "$(cat result.txt)" = right && echo reward: 1\n'},
            "reward": "last_line",
        },
    ),
]
every_evaluator = pytest.mark.parametrize(
    "subject", SUBJECTS, ids=lambda s: f"{s.name}-{s.config.get('reward', 'plain')}"
)


@pytest.fixture
async def runtime():
    chosen = default_runtime().runtime
    yield chosen
    await chosen.aclose()


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


def evaluation_of(spec: EvaluatorSpec, work: Path, runtime) -> Evaluation:
    task = Task(TaskId("t"), "Write right to result.txt.", spec, limits=Limits(grade_s=30))
    return Evaluation(task=task, work_dir=work, runtime=runtime)


async def grade(subject: Subject, work: Path, runtime):
    spec = EvaluatorSpec(subject.name, subject.config)
    return await from_spec(spec).grade(evaluation_of(spec, work, runtime))


def test_every_built_in_evaluator_is_tested():
    assert {subject.name for subject in SUBJECTS} == set(names())


@every_evaluator
async def test_right_work_passes_with_the_whole_reward(subject, work, runtime):
    (work / "result.txt").write_text("right\n")
    found = await grade(subject, work, runtime)
    assert (found.reward, found.passed) == (1.0, True)


@every_evaluator
@pytest.mark.parametrize("content", [None, "", "wrong\n", "\x00\x01"])
async def test_wrong_or_missing_work_fails_without_an_error(subject, work, runtime, content):
    if content is not None:
        (work / "result.txt").write_text(content)
    found = await grade(subject, work, runtime)
    assert (found.reward, found.passed) == (0.0, False)
    assert found.details


@every_evaluator
async def test_a_hostile_folder_fails_without_an_error_and_in_time(subject, work, runtime):
    os.mkfifo(work / "result.txt")
    (work / "out").symlink_to("/")
    (work / os.fsdecode(b"\xff")).write_text("")
    locked = work / "locked"
    locked.mkdir(mode=0)
    try:
        async with asyncio.timeout(30):
            found = await grade(subject, work, runtime)
    finally:
        locked.chmod(0o700)
    assert (found.reward, found.passed) == (0.0, False)


@every_evaluator
async def test_grading_twice_gives_the_same_and_changes_nothing(subject, work, runtime):
    (work / "result.txt").write_text("right\n")
    (work / "result.txt").chmod(0o440)
    before = (work / "result.txt").stat()
    first, second = [await grade(subject, work, runtime) for _ in range(2)]
    assert (first.reward, first.passed) == (second.reward, second.passed)
    assert [path.name for path in work.iterdir()] == ["result.txt"]
    assert (work / "result.txt").stat().st_mtime_ns == before.st_mtime_ns


@every_evaluator
async def test_sessions_can_be_graded_side_by_side(subject, tmp_path, runtime):
    folders = [tmp_path / str(i) for i in range(4)]
    for i, folder in enumerate(folders):
        folder.mkdir()
        (folder / "result.txt").write_text("right\n" if i % 2 else "wrong\n")
    found = await asyncio.gather(*(grade(subject, folder, runtime) for folder in folders))
    assert [each.passed for each in found] == [False, True, False, True]


@every_evaluator
def test_an_unknown_setting_is_refused(subject):
    with pytest.raises(ConfigError) as caught:
        load(subject.name).from_config({**subject.config, "no_such_setting": 1})
    assert "`no_such_setting`" in caught.value.what
    assert caught.value.fix


async def test_a_grader_that_hangs_is_killed_and_its_sandbox_is_gone(work, runtime):
    subject = Subject("command", {"run": "sleep 1000 & sleep 1000", "timeout_s": 0.5})
    found = await grade(subject, work, runtime)
    assert (found.reward, found.passed) == (0.0, False)
    assert found.details["timed_out"]


async def test_a_cancelled_grading_ends(work, runtime):
    subject = Subject("command", {"run": "sleep 1000", "timeout_s": 1000})
    grading = asyncio.ensure_future(grade(subject, work, runtime))
    await asyncio.wait([grading], timeout=0.5)
    grading.cancel()
    async with asyncio.timeout(20):
        with contextlib.suppress(asyncio.CancelledError):
            await grading
    assert grading.cancelled()


async def test_the_grader_may_write_and_the_work_stays_as_it_was(work, runtime):
    (work / "result.txt").write_text("right\n")
    subject = Subject("command", {"run": "echo more >> result.txt && echo new > new.txt"})
    assert (await grade(subject, work, runtime)).passed
    assert (work / "result.txt").read_text() == "right\n"
    assert [path.name for path in work.iterdir()] == ["result.txt"]


@pytest.mark.parametrize(
    ("program", "passes"),
    [("def add(a, b):\n    return a + b\n", True), ("def add(a, b):\n    return a\n", False)],
)
async def test_the_command_example_of_the_page_grades(tmp_path, work, runtime, program, passes):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(re.findall(r"^```json\n(.*?)^```$", PAGE, re.M | re.S)))
    task = next(task for task in read_tasks(path) if task.id == "add")
    lay_out({"add.py": program}, work)
    evaluation = Evaluation(task=task, work_dir=work, runtime=runtime)
    assert (await from_spec(task.evaluator).grade(evaluation)).passed == passes


async def test_a_grader_runs_in_one_zone_and_with_one_seed_wherever_it_runs(
    work, runtime, monkeypatch
):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    monkeypatch.setenv("PYTHONHASHSEED", "17")
    lines = 'test "$(date +%Z)" = UTC && test "$TZ $PYTHONHASHSEED" = "UTC 0"'
    spec = EvaluatorSpec("command", {"run": lines})
    assert (await from_spec(spec).grade(evaluation_of(spec, work, runtime))).passed
