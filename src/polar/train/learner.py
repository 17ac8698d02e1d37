"""What every rank does: holds the model, and takes optimizer steps over its share of the trees."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, assert_never

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.errors import RankLost, TrainingError
from polar.train.kernels import choose_kernel
from polar.train.lockstep import for_each, idle_tree
from polar.train.logits import Shaping
from polar.train.memory import reusing_memory
from polar.train.optimizer import Optimizer
from polar.train.passes import Minibatch, Passes
from polar.train.policy import Policy
from polar.train.ranks import Alone, Ranks, Undone, exposed
from polar.train.reference import Reference
from polar.train.settings import TrainSettings
from polar.train.supervised import SupervisedPlan, run_supervised
from polar.train.tally import Tally
from polar.train.tree_batch import TreeBatch
from polar.train.weights import Weights

__all__ = ["Collect", "End", "Imitate", "Learn", "Learner", "Load", "Measure", "follow"]

STATE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Learn:
    """Take the optimizer steps of reinforcement learning over these trees."""

    minibatches: tuple[Minibatch, ...]
    version: int
    """Weight version before them."""


@dataclass(frozen=True, slots=True)
class Imitate:
    """Take the optimizer steps of supervised training over these trees."""

    plan: SupervisedPlan
    lr: float


@dataclass(frozen=True, slots=True)
class Measure:
    """Make rank 0's passes without gradient with it, where it cannot make them alone."""

    reference: bool
    """Whether they are through the reference."""


@dataclass(frozen=True, slots=True)
class Collect:
    """Put the state together at rank 0."""


@dataclass(frozen=True, slots=True)
class Load:
    """Go on from a saved state."""

    path: Path


@dataclass(frozen=True, slots=True)
class End:
    """The training is over."""


Order = Learn | Imitate | Measure | Collect | Load | End


class Learner:
    """A model with its optimizer, or one rank's part of it.

    Args:
        model: The user's; of several ranks only the first keeps it and gives it new weights.
        settings: How to learn.
        ranks: Who learns with this process; nobody if left out.

    Raises:
        TrainingError: The model cannot be trained exactly.
    """

    def __init__(
        self, model: PreTrainedModel, settings: TrainSettings, ranks: Ranks | None = None
    ) -> None:
        self.ranks: Ranks = ranks or Alone()
        self._settings = settings
        shaping = Shaping.of(model)  # before ranks divide it
        self._weights = Weights.of(model, settings, self.ranks)
        kernel, self._no_flex = choose_kernel(self._weights.working)
        self.policy = Policy(
            self._weights.working,
            temperature=settings.temperature,
            logits_per_chunk=settings.logits_per_chunk,
            piece_tokens=settings.max_tokens_per_piece,
            kernel=kernel,
            shares_prefixes=self._weights.obstacle is None,
            checkpoint_above=0
            if settings.gradient_checkpointing
            else settings.max_tokens_per_batch,
            lockstep=self._weights.shards,
            shaping=shaping,
        )
        self.reference = (
            Reference.of(model, self.policy, self._weights.adapters, self._weights.shards)
            if settings.kl
            else None
        )
        self.optimizer = self._new_optimizer(settings.lr, settings.warmup_steps)

    @property
    def notice(self) -> str | None:
        """What somebody who trains this model should know about how it is trained."""
        if self._weights.obstacle is None:
            return None if self._no_flex is None else f"attention is slow: {self._no_flex}"
        return (
            "every session of this model is trained as a sequence of its own, without sharing "
            f"prefixes: {self._weights.obstacle}"
        )

    def learn(
        self,
        minibatches: Sequence[Minibatch],
        tally: Tally,
        *,
        progress: Callable[[float], None],
        before_update: Callable[[], None],
    ) -> None:
        """Take one optimizer step a minibatch and epoch, and count what all ranks did.

        Raises:
            TrainingError: A loss or gradient is not finite, or another rank failed.
        """
        kl = self._settings.kl
        passes = Passes(
            policy=self.policy,
            reference=self.reference if kl is not None and kl.within == "loss" else None,
            optimizer=self.optimizer,
            settings=self._settings,
            tally=tally,
            ranks=self.ranks,
        )
        passes.run(minibatches, progress=progress, before_update=before_update)
        for other in self.ranks.gathered(tally)[1:]:
            tally.add_rank(other)

    def imitate(
        self, plan: SupervisedPlan, *, lr: float, progress: Callable[[float], None]
    ) -> tuple[float, ...]:
        """Take the planned steps at temperature 1 with a fresh optimizer.

        Returns:
            The mean negative log-likelihood of a sampled token in each epoch.
        """
        optimizer = self._new_optimizer(lr, warmup_steps=0)
        policy = replace(self.policy, temperature=1.0)
        with optimizer.all_or_nothing(steps=len(plan.steps)):
            return run_supervised(policy, optimizer, plan, progress, self.ranks)

    def measure(self, batches: Sequence[TreeBatch], *, reference: bool = False) -> list[Tensor]:
        """Compute logprobs without gradient: float32 [samples] of each batch.

        Args:
            batches: The trees; none on ranks that only accompany rank 0.
            reference: Whether under the reference, and not under the policy.
        """
        found: list[Tensor] = []

        def logprobs(batch: TreeBatch) -> Tensor:
            if reference:
                assert self.reference is not None
                return self.reference.logprobs(batch)
            return self.policy.measure(batch)[0]

        if self.policy.lockstep is None:
            return [logprobs(batch) for batch in batches]
        for_each(
            batches,
            lambda batch: found.append(logprobs(batch)),
            ranks=self.ranks,
            idle=lambda: logprobs(idle_tree()),
        )
        return found

    def state(self) -> dict[str, Any]:
        """Put together what `load` needs; the same whatever the number of ranks."""
        with exposed(self.ranks):
            return self.optimizer.state()

    def load(self, path: Path) -> int:
        """Go on from a saved state and return its weight version.

        Raises:
            TrainingError: The state has another format or belongs to another model.
        """
        where = "cpu" if self.ranks.size > 1 else self.policy.model.device
        state = torch.load(path, weights_only=True, map_location=where, mmap=self.ranks.size > 1)
        if state["format"] != STATE_FORMAT:
            raise TrainingError(
                f"the saved state has format {state['format']}, not {STATE_FORMAT}",
                where=str(path),
                fix="Resume with the version of Polar that wrote it.",
            )
        self.optimizer.load_state(state["optimizer"])
        version: int = state["weight_version"]
        return version

    def _new_optimizer(self, lr: float, warmup_steps: int) -> Optimizer:
        return Optimizer(
            self._weights, self._settings, lr=lr, warmup_steps=warmup_steps, ranks=self.ranks
        )


def follow(learner: Learner) -> None:
    """Do what rank 0 says, until it ends the training.

    What fails on this rank alone is told to rank 0, which undoes it everywhere.

    Raises:
        RankLost: Rank 0 or another rank is gone.
    """
    while not isinstance(order := learner.ranks.hear(), End):
        try:
            _obey(learner, order)  # type: ignore[arg-type]  # rank 0 sends nothing else
        except RankLost:
            raise
        except (Undone, TrainingError):
            continue


@reusing_memory()
def _obey(learner: Learner, order: Learn | Imitate | Measure | Collect | Load) -> None:
    match order:
        case Learn(minibatches, version):
            tally = Tally(version=version, lr=learner.optimizer.lr)
            learner.learn(minibatches, tally, progress=_ignore, before_update=_nothing)
        case Imitate(plan, lr):
            learner.imitate(plan, lr=lr, progress=_ignore)
        case Measure(reference):
            learner.measure((), reference=reference)
        case Collect():
            learner.state()
        case Load(path):
            learner.load(path)
        case _:
            assert_never(order)


def _ignore(_: float) -> None:
    """Tell nobody."""


def _nothing() -> None:
    """Do nothing."""
