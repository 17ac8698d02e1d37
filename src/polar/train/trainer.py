"""The trainer: groups of sessions in, better weights out."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.advantages import Rewards
from polar.train.checkpoint import check_state, replace_folder, replacing_file
from polar.train.deal import deal
from polar.train.learner import STATE_FORMAT, Collect, Imitate, Learn, Learner, Load, Measure
from polar.train.lessons import Credited, credited_groups, lessons, overlong_tokens
from polar.train.memory import reusing_memory, room_for
from polar.train.metrics import StepMetrics, SupervisedMetrics
from polar.train.passes import Minibatch
from polar.train.ranks import Ranks
from polar.train.settings import TrainSettings
from polar.train.standing import is_graded, is_truncated, teaching_groups
from polar.train.step_advantages import unscored_calls
from polar.train.supervised import plan_supervised
from polar.train.tally import Tally
from polar.train.tree_batch import TreeBatch, plan_batches
from polar.types import FloatArray, Group, Trace, Trajectory

__all__ = ["Trainer"]

Progress = Callable[[float], None]
"""Told the done share of the work, from 0 to 1; an exception it raises undoes the step."""


class Trainer:
    """Trains a causal language model on trajectories.

    The model given is the one to sample from: what it computes follows every step, in place.

    Args:
        model: Any transformers causal language model; those with standard attention share prefixes.
        settings: How to learn.
        clock: Seconds, for durations.
        ranks: Other processes that compute shares of each step and wait for what this one, rank 0,
            tells them (`polar.train.learner.follow`); nobody if left out.

    Raises:
        TrainingError: The model or the sampling cannot be trained on exactly.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainSettings,
        *,
        clock: Callable[[], float] = time.perf_counter,
        ranks: Ranks | None = None,
    ) -> None:
        for name, whole in (("top_p", 1.0), ("top_k", "all")):
            if (value := getattr(settings, name)) != whole:
                raise TrainingError(
                    f"rollouts with {name}={value} cannot be trained on: their probabilities are "
                    "not those of the whole distribution",
                    fix=f"Set {name} to {whole}.",
                )
        self.model = model
        self.settings = settings
        self.weight_version = 0
        self._clock = clock
        self._learner = Learner(model, settings, ranks)
        self._ranks = self._learner.ranks
        self._policy = self._learner.policy
        self._reference = self._learner.reference

    @property
    def notice(self) -> str | None:
        """What somebody who trains this model should know about how it is trained."""
        return self._learner.notice

    @reusing_memory()
    def step(
        self,
        groups: Sequence[Group],
        *,
        progress: Progress | None = None,
        before_update: Callable[[], None] | None = None,
    ) -> StepMetrics:
        """Take the optimizer steps that the groups of one rollout are worth.

        Without a group whose rewards differ no step is taken, and the weight version stays; so it
        does if no session was graded.

        Args:
            groups: The sessions to learn from.
            progress: Told the done share of the work.
            before_update: Called before weights change; nothing may sample from then on until
                the step has returned.

        Raises:
            TrainingError: The groups hold no trained token, or one that the model does not know, a
                loss or gradient is not finite, or the GPU is full; the weights are as they were.
        """
        started = self._clock()
        _validate(groups)
        sessions = [t for group in groups for t in group.trajectories]
        self._check_vocabulary(sessions)
        tally = Tally(version=self.weight_version, lr=self._learner.optimizer.lr)
        if self.settings.credit == "steps":
            tally.unscored_calls = unscored_calls(sessions)
        learnable = [credited for credited in self._credited(groups, tally) if credited]
        minibatches = self._minibatches(learnable)
        if minibatches:
            self._tell(Learn(hand, self.weight_version) for hand in minibatches)
            with room_for(batch for m in minibatches[0] for batch in m.batches):
                self._learner.learn(
                    minibatches[0],
                    tally,
                    progress=progress or _ignore,
                    before_update=before_update or _nothing,
                )
            self.weight_version += 1
        else:
            self._measure_gap(groups, tally)
        return tally.metrics(
            weight_version=self.weight_version,
            groups=len(groups),
            groups_without_spread=len(groups) - len(learnable),
            truncated_sessions=sum(is_truncated(t, self.settings) for t in sessions),
            dropped_tokens=overlong_tokens(groups, self.settings),
            train_s=self._clock() - started,
        )

    @reusing_memory()
    def supervised(
        self,
        trajectories: Sequence[Trajectory],
        *,
        epochs: int,
        batch_sessions: int,
        lr: float,
        progress: Progress | None = None,
    ) -> SupervisedMetrics:
        """Raise the likelihood of every sampled token of some sessions, at temperature 1.

        The optimizer is a fresh one; its moments do not carry over to `step`.

        Args:
            trajectories: Sessions to imitate.
            epochs: Passes over them.
            batch_sessions: Sessions of one optimizer step.
            lr: Learning rate.
            progress: Told the done share of the work.

        Raises:
            TrainingError: There is no trained token, one that the model does not know, or a loss
                or gradient is not finite; the weights are then as they were.
        """
        started = self._clock()
        self._check_vocabulary(trajectories)
        plan = plan_supervised(
            trajectories,
            epochs=epochs,
            batch_sessions=batch_sessions,
            settings=self.settings,
            order=np.random.default_rng([self.settings.seed, self.weight_version]),
            share=self._policy.shares_prefixes,
            most_nodes=self._policy.most_nodes(self.settings.max_tokens_per_batch),
            ranks=self._ranks.size,
        )
        if not plan.batches:
            raise _nothing_to_train()
        hands = [plan.hand(rank) for rank in range(self._ranks.size)]
        self._tell(Imitate(hand, lr) for hand in hands)
        with room_for(hands[0].batches):
            losses = self._learner.imitate(hands[0], lr=lr, progress=progress or _ignore)
        self.weight_version += 1
        return SupervisedMetrics(
            weight_version=self.weight_version,
            losses=losses,
            optimizer_steps=len(plan.steps),
            trained_tokens=sum(b.sample_rows.size for b in plan.batches),
            dropped_tokens=plan.dropped_tokens,
            tree_tokens=sum(b.token_ids.size for b in plan.batches),
            sequence_tokens=sum(b.sequence_tokens for b in plan.batches),
            train_s=self._clock() - started,
        )

    @reusing_memory()
    def logprobs(self, traces: Sequence[Trace]) -> list[FloatArray]:
        """Compute the logprobs of the trained tokens of some traces under the current weights.

        Returns:
            float32 [seq] for each trace; 0 where the loss mask is false.

        Raises:
            TrainingError: A trace is longer than `max_trace_tokens`.
        """
        batches, long = self._trees(traces)
        if long:
            raise TrainingError(
                f"{len(long)} traces are longer than {self.settings.max_trace_tokens} tokens",
                fix="Raise max_trace_tokens.",
            )
        found = [np.zeros(trace.token_ids.size, np.float32) for trace in traces]
        for batch, logprobs in zip(batches, self._measured(batches), strict=True):
            values = logprobs.cpu().numpy()
            for trace in np.unique(batch.sample_traces):
                mine = batch.sample_traces == trace
                found[trace][batch.sample_positions[mine]] = values[mine]
        return found

    def save(self, path: Path, *, beside: Sequence[Path] = ()) -> None:
        """Write the model as a folder that `AutoModelForCausalLM.from_pretrained` loads.

        Args:
            path: The folder, made or replaced.
            beside: Files to copy into it, as those of the tokenizer.
        """

        def write(folder: Path) -> None:
            self.model.save_pretrained(folder)
            for file in beside:
                shutil.copyfile(file, folder / file.name)

        replace_folder(path, write)

    def save_state(self, path: Path) -> None:
        """Write to a file all that `load_state` needs to go on as if never stopped."""
        self._tell([Collect()] * self._ranks.size)
        state = {
            "format": STATE_FORMAT,
            "optimizer": self._learner.state(),
            "weight_version": self.weight_version,
        }
        with replacing_file(path) as fresh:
            torch.save(state, fresh)

    def load_state(self, path: Path) -> None:
        """Go on from a saved state, weights included, of any number of ranks.

        Raises:
            TrainingError: The state is damaged, has another format or belongs to another model.
        """
        check_state(path)
        self._tell([Load(path)] * self._ranks.size)
        self.weight_version = self._learner.load(path)

    def _measured(
        self, batches: Sequence[TreeBatch], *, reference: bool = False
    ) -> list[torch.Tensor]:
        """Compute the logprobs of some trees without gradient, on this rank."""
        if self._policy.lockstep is not None:
            self._tell([Measure(reference)] * self._ranks.size)
        return self._learner.measure(batches, reference=reference)

    def _tell(self, orders: Iterable[Learn | Imitate | Measure | Collect | Load]) -> None:
        """Say to every rank what it has to do now."""
        self._ranks.tell(list(orders))

    def _check_vocabulary(self, trajectories: Sequence[Trajectory]) -> None:
        """Refuse sessions of a model with another tokenizer, which may come from any file."""
        known = self.model.config.get_text_config().vocab_size
        traces = (trace for trajectory in trajectories for trace in trajectory.traces)
        largest = max((int(trace.token_ids.max(initial=0)) for trace in traces), default=0)
        if largest >= known:
            raise TrainingError(
                f"the sessions hold the token {largest}, and the model knows {known} tokens",
                fix="Name the model that sampled them, or one with the same tokenizer.",
            )

    def _credited(self, groups: Sequence[Group], tally: Tally) -> list[list[Credited]]:
        kl = self.settings.kl
        if kl is None or kl.within == "loss":
            return credited_groups(groups, self.settings)
        spread = teaching_groups(groups, self.settings)
        divergences = [self._divergence(group) for group in spread]
        tokens = sum(
            int(t.loss_mask.sum()) for g in spread for c in g.trajectories for t in c.traces
        )
        tally.kl = float(sum(d.sum() for d in divergences)) / tokens if tokens else None
        return credited_groups(spread, self.settings, divergences)

    def _minibatches(self, learnable: Sequence[Sequence[Credited]]) -> list[tuple[Minibatch, ...]]:
        """Divide the groups that teach something among the optimizer steps of a pass.

        Returns:
            The minibatches of each rank; nothing if there is nothing to learn.
        """
        parts = min(self.settings.minibatches_per_step, len(learnable))
        found = [self._minibatch(learnable[i::parts]) for i in range(parts)]
        dealt = [hands for hands in found if any(hand.batches for hand in hands)]
        return list(zip(*dealt, strict=True))

    def _minibatch(self, credited: Sequence[Sequence[Credited]]) -> list[Minibatch]:
        """Plan one optimizer step and deal it to the ranks."""
        found = lessons(credited, self.settings)
        traces = [lesson.trace for lesson in found]
        hands = deal(
            partial(self._trees_of, traces),
            max_tokens=self._policy.most_nodes(self.settings.max_tokens_per_batch),
            ranks=self._ranks.size,
        )
        advantages = np.concatenate([np.zeros(0, np.float32), *(x.advantages for x in found)])
        starts = np.cumsum([0, *(trace.token_ids.size for trace in traces)])[:-1]
        weights = np.array([lesson.weight for lesson in found], np.float32)
        return [Minibatch(hand, advantages, starts, weights) for hand in hands]

    def _divergence(self, group: Group) -> Rewards:
        """How much likelier each session is than under the reference, in nats: [sessions]."""
        owners = [i for i, c in enumerate(group.trajectories) for _ in c.traces]
        found = np.zeros(len(group.trajectories))
        batches, _ = self._trees([t for c in group.trajectories for t in c.traces])
        now, then = self._measured(batches), self._measured(batches, reference=True)
        for batch, new, old in zip(batches, now, then, strict=True):
            change = new - old
            np.add.at(found, np.array(owners)[batch.sample_traces], change.cpu().numpy())
        return found

    def _measure_gap(self, groups: Sequence[Group], tally: Tally) -> None:
        """Compare with the engine on one group, when there is nothing to train on."""
        for group in groups:
            batches, _ = self._trees([t for c in group.trajectories for t in c.traces])
            for batch, logprobs in zip(batches, self._measured(batches), strict=True):
                tally.add_gap(batch, logprobs)
            if tally.gap_samples:
                return

    def _trees(self, traces: Sequence[Trace]) -> tuple[list[TreeBatch], tuple[int, ...]]:
        most = self._policy.most_nodes(self.settings.max_tokens_per_batch)
        return self._planned(traces, most)

    def _trees_of(self, traces: Sequence[Trace], max_tokens: int | None) -> list[TreeBatch]:
        return self._planned(traces, max_tokens)[0]

    def _planned(
        self, traces: Sequence[Trace], max_tokens: int | None
    ) -> tuple[list[TreeBatch], tuple[int, ...]]:
        return plan_batches(
            traces,
            max_tokens=max_tokens,
            max_trace_tokens=self.settings.max_trace_tokens,
            share=self._policy.shares_prefixes,
        )


def _ignore(_: float) -> None:
    """Tell nobody."""


def _nothing() -> None:
    """Do nothing."""


def _validate(groups: Sequence[Group]) -> None:
    """Refuse a step whose work was graded and holds nothing sampled, or without any logprobs.

    Where no session was graded all broke, which is counted elsewhere, and the run goes on.
    """
    sessions = [trajectory for group in groups for trajectory in group.trajectories]
    traces = [t for session in sessions for t in session.traces if t.loss_mask.any()]
    if not traces and any(is_graded(session.outcome) for session in sessions):
        raise _nothing_to_train()
    if traces and not any(trace.logprobs[trace.loss_mask].any() for trace in traces):
        raise TrainingError(
            "every sampled token of the step has the logprob 0: the engine's were not recorded",
            fix="Check the engine: `polar doctor` probes it. Supervised training needs none.",
        )


def _nothing_to_train() -> TrainingError:
    return TrainingError(
        "there is no trained token in these sessions",
        fix="See why: `polar show SESSION` tells what was dropped.",
    )
