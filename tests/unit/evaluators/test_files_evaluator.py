import asyncio
import os
import socket

import pytest

from polar.errors import ConfigError, RuntimeFailed
from polar.evaluators import Evaluation, from_spec
from polar.types import EvaluatorSpec, Task, TaskId


class NoRuntime:
    """The `files` evaluator starts no sandbox."""


def grade(work_dir, *checks, files=None, **settings):
    spec = EvaluatorSpec("files", {"checks": list(checks), **settings})
    task = Task(TaskId("t"), "x", spec, files=files or {})
    evaluation = Evaluation(task=task, work_dir=work_dir, runtime=NoRuntime())
    return asyncio.run(from_spec(spec).grade(evaluation))


@pytest.fixture
def work(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a.txt").write_text("plum\napple\n")
    (folder / "a.txt").chmod(0o644)
    (folder / "run.sh").write_text("echo\n")
    (folder / "run.sh").chmod(0o755)
    (folder / "d").mkdir()
    (folder / "d" / "b.txt").write_text("b\n")
    (folder / "link").symlink_to("a.txt")
    (folder / "to_d").symlink_to("d")
    return folder


HOLDING = [
    {"path": "a.txt", "equals": "plum\napple\n"},
    {"path": "a.txt", "equals": "plum\napple", "strip": True},
    {"path": "a.txt", "equals": "  plum\napple\n\n", "strip": True},
    {"path": "link", "equals": "plum\napple\n"},
    {"path": "a.txt", "contains": "um\nap"},
    {"path": "a.txt", "matches": r"\Aplum\s"},
    {"path": "a.txt", "lines_any_order": ["apple", "plum"]},
    {"path": "a.txt", "exists": True},
    {"path": "d", "exists": True},
    {"path": "c.txt", "absent": True},
    {"path": "a.txt/c", "absent": True},
    {"path": "d", "is_dir": True},
    {"path": "run.sh", "executable": True},
    {"path": "a.txt", "executable": False},
    {"path": "run.sh", "mode": "755"},
    {"path": "run.sh", "mode": "0755"},
    {"path": "link", "executable": False},
    {"path": "to_d", "is_dir": True},
    {"path": "link", "link_to": "a.txt"},
    {"path": "link", "link_to": "./a.txt"},
]
FAILING = [
    ({"path": "a.txt", "equals": "plum\napple"}, "does not equal"),
    ({"path": "a.txt", "equals": "plum\n", "strip": True}, "does not equal"),
    ({"path": "c.txt", "equals": ""}, "does not exist"),
    ({"path": "d", "equals": ""}, "is not a regular file"),
    ({"path": "a.txt", "contains": "Plum"}, "does not contain"),
    ({"path": "a.txt", "matches": r"^apple"}, "does not match"),
    ({"path": "a.txt", "lines_any_order": ["apple", "plum", "plum"]}, "expected lines"),
    ({"path": "c.txt", "exists": True}, "does not exist"),
    ({"path": "a.txt", "absent": True}, "is still there"),
    ({"path": "link", "absent": True}, "is still there"),
    ({"path": "a.txt", "is_dir": True}, "is not a folder"),
    ({"path": "c.txt", "is_dir": True}, "does not exist"),
    ({"path": "a.txt", "executable": True}, "is not executable"),
    ({"path": "run.sh", "executable": False}, "is executable"),
    ({"path": "run.sh", "mode": "644"}, "has the mode 755"),
    ({"path": "a.txt", "link_to": "b"}, "is not a symbolic link"),
    ({"path": "link", "link_to": "b"}, "leads to a.txt"),
]


@pytest.mark.parametrize("check", HOLDING, ids=str)
def test_a_check_that_holds_passes(work, check):
    found = grade(work, check)
    assert (found.reward, found.passed, found.details["failed"]) == (1.0, True, [])


@pytest.mark.parametrize(("check", "why"), FAILING, ids=str)
def test_a_check_that_does_not_hold_fails_and_says_why(work, check, why):
    found = grade(work, check)
    assert (found.reward, found.passed) == (0.0, False)
    assert why in found.details["failed"][0]
    assert found.details["failed"][0].startswith(check["path"])


def test_one_failed_check_fails_the_task(work):
    found = grade(work, *HOLDING, FAILING[0][0])
    assert (found.reward, found.passed) == (0.0, False)
    assert len(found.details["failed"]) == 1


def test_part_of_the_work_is_worth_a_share_of_the_partial_weight(work):
    found = grade(work, *HOLDING[:3], FAILING[0][0], partial_weight=0.4)
    assert (found.reward, found.passed) == (pytest.approx(0.3), False)


def test_guards_earn_nothing(work):
    guard = {"path": "a.txt", "unchanged": True}
    files = {"a.txt": "plum\napple\n"}
    missing = {"path": "c.txt", "exists": True}
    assert grade(work, guard, missing, files=files, partial_weight=0.4).reward == 0
    assert grade(work, guard, files=files, partial_weight=0.4).reward == 1


def test_a_broken_guard_costs_the_partial_reward_too(work):
    guard = {"path": "a.txt", "unchanged": True}
    found = grade(work, guard, HOLDING[0], files={"a.txt": "other"}, partial_weight=0.4)
    assert (found.reward, found.passed) == (0.0, False)
    assert found.details["failed"] == ["a.txt has been changed"]


def test_a_guard_on_a_file_that_the_task_does_not_lay_out_is_a_broken_grader(work):
    with pytest.raises(RuntimeFailed, match="does not lay out"):
        grade(work, {"path": "a.txt", "unchanged": True})


def test_nothing_else_accepts_what_is_laid_out_or_named(work):
    checks = [{"path": path, "exists": True} for path in ("a.txt", "link", "to_d", "d/b.txt")]
    assert grade(work, *checks, files={"run.sh": ""}, nothing_else=True).passed


def test_nothing_else_names_unexpected_files_and_folders(work):
    found = grade(work, {"path": "a.txt", "exists": True}, nothing_else=True, partial_weight=0.5)
    assert found.reward == 0
    assert sorted(found.details["failed"]) == [
        f"{path} should not be there" for path in ("d", "link", "run.sh", "to_d")
    ]


def test_nothing_else_names_no_more_than_twenty(work):
    for i in range(50):
        (work / f"x{i}").touch()
    assert len(grade(work, HOLDING[0], nothing_else=True).details["failed"]) == 20


def test_nothing_else_survives_a_name_that_is_not_utf_8(work):
    (work / os.fsdecode(b"\xff\xfe")).write_text("")
    found = grade(work, HOLDING[0], nothing_else=True)
    assert "\\xff\\xfe should not be there" in found.details["failed"]
    "".join(found.details["failed"]).encode()


def test_a_link_that_leads_out_is_not_followed(work):
    (work.parent / "secret.txt").write_text("secret")
    (work / "out").symlink_to("../secret.txt")
    (work / "up").symlink_to("..")
    (work / "host").symlink_to("/etc/passwd")
    for path in ("out", "up/secret.txt", "host"):
        found = grade(work, {"path": path, "matches": ""})
        assert "leads out of the work folder" in found.details["failed"][0]
    for path in ("up/secret.txt", "up"):
        assert not grade(work, {"path": path, "is_dir": True}).passed


def test_a_file_behind_a_link_that_leads_out_does_not_count_as_absent(work):
    (work / "up").symlink_to("..")
    assert not grade(work, {"path": "up/nothing", "absent": True}).passed


def test_a_link_to_itself_is_not_followed(work):
    (work / "loop").symlink_to("loop")
    assert not grade(work, {"path": "loop", "equals": ""}).passed
    assert not grade(work, {"path": "loop", "absent": True}).passed


def test_a_work_folder_that_was_replaced_by_a_link_fails_every_check(work):
    moved = work.rename(work.parent / "moved")
    work.symlink_to(moved)
    for check in ({"path": "a.txt", "exists": True}, {"path": "c.txt", "absent": True}):
        found = grade(work, check)
        assert "has been replaced" in found.details["failed"][0]


def test_a_work_folder_that_is_gone_fails_every_check(tmp_path):
    for check in ({"path": "a.txt", "exists": True}, {"path": "c.txt", "absent": True}):
        assert not grade(tmp_path / "none", check, nothing_else=True).passed


def test_pipes_sockets_and_devices_are_not_read(work):
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(work / "socket"))
    (work / "zero").symlink_to("/dev/zero")
    for path in ("pipe", "socket", "zero"):
        assert not grade(work, {"path": path, "contains": ""}).passed


def test_a_file_over_the_limit_is_not_read(work):
    with (work / "big").open("wb") as file:
        file.truncate(1 << 40)
    found = grade(work, {"path": "big", "contains": ""}, max_bytes=1000)
    assert found.details["failed"] == ["big is larger than 1000 bytes"]
    (work / "big").write_bytes(b"x" * 1000)
    assert grade(work, {"path": "big", "contains": ""}, max_bytes=1000).passed


def test_a_file_that_is_not_text_fails(work):
    (work / "a.txt").write_bytes(b"\xff")
    assert grade(work, {"path": "a.txt", "contains": ""}).details["failed"] == [
        "a.txt is not UTF-8 text"
    ]


def test_line_ends_are_compared_exactly(work):
    (work / "a.txt").write_bytes(b"plum\r\napple\r\n")
    assert not grade(work, {"path": "a.txt", "equals": "plum\napple\n"}).passed


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ({}, "the key `checks` is missing"),
        ({"checks": []}, "`checks` is []"),
        ({"chekcs": []}, "Did you mean `checks`?"),
        ({"checks": [{"path": "a"}]}, "`checks[0]`: has no condition"),
        ({"checks": [{"path": "a", "equal": "x"}]}, "Did you mean `equals`?"),
        ({"checks": [{"path": "a", "equals": "x", "contains": "x"}]}, "has equals, contains"),
        ({"checks": [{"path": "a", "contains": "x", "strip": True}]}, "`strip` has no use here"),
        ({"checks": [{"path": "/a", "exists": True}]}, "is absolute"),
        ({"checks": [{"path": "../a", "exists": True}]}, "leaves its folder"),
        ({"checks": [{"path": "a", "matches": "("}]}, "is no regular expression"),
        ({"checks": [{"path": "a", "mode": "999"}]}, "`checks[0].mode` is '999'"),
        ({"checks": [{"path": "a", "exists": False}]}, "`checks[0].exists` is False"),
        ({"checks": [{"path": "a", "exists": True}], "partial_weight": 1.0}, "partial_weight"),
        ({"checks": [{"path": "a", "exists": True}], "nothing_else": "yes"}, "nothing_else"),
    ],
)
def test_wrong_settings_are_refused_with_a_remedy(config, text):
    with pytest.raises(ConfigError) as caught:
        from_spec(EvaluatorSpec("files", config))
    assert text in str(caught.value)
    assert caught.value.where == "evaluator `files`"
    assert caught.value.fix
