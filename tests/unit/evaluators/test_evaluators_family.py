import pytest

from polar.errors import ConfigError
from polar.evaluators import check_tasks, from_spec, load, names
from polar.evaluators.command import CommandEvaluator
from polar.evaluators.files import FilesEvaluator
from polar.tasks import generate
from polar.types import EvaluatorSpec, Task, TaskId


def test_built_in_evaluators_are_found_by_name():
    assert {"command", "files"} <= set(names())
    assert load("files") is FilesEvaluator
    assert load("command") is CommandEvaluator


def test_an_unknown_evaluator_is_named_with_the_nearest_known_one():
    with pytest.raises(ConfigError) as caught:
        from_spec(EvaluatorSpec("file"))
    assert caught.value.what == "there is no evaluator `file`"
    assert caught.value.fix == "Did you mean `files`?"


def test_an_evaluator_of_an_installed_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "thirdparty.py").write_text("class Mine: ...\n")
    info = tmp_path / "thirdparty-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: thirdparty\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[polar.evaluators]\nmine = thirdparty:Mine\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "mine" in names()
    assert load("mine").__name__ == "Mine"


def test_a_task_whose_evaluator_refuses_its_settings_is_named():
    good = generate(seed=0, split="train", count=3)
    check_tasks(good)
    bad = Task(TaskId("t9"), "x", EvaluatorSpec("files", {"cheks": []}))
    with pytest.raises(ConfigError) as caught:
        check_tasks([*good, bad])
    assert caught.value.where == "task 't9', evaluator `files`"
    assert "`cheks`" in caught.value.what
