import asyncio
import re
import subprocess
from pathlib import Path

import pytest

from polar.evaluators import Evaluation, from_spec
from polar.evaluators.command import CommandSettings
from polar.evaluators.files import Check, FilesSettings
from polar.tasks import lay_out, read_tasks
from polar.tasks.format import LimitsLine, TaskLine
from polar.tasks.shell_kinds import HELDOUT_KINDS, TRAIN_KINDS

PAGE = Path(__file__, "../../../../docs/tasks.md").resolve().read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_tasks_of_the_page_are_read_and_their_evaluators_accept_them(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text("".join(blocks("json")))
    tasks = read_tasks(path)
    assert len(tasks) == 2
    for task in tasks:
        from_spec(task.evaluator)


def test_the_expert_of_the_page_solves_its_task(tmp_path):
    path = tmp_path / "tasks.jsonl"
    path.write_text(blocks("json")[0])
    (task,) = read_tasks(path)
    work = tmp_path / "work"
    work.mkdir()
    lay_out(task.files, work)
    subprocess.run(["sh", "-c", task.expert[0]], cwd=work, check=True)
    evaluation = Evaluation(task=task, work_dir=work, runtime=object())
    assert asyncio.run(from_spec(task.evaluator).grade(evaluation)).passed


def test_the_program_of_the_page_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(blocks("python")[0], names)
    assert len(names["tasks"]) == 20


@pytest.mark.parametrize("model", [TaskLine, LimitsLine, Check, FilesSettings, CommandSettings])
def test_every_key_is_on_the_page(model):
    for name in model.model_fields:
        assert re.search(rf'[`"]{name}[`"]', PAGE), name


def test_the_counts_of_kinds_are_on_the_page():
    assert f"The {len(TRAIN_KINDS)} kinds for training and the {len(HELDOUT_KINDS)} that" in PAGE
