"""Two ranks learn what one process learns, and all of them or none."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from rank_cases import CASES, STEPS, groups_of, imitated, new_trainer
from torch.distributed.fsdp import FSDPModule
from train_cases import branching_traces, make_model, make_trace

from polar.errors import ConfigError
from polar.train import Trainer, TrainSettings
from polar.train.deal import deal
from polar.train.ranks import Alone
from polar.train.tree_batch import plan_batches

QUIET = {"TRANSFORMERS_VERBOSITY": "error"}
"""Recurrent layers tell on every start that there are faster kernels."""


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> Path:
    """What two processes under torchrun have written, without a warning or a stray line."""
    folder = tmp_path_factory.mktemp("ranks")
    script = Path(__file__).with_name("rank_cases.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*launcher, "--nproc-per-node", "2", str(script), str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | QUIET | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return folder


def distance(first, second) -> float:
    """Of two lists of tensors, relative to the second."""
    pairs = list(zip(first, second, strict=True))
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    return (apart / sum(float(b.square().sum()) for _, b in pairs)) ** 0.5


def gradients(path: Path):
    """AdamW's first moments, which are the clipped gradient after the first step."""
    moments = torch.load(path)["optimizer"]["adamw"]["state"]
    return [moments[i]["exp_avg"] for i in sorted(moments)]


# Elements whose gradient is next to nothing move by the sign of its rounding error; the moments
# of narrow products round differently where trees are cut otherwise.
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("case", "tolerance"),
    [(case, {"bfloat16": 0.02, "bfloat16 in layers": 0.05}.get(case, 1e-4)) for case in CASES],
)
def test_two_ranks_have_the_gradients_and_take_the_steps_of_one_process(
    found, case, tolerance, tmp_path
):
    trainer = new_trainer(case)
    before = [value.clone() for value in trainer.model.state_dict().values()]
    rows = [asdict(trainer.step(groups_of(case)))]
    trainer.save_state(tmp_path / "first")
    rows += [asdict(trainer.step(groups_of(case))) for _ in range(STEPS - 1)]

    if not case.startswith("several updates"):
        expected = gradients(tmp_path / "first")
        assert distance(gradients(found / f"{case}.first"), expected) < tolerance
    by_two = torch.load(found / f"{case}.found")
    learned = zip(trainer.model.state_dict().values(), by_two["model"].values(), strict=True)
    moved = [(a - b, a - c) for (a, b), c in zip(learned, before, strict=True)]
    assert distance([a - m for m, a in moved], [a for _, a in moved]) < max(tolerance, 1e-3)
    for row, expected in zip(by_two["rows"], rows, strict=True):
        how_cut = {"train_s", "tree_tokens", "sequence_tokens", "tree_saving"}
        for name in row.keys() - how_cut:
            if row[name] != expected[name]:  # absent in both where nothing was measured
                assert row[name] == pytest.approx(expected[name], rel=tolerance, abs=1e-3), name


@pytest.mark.parametrize("case", CASES)
def test_ranks_that_go_on_from_a_saved_state_end_with_the_very_same_weights(found, case):
    unkilled, resumed = (torch.load(found / f"{case}.{end}") for end in ("last", "resumed"))
    assert unkilled["weight_version"] == resumed["weight_version"] == STEPS
    assert distance(unkilled["optimizer"]["masters"], resumed["optimizer"]["masters"]) == 0.0


@pytest.mark.parametrize(
    "case",
    [
        "qwen3 in trees",
        "an adapter, a reference",
        "qwen3 in layers",
        "an adapter, a reference, in layers",
    ],
)
def test_one_process_goes_on_from_the_state_of_two(found, case, tmp_path):
    trainer = new_trainer(case)
    trainer.load_state(found / f"{case}.first")
    for _ in range(STEPS - 1):
        trainer.step(groups_of(case))
    trainer.save_state(tmp_path / "state")
    of_two = torch.load(found / f"{case}.last")["optimizer"]["masters"]
    assert distance(torch.load(tmp_path / "state")["optimizer"]["masters"], of_two) < 1e-4


@pytest.mark.parametrize("case", ["llama in trees", "llama in layers"])
def test_two_ranks_imitate_as_one_process_does(found, case):
    assert torch.load(found / f"{case}.imitated") == pytest.approx(
        imitated(new_trainer(case)), rel=1e-4
    )


def test_every_rank_holds_half_of_the_parameters_and_gathers_one_layer_at_a_time(found):
    for rank in range(2):
        held = torch.load(found / f"bytes.{rank}")
        whole = held["whole"]
        assert held["parts"] == pytest.approx(whole / 2, rel=0.02)
        assert held["adamw"] == pytest.approx(whole, rel=0.02)
        # The embedding, which is the head too, and one of eight layers.
        assert whole / 8 < held["gathered"] < whole / 4


@pytest.mark.parametrize("case", ["three trees for two ranks", "three trees in layers"])
def test_what_fails_on_one_rank_is_undone_on_all_and_training_goes_on(found, case):
    failed = torch.load(found / f"{case}.failed")
    *broken, stopped = failed["errors"]
    assert all("the loss is " in error for error in broken)
    assert any("rank 1" in error for error in broken)
    assert any("rank 1" not in error for error in broken)
    assert stopped == "InterruptedError: stopped"
    assert failed["same"]
    assert failed["version"] == 1


def test_a_process_alone_imports_nothing_of_several():
    code = "import polar.train.trainer, sys; print('polar.train.torch_ranks' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


class OneOfTwo(Alone):
    """A rank that must not need the other yet."""

    size = 2


def test_a_pytorch_that_cannot_divide_layers_is_refused_before_anything_is_divided(monkeypatch):
    monkeypatch.delattr(FSDPModule, "reset_iter_state")
    model = make_model()
    with pytest.raises(ConfigError, match=r"PyTorch 2\.13 or newer, and this is") as refused:
        Trainer(model, TrainSettings(shard="layers"), ranks=OneOfTwo())
    assert refused.value.where == "train.shard"
    assert all(type(p) is torch.nn.Parameter for p in model.parameters())


def tokens(hand) -> int:
    return sum(batch.token_ids.size for batch in hand)


def planned(traces):
    return lambda size: plan_batches(traces, max_tokens=size, max_trace_tokens=1000)[0]


def test_a_tree_is_cut_so_that_ranks_have_about_as_much_to_do():
    traces = [make_trace([5, *range(n, n + 30)], [3]) for n in range(6, 46, 5)]
    hands = deal(planned(traces), max_tokens=10_000, ranks=4)
    assert max(map(tokens, hands)) < 1.1 * min(map(tokens, hands))
    assert sorted(t for h in hands for b in h for t in b.sample_traces) == list(range(8))


def test_one_trace_leaves_the_other_ranks_without_work():
    traces = [make_trace(range(30), [3])]
    hands = deal(planned(traces), max_tokens=10, ranks=3)
    assert [tokens(hand) for hand in hands] == [30, 0, 0]


def test_traces_that_share_nearly_everything_are_not_torn_apart():
    prompt = [*range(3, 83)]
    traces = [make_trace([*prompt, n], [80]) for n in range(3, 7)]
    (first, second) = deal(planned(traces), max_tokens=1000, ranks=2)
    assert (tokens(first), tokens(second)) in {(84, 0), (82, 82)}


def test_a_long_prompt_is_computed_once_a_rank_and_not_once_a_session():
    prompt = [*range(3, 83)]
    traces = [make_trace([*prompt, *[n] * 10], range(80, 90)) for n in range(3, 11)]
    hands = deal(planned(traces), max_tokens=None, ranks=2)
    assert [tokens(hand) for hand in hands] == [80 + 4 * 10] * 2


def test_alone_a_plan_is_left_as_it_is():
    traces = branching_traces()
    (hand,) = deal(planned(traces), max_tokens=40, ranks=1)
    assert [b.token_ids.tolist() for b in hand] == [
        b.token_ids.tolist() for b in planned(traces)(40)
    ]
