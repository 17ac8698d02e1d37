import asyncio
import hashlib
import itertools
import subprocess
from collections import Counter

import pytest

from polar.evaluators import Evaluation, from_spec
from polar.tasks import generate, lay_out, write_tasks
from polar.tasks.shell_kinds import HELDOUT_KINDS, TRAIN_KINDS
from polar.tasks.shell_scene import _NAMES, _WORDS

SPLITS = ("train", "heldout")
FAMILIES = ("shell", "trail")


def shell(command, work_dir):
    return subprocess.check_output(["sh", "-c", command], cwd=work_dir, text=True)


class NoRuntime:
    """The `files` evaluator starts no sandbox."""


def grade(task, work_dir):
    evaluation = Evaluation(task=task, work_dir=work_dir, runtime=NoRuntime())
    return asyncio.run(from_spec(task.evaluator).grade(evaluation))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("split", SPLITS)
def test_the_expert_solves_every_task_and_an_untouched_folder_does_not(
    tmp_path, split, seed, family
):
    for task in generate(seed=seed, split=split, count=40, family=family):
        work = tmp_path / task.id
        work.mkdir()
        lay_out(task.files, work)
        before = grade(task, work)
        assert not before.passed, task
        assert before.reward == 0
        for command in task.expert:
            subprocess.run(["sh", "-c", command], cwd=work, check=True)
        after = grade(task, work)
        assert after.passed, (task, after)
        assert after.reward == 1


@pytest.mark.parametrize("split", SPLITS)
def test_a_copy_of_the_input_is_no_solution_of_a_filter(tmp_path, split):
    for task in generate(seed=5, split=split, count=60):
        results = [c for c in task.evaluator.config["checks"] if "equals" in c]
        if task.kind.startswith(("copy", "rename")):
            continue
        assert all(c["equals"] not in task.files.values() for c in results), task


@pytest.mark.parametrize("split", SPLITS)
def test_a_source_that_is_destroyed_costs_the_reward(tmp_path, split):
    for task in generate(seed=6, split=split, count=40, partial_weight=0.5):
        guarded = [c["path"] for c in task.evaluator.config["checks"] if "unchanged" in c]
        if not guarded:
            continue
        work = tmp_path / task.id
        work.mkdir()
        lay_out(task.files, work)
        subprocess.run(["sh", "-c", task.expert[0]], cwd=work, check=True)
        (work / guarded[0]).write_text("spoilt")
        assert grade(task, work).reward == 0


def test_an_output_with_the_right_name_and_the_wrong_text_is_worth_part_of_the_weight(tmp_path):
    tasks = generate(seed=0, split="train", count=22, partial_weight=0.2)
    task = next(task for task in tasks if task.kind == "sort")
    lay_out(task.files, tmp_path)
    (tmp_path / task.evaluator.config["checks"][0]["path"]).write_text("wrong")
    assert grade(task, tmp_path).reward == pytest.approx(0.1)


def test_kinds_for_training_and_held_out_kinds_do_not_overlap():
    train, held_out = ({kind.name for kind in kinds} for kinds in (TRAIN_KINDS, HELDOUT_KINDS))
    assert not train & held_out
    assert len(train) == len(TRAIN_KINDS) >= 12
    assert len(held_out) == len(HELDOUT_KINDS) >= 6


def test_no_held_out_command_is_one_for_training():
    def tools(kinds):
        return {kind.command.partition("{")[0] for kind in kinds if "{a}" in kind.command}

    assert not tools(TRAIN_KINDS) & tools(HELDOUT_KINDS)


@pytest.mark.parametrize("split", SPLITS)
def test_kinds_come_equally_often(split):
    kinds = Counter(task.kind for task in generate(seed=1, split=split, count=100))
    assert max(kinds.values()) - min(kinds.values()) <= 1


@pytest.mark.parametrize("split", SPLITS)
def test_a_smaller_count_gives_the_beginning_of_a_larger_one(split):
    assert generate(seed=4, split=split, count=50)[:23] == generate(seed=4, split=split, count=23)


def test_ids_are_unique_over_families_splits_and_seeds():
    drawn = [
        task.id
        for family in FAMILIES
        for split in SPLITS
        for seed in range(4)
        for task in generate(seed=seed, split=split, count=64, family=family)
    ]
    assert len(drawn) == len(set(drawn))


def test_another_seed_gives_other_tasks():
    first, second = (generate(seed=seed, split="train", count=64) for seed in (0, 1))
    assert not {task.instruction for task in first} >= {task.instruction for task in second}


@pytest.mark.parametrize("split", SPLITS)
def test_instructions_and_commands_are_short(split):
    for task in generate(seed=2, split=split, count=200):
        assert len(task.instruction.split()) <= 20
        assert len(task.expert) == 1
        assert len(task.expert[0]) <= 60


@pytest.mark.parametrize("split", SPLITS)
def test_a_trail_tells_neither_the_folder_nor_the_file_and_each_step_shows_the_next(
    tmp_path, split
):
    for task in generate(seed=3, split=split, count=60, family="trail"):
        (found,) = (path for path in task.files if "/" in path)
        folder, _, name = found.partition("/")
        assert name not in task.instruction
        assert folder not in task.instruction.replace("words of", "").split()
        work = tmp_path / task.id
        work.mkdir()
        lay_out(task.files, work)
        read, look, solve = task.expert
        assert shell(read, work) == f"{folder}\n"
        assert look == f"ls {folder}"
        assert shell(look, work) == f"{name}\n"
        assert found in solve


def test_no_held_out_trail_ends_in_a_command_for_training():
    train, held_out = (
        {task.kind for task in generate(seed=0, split=split, count=60, family="trail")}
        for split in SPLITS
    )
    assert not train & held_out
    assert len(train) >= 12
    assert len(held_out) >= 10


def test_no_word_is_part_of_another_so_that_grep_is_exact():
    assert not [(a, b) for a in _WORDS for b in _WORDS if a != b and a in b]
    assert len(set(_NAMES)) == len(_NAMES) >= 40


def test_the_tasks_of_a_seed_are_the_same_for_ever(tmp_path):
    digests = {}
    for family, split in itertools.product(FAMILIES, SPLITS):
        path = tmp_path / f"{family}-{split}"
        write_tasks(path, generate(seed=0, split=split, count=64, family=family))
        digests[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    assert digests == {
        "shell-train": "dccea829848b9ce3",
        "shell-heldout": "a066c92ebcf4c0c1",
        "trail-train": "5bf90f1c3ffb19e3",
        "trail-heldout": "b35c4250729d0bec",
    }
