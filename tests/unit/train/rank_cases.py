"""What two ranks are made to train on, and one process for comparison.

Run by torchrun, it writes what rank 0 has found to a folder: `rank_cases.py FOLDER`.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch
from torch.distributed.tensor import DTensor
from train_cases import branching_traces, make_group, make_model, make_trace, make_trajectory

from polar.errors import TrainingError
from polar.train import LoraSettings, Trainer, TrainSettings
from polar.train.learner import End, Learner, follow
from polar.train.settings import KlSettings
from polar.train.torch_ranks import TorchRanks

STEPS = 3
LORA = LoraSettings(rank=3, alpha=8.0, target_modules=("q_proj", "v_proj", "up_proj"))
SMALL = {"max_tokens_per_batch": 40, "max_tokens_per_piece": 20}
WHOLE = {
    "llama in trees": ("llama", SMALL),
    "qwen3 in trees": ("qwen3", SMALL),
    "one trace for two ranks": ("llama", {}),
    "three trees for two ranks": ("qwen3", {"normalizer": "session_mean", "recompute": False}),
    "an adapter, a reference": (
        "qwen3",
        {"lora": LORA, "kl": KlSettings(coefficient=0.1), **SMALL},
    ),
    "bfloat16": ("llama", {"dtype": "bfloat16", **SMALL}),
    "several updates": (
        "llama",
        {"epochs_per_step": 2, "minibatches_per_step": 2, "gradient_checkpointing": True},
    ),
    "frozen layers": ("qwen3", {"train_embeddings": False, "frozen_layers": 1}),
}
TINY = {"shard": "layers", "max_tokens_per_batch": 24}
"""Trees of which the ranks have different numbers, some with gradient checkpointing."""
SHARDED = {
    "llama in layers": ("llama", TINY),
    "qwen3 in layers": ("qwen3", TINY),
    "gemma3 in layers": ("gemma3", TINY | {"entropy_coef": 0.1}),
    "sequences in layers": ("qwen3_5", {"shard": "layers"}),
    "one trace for two ranks in layers": ("llama", {"shard": "layers"}),
    "one trace for two ranks, of experts, in layers": ("experts", {"shard": "layers"}),
    "an adapter, a reference, in layers": (
        "qwen3",
        {"lora": LORA, "kl": KlSettings(coefficient=0.1), **TINY},
    ),
    "a reference in layers": (
        "llama",
        {"kl": KlSettings(coefficient=0.1, within="reward"), **TINY},
    ),
    "bfloat16 in layers": ("llama", {"dtype": "bfloat16", **TINY}),
    "several updates in layers": (
        "llama",
        {
            "epochs_per_step": 2,
            "minibatches_per_step": 2,
            "gradient_checkpointing": True,
            "kl": KlSettings(coefficient=0.1),
            **TINY,
        },
    ),
    "three trees in layers": (
        "qwen3",
        {"shard": "layers", "normalizer": "session_mean", "recompute": False},
    ),
    "frozen layers in layers": (
        "qwen3",
        {"train_embeddings": False, "frozen_layers": 1, "shard": "layers"},
    ),
}
CASES = WHOLE | SHARDED
"""Name -> family, settings."""


def groups_of(case: str):
    """The sessions of a step."""
    if case.startswith("one trace"):
        traces = [branching_traces()[0]]
    elif case.startswith("three trees"):
        traces = [make_trace(range(n, n + 20), range(5, 19)) for n in (3, 30, 60)]
    else:
        traces = branching_traces()
    sessions = [make_trajectory(t, reward=float(i % 2)) for i, t in enumerate(traces)]
    loser = make_trajectory(make_trace([5, 6, 7], [2]), reward=-1.0)
    return [make_group(*sessions, loser), make_group(*sessions[::-1], loser)]


def learn(trainer: Trainer, case: str, folder: Path) -> None:
    """Take the steps of a case, and write weights, metrics and state."""
    rows = []
    for step in range(STEPS):
        rows.append(asdict(trainer.step(groups_of(case))))
        if step == 0:
            trainer.save_state(folder / f"{case}.first")
    trainer.save_state(folder / f"{case}.last")
    torch.save({"rows": rows, "model": trainer.model.state_dict()}, folder / f"{case}.found")


def new_trainer(case: str, ranks: TorchRanks | None = None) -> Trainer:
    family, settings = CASES[case]
    return Trainer(make_model(family), settings_of(settings), ranks=ranks)


def settings_of(settings) -> TrainSettings:
    return TrainSettings(**({"lr": 1e-3} | settings))


@contextmanager
def followed(ranks: TorchRanks, case: str):
    """A trainer on rank 0, which the other follows until the block is left."""
    if ranks.rank:
        family, settings = CASES[case]
        follow(Learner(make_model(family), settings_of(settings), ranks))
        yield None
    else:
        yield new_trainer(case, ranks)
        ranks.tell([End()] * ranks.size)


def resume(ranks: TorchRanks, case: str, folder: Path) -> None:
    """Go on from the first step's state in a trainer of its own."""
    with followed(ranks, case) as trainer:
        if trainer is not None:
            trainer.load_state(folder / f"{case}.first")
            for _ in range(STEPS - 1):
                trainer.step(groups_of(case))
            trainer.save_state(folder / f"{case}.resumed")


def imitate(ranks: TorchRanks, case: str, folder: Path) -> None:
    with followed(ranks, case) as trainer:
        if trainer is not None:
            torch.save(imitated(trainer), folder / f"{case}.imitated")


def imitated(trainer: Trainer):
    """Losses of supervised training."""
    sessions = groups_of("llama in trees")[0].trajectories
    return trainer.supervised(sessions, epochs=2, batch_sessions=5, lr=1e-2).losses


def fail(ranks: TorchRanks, case: str, folder: Path) -> None:
    """Let one rank's loss be infinite, then stop from rank 0, then train."""
    with followed(ranks, case) as trainer:
        if trainer is None:
            return
        before = [p.clone() for p in trainer.model.parameters()]
        errors = [_error_of(trainer, _poisoned(place)) for place in range(3)]
        errors.append(_error_of(trainer, groups_of(case), progress=_stop))
        same = all(
            torch.equal(a, b) for a, b in zip(before, trainer.model.parameters(), strict=True)
        )
        trainer.step(groups_of(case))
        found = {"errors": errors, "same": same, "version": trainer.weight_version}
        torch.save(found, folder / f"{case}.failed")


def _poisoned(place: int):
    """Groups in which one trace, of three in turn, was sampled from a broken engine."""
    (good, *_) = groups_of("three trees for two ranks")
    sessions = list(good.trajectories)
    tokens = sessions[place].traces[0].token_ids
    trace = make_trace(tokens, range(5, 19), logprob=-1e38)
    sessions[place] = make_trajectory(trace, reward=-3.0)
    return [make_group(*sessions)]


def _error_of(trainer: Trainer, groups, **told) -> str:
    try:
        trainer.step(groups, **told)
    except (TrainingError, InterruptedError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _stop(_: float) -> None:
    raise InterruptedError("stopped")


def measure(ranks: TorchRanks, folder: Path) -> None:
    """Count the bytes of a deeper model's parameters that each rank holds, at rest and at most."""
    case = "llama in layers"
    family, settings = CASES[case]
    model = make_model(family, num_hidden_layers=8)
    whole = sum(p.nbytes for p in model.parameters())
    trainer = None if ranks.rank else Trainer(model, settings_of(settings), ranks=ranks)
    learner = Learner(model, settings_of(settings), ranks) if trainer is None else trainer._learner
    policy, gathered = learner.policy.model, [0]

    def count(*_) -> None:
        gathered.append(sum(p.nbytes for p in policy.parameters() if not isinstance(p, DTensor)))

    for module in policy.modules():
        module.register_forward_hook(count)
    if trainer is None:
        follow(learner)
    else:
        trainer.step(groups_of(case))
        trainer.logprobs([branching_traces()[0]])
        ranks.tell([End()] * ranks.size)
    parts = sum(p.to_local().nbytes for p in policy.parameters())
    moments = learner.optimizer._adamw.state_dict()["state"].values()
    adamw = sum(m[name].nbytes for m in moments for name in ("exp_avg", "exp_avg_sq"))
    found = {"whole": whole, "parts": parts, "gathered": max(gathered), "adamw": adamw}
    torch.save(found, folder / f"bytes.{ranks.rank}")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    ranks = TorchRanks(int(os.environ["LOCAL_RANK"]))
    for case in CASES:
        with followed(ranks, case) as trainer:
            if trainer is not None:
                learn(trainer, case, folder)
        resume(ranks, case, folder)
    for case in ("llama in trees", "llama in layers"):
        imitate(ranks, case, folder)
    for case in ("three trees for two ranks", "three trees in layers"):
        fail(ranks, case, folder)
    measure(ranks, folder)
    ranks.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
