import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.errors import TaskFileError
from polar.tasks import generate, read_tasks, write_tasks
from polar.tasks.format import LimitsLine
from polar.types import EvaluatorSpec, Limits, Task, TaskId

GOOD = {
    "id": "t1",
    "instruction": "Sort a.txt.",
    "evaluator": {"name": "files", "config": {"checks": []}},
}

text = st.text(st.characters(codec="utf-8"))
nonempty = st.text(st.characters(codec="utf-8"), min_size=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
names = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=9)
file_names = names.filter(lambda name: name not in {".", ".."})
seconds = st.floats(min_value=0.001, max_value=1e6)
counts = st.integers(1, 10**6)
tasks = st.builds(
    Task,
    id=nonempty.map(TaskId),
    instruction=nonempty,
    evaluator=st.builds(
        EvaluatorSpec, name=nonempty, config=st.dictionaries(text, json_values, max_size=3)
    ),
    files=st.dictionaries(file_names, text, max_size=3),
    kind=nonempty,
    expert=st.lists(text, max_size=3).map(tuple),
    limits=st.builds(
        Limits,
        prepare_s=seconds,
        run_s=seconds,
        grade_s=seconds,
        max_calls=counts,
        cpu_s=counts,
        memory_mb=counts,
        processes=counts,
    ),
)


def write_lines(path: Path, *lines: object) -> Path:
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def complaint(path: Path) -> TaskFileError:
    with pytest.raises(TaskFileError) as caught:
        read_tasks(path)
    return caught.value


@given(st.lists(tasks, min_size=1, max_size=4, unique_by=lambda task: task.id))
def test_tasks_that_are_written_are_read_back_equal(tmp_path_factory, written):
    path = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    write_tasks(path, written)
    assert read_tasks(path) == tuple(written)


def test_the_generated_family_is_read_back_equal(tmp_path):
    written = generate(seed=3, split="train", count=40)
    write_tasks(tmp_path / "tasks.jsonl", written)
    assert read_tasks(tmp_path / "tasks.jsonl") == written


def test_a_task_with_only_the_needed_keys_has_the_defaults(tmp_path):
    (task,) = read_tasks(write_lines(tmp_path / "t.jsonl", GOOD))
    assert task == Task(
        id=TaskId("t1"),
        instruction="Sort a.txt.",
        evaluator=EvaluatorSpec("files", {"checks": []}),
    )


def test_limits_of_a_line_are_the_limits_of_a_task():
    assert LimitsLine().model_dump() == {
        name: getattr(Limits(), name) for name in Limits.__dataclass_fields__
    }


def test_a_byte_order_mark_blank_lines_and_windows_line_ends_are_accepted(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\r\n" + json.dumps(GOOD).encode() + b"\r\n  \r\n")
    assert [task.id for task in read_tasks(path)] == ["t1"]


def test_a_line_separator_character_inside_a_text_does_not_end_the_line(tmp_path):
    line = json.dumps({**GOOD, "instruction": "a\u2028b\x85c"}, ensure_ascii=False)
    path = tmp_path / "t.jsonl"
    path.write_bytes(line.encode())
    assert read_tasks(path)[0].instruction == "a\u2028b\x85c"


def test_an_unknown_key_is_named_with_the_nearest_known_one(tmp_path):
    bad = {"instrction" if key == "instruction" else key: GOOD[key] for key in GOOD}
    error = complaint(write_lines(tmp_path / "t.jsonl", GOOD | {"id": "t0"}, "", bad))
    assert error.what == "unknown key `instrction`"
    assert error.where == f"{tmp_path}/t.jsonl:3"
    assert error.fix == "Did you mean `instruction`?"


def test_an_unknown_key_inside_another_one_is_compared_with_its_neighbours(tmp_path):
    error = complaint(write_lines(tmp_path / "t.jsonl", {**GOOD, "limits": {"run_sec": 3}}))
    assert error.what == "unknown key `limits.run_sec`"
    assert error.fix == "Did you mean `run_s`?"


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"files": {"/etc/x": ""}}, "absolute"),
        ({"files": {"a/../../x": ""}}, "leaves its folder"),
        ({"files": {"": ""}}, "empty"),
        ({"files": {"a//b": ""}}, "empty"),
        ({"files": {"./a": ""}}, "`.` part"),
        ({"files": {"a": "", "a/b": ""}}, "is a file and also the folder of"),
        ({"files": {"a\0": ""}}, "NUL"),
        ({"files": {"x" * 256: ""}}, "255 bytes"),
        ({"files": {"a": 3}}, "`files.a` is 3"),
        ({"files": ["a"]}, "`files` is ['a']"),
        ({"id": 7}, "`id` is 7"),
        ({"id": ""}, "`id` is ''"),
        ({"instruction": None}, "`instruction` is None"),
        ({"expert": "ls"}, "`expert` is 'ls'"),
        ({"limits": {"run_s": 0}}, "`limits.run_s` is 0"),
        ({"limits": {"max_calls": True}}, "`limits.max_calls` is True"),
        ({"limits": {"max_calls": "8"}}, "`limits.max_calls` is '8'"),
        ({"evaluator": "files"}, "`evaluator` is 'files'"),
        ({"evaluator": {"config": {}}}, "the key `evaluator.name` is missing"),
    ],
)
def test_a_wrong_value_is_named_with_its_line_and_a_remedy(tmp_path, change, what):
    error = complaint(write_lines(tmp_path / "t.jsonl", {**GOOD, **change}))
    assert what in error.what
    assert error.where == f"{tmp_path}/t.jsonl:1"
    assert error.fix


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("{", "not JSON"),
        ("# a comment", "not JSON"),
        ("[1]", "[1] is not an object"),
        ('"text"', "'text' is not an object"),
        ('{"id": "a", "id": "b"}', "'id' is there twice"),
        ('{"id": NaN}', "NaN is not a JSON number"),
        ('{"id": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "not usable as JSON"),
        ('{"id": ' + "9" * 5000 + "}", "not usable as JSON"),
    ],
)
def test_a_line_that_is_no_json_object_is_refused(tmp_path, line, what):
    error = complaint(write_lines(tmp_path / "t.jsonl", line))
    assert what in error.what
    assert error.where == f"{tmp_path}/t.jsonl:1"


def test_a_line_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b'\n{"id": "\xff"}\n')
    error = complaint(path)
    assert "not UTF-8" in error.what
    assert error.where == f"{path}:2"


def test_an_id_that_is_there_twice_names_both_lines(tmp_path):
    error = complaint(write_lines(tmp_path / "t.jsonl", GOOD, GOOD))
    assert error.what == "the id 't1' is already that of line 1"
    assert error.where == f"{tmp_path}/t.jsonl:2"


def test_all_broken_lines_are_named_at_once(tmp_path):
    path = write_lines(tmp_path / "t.jsonl", "{", GOOD, {**GOOD, "id": 3, "kid": "x"})
    error = complaint(path)
    assert error.what == "3 things are wrong in the task file"
    assert f"{path}:1: not JSON" in str(error)
    assert f"{path}:3: `id` is 3" in str(error)
    assert f"{path}:3: unknown key `kid`. Did you mean `kind`?" in str(error)


def test_after_twenty_broken_lines_the_rest_is_counted(tmp_path):
    error = complaint(write_lines(tmp_path / "t.jsonl", *["{"] * 25))
    assert "t.jsonl:20: not JSON" in str(error)
    assert "t.jsonl:21:" not in str(error)
    assert str(error).endswith("and 5 more")


@pytest.mark.parametrize("content", ["", "\n \n", "\ufeff"])
def test_a_file_without_tasks_is_refused(tmp_path, content):
    (tmp_path / "t.jsonl").write_text(content)
    assert complaint(tmp_path / "t.jsonl").what == "the file has no tasks"


def test_a_line_leaves_out_what_has_its_default(tmp_path):
    task = Task(TaskId("t1"), "Sort a.txt.", EvaluatorSpec("files", {"checks": []}))
    write_tasks(tmp_path / "t.jsonl", [task])
    assert json.loads((tmp_path / "t.jsonl").read_text()) == GOOD


def test_a_file_that_is_not_there_is_named(tmp_path):
    error = complaint(tmp_path / "none.jsonl")
    assert "No such file" in error.what
    assert error.where == str(tmp_path / "none.jsonl")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path):
    assert "Is a directory" in complaint(tmp_path).what


def test_a_task_that_has_no_json_form_is_not_written(tmp_path):
    task = Task(TaskId("t"), "x", EvaluatorSpec("files", {"checks": {1, 2}}))
    with pytest.raises(TaskFileError, match="no JSON form"):
        write_tasks(tmp_path / "t.jsonl", [task])
    assert list(tmp_path.iterdir()) == []


def test_a_task_whose_files_escape_is_not_written(tmp_path):
    task = Task(TaskId("t"), "x", EvaluatorSpec("files"), files={"../x": ""})
    with pytest.raises(TaskFileError, match="leaves its folder"):
        write_tasks(tmp_path / "t.jsonl", [task])


def test_a_task_file_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(TaskFileError, match="cannot be written"):
        write_tasks(tmp_path / "none" / "t.jsonl", generate(seed=0, split="train", count=1))
