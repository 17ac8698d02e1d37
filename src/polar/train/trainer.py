"""The trainer: groups of sessions in, better weights out."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.errors import TrainingError
from polar.train.checkpoint import replace_folder, replacing_file
from polar.train.lessons import Lesson, group_lessons
from polar.train.loss import PolicyLoss, policy_loss
from polar.train.metrics import StepMetrics, SupervisedMetrics
from polar.train.policy import tree_logprobs
from polar.train.settings import TrainSettings
from polar.train.tally import Tally
from polar.train.tree_batch import TreeBatch, plan_batches
from polar.train.weights import Weights
from polar.types import FloatArray, Group, Trace, Trajectory

__all__ = ["Trainer"]

Progress = Callable[[float], None]
"""Told the share of the work that is done, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class _Minibatch:
    """The trees of one optimizer step."""

    batches: list[TreeBatch]
    advantages: FloatArray
    """float32 [traces]"""
    weights: FloatArray
    """float32 [traces]; each trained token's share of the loss."""
    dropped_tokens: int


class Trainer:
    """Trains a causal language model on trajectories.

    The model given is the one to sample from: what it computes follows every step, in place.

    Args:
        model: Any transformers causal language model with standard attention.
        settings: How to learn.
        clock: Seconds, for durations.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        settings: TrainSettings,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if settings.top_p != 1.0:
            raise TrainingError(
                f"rollouts with top_p={settings.top_p} cannot be trained on: the trainer knows the "
                "probabilities of the whole distribution only",
                fix="Set top_p to 1.0.",
            )
        self.model = model
        self.settings = settings
        self.weight_version = 0
        self.optimizer_steps = 0
        self._clock = clock
        self._order = np.random.default_rng(settings.seed)
        self._weights = Weights.of(
            model,
            dtype=getattr(torch, settings.dtype),
            train_embeddings=settings.train_embeddings,
            gradient_checkpointing=settings.gradient_checkpointing,
        )
        self._optimizer = self._new_optimizer()

    def step(self, groups: Sequence[Group], *, progress: Progress | None = None) -> StepMetrics:
        """Take the optimizer steps that the groups of one rollout are worth.

        Raises:
            TrainingError: The groups hold no trained token, or a loss or gradient is not finite
                (the weights are then as before the failing optimizer step).
        """
        started = self._clock()
        minibatches = self._plan(groups)
        tally = Tally(version=self.weight_version)
        if not minibatches:
            self._measure_gap(groups, tally)
        else:
            self._train(minibatches, tally, progress or _ignore)
            self.weight_version += 1
        return tally.metrics(
            weight_version=self.weight_version,
            lr=self._lr(self.settings.lr),
            groups=len(groups),
            groups_without_spread=sum(not group_lessons([g], self.settings) for g in groups),
            dropped_tokens=sum(m.dropped_tokens for m in minibatches),
            train_s=self._clock() - started,
        )

    def supervised(
        self,
        trajectories: Sequence[Trajectory],
        *,
        epochs: int,
        batch_sessions: int,
        lr: float,
        progress: Progress | None = None,
    ) -> SupervisedMetrics:
        """Maximise the likelihood of every sampled token of some sessions.

        The optimizer is a fresh one; its state does not carry over to `step`.

        Raises:
            TrainingError: There is no trained token, or a loss or gradient is not finite.
        """
        started = self._clock()
        optimizer = self._new_optimizer()
        losses, tokens, dropped, nodes, separate, steps = [], 0, 0, 0, 0, 0
        rounds = -(-len(trajectories) // batch_sessions) * epochs
        for _ in range(epochs):
            order = self._order.permutation(len(trajectories))
            nll, count = 0.0, 0
            for start in range(0, len(order), batch_sessions):
                chosen = [trajectories[i] for i in order[start : start + batch_sessions]]
                traces = [t for c in chosen for t in c.traces if t.loss_mask.any()]
                batches, long = plan_batches(traces, max_tokens=self.settings.max_tokens_per_batch)
                total = sum(b.sample_rows.size for b in batches)
                dropped += sum(int(traces[i].loss_mask.sum()) for i in long)
                for batch in batches:
                    logprobs, _ = self._forward(batch, temperature=1.0)
                    loss = -logprobs.sum() / total
                    self._backward(loss)
                    nll += float(loss.detach()) * total
                    nodes += batch.token_ids.size
                    separate += batch.sequence_tokens
                if total:
                    self._update(optimizer, lr)
                    steps += 1
                count += total
                if progress:
                    progress(steps / rounds)
            if count == 0:
                raise _nothing_to_train()
            losses.append(nll / count)
            tokens += count
        self.weight_version += 1
        return SupervisedMetrics(
            weight_version=self.weight_version,
            losses=tuple(losses),
            optimizer_steps=steps,
            trained_tokens=tokens,
            dropped_tokens=dropped,
            tree_tokens=nodes,
            sequence_tokens=separate,
            train_s=self._clock() - started,
        )

    @torch.no_grad()
    def logprobs(self, traces: Sequence[Trace]) -> list[FloatArray]:
        """Compute the logprobs of the trained tokens of some traces under the current weights.

        Returns:
            float32 [seq] for each trace; 0 where the loss mask is false.

        Raises:
            TrainingError: A trace is longer than `max_tokens_per_batch`.
        """
        batches, long = plan_batches(traces, max_tokens=self.settings.max_tokens_per_batch)
        if long:
            raise TrainingError(
                f"{len(long)} traces are longer than {self.settings.max_tokens_per_batch} tokens",
                fix="Raise max_tokens_per_batch.",
            )
        found = [np.zeros(trace.token_ids.size, np.float32) for trace in traces]
        for batch in batches:
            values = self._forward(batch)[0].cpu().numpy()
            for trace in np.unique(batch.sample_traces):
                mine = batch.sample_traces == trace
                found[trace][batch.sample_positions[mine]] = values[mine]
        return found

    def save(self, path: Path) -> None:
        """Write the model as a folder that `AutoModelForCausalLM.from_pretrained` loads."""
        replace_folder(path, self.model.save_pretrained)

    def save_state(self, path: Path) -> None:
        """Write all that `load_state` needs to go on exactly as if never stopped."""
        state = {
            "format": 1,
            "masters": [m.detach() for m in self._weights.masters()],
            "optimizer": self._optimizer.state_dict(),
            "optimizer_steps": self.optimizer_steps,
            "weight_version": self.weight_version,
            "order": self._order.bit_generator.state,
        }
        with replacing_file(path) as fresh:
            torch.save(state, fresh)

    def load_state(self, path: Path) -> None:
        """Go on from a saved state, weights included.

        Raises:
            TrainingError: The state belongs to another model or other settings.
        """
        state = torch.load(path, weights_only=True)
        masters = list(self._weights.masters())
        if [m.shape for m in masters] != [m.shape for m in state["masters"]]:
            raise TrainingError(
                "the saved state belongs to another model", where=str(path), fix="Check the run."
            )
        with torch.no_grad():
            for master, saved in zip(masters, state["masters"], strict=True):
                master.copy_(saved)
        self._weights.publish()
        self._optimizer.load_state_dict(state["optimizer"])
        self.optimizer_steps = state["optimizer_steps"]
        self.weight_version = state["weight_version"]
        self._order.bit_generator.state = state["order"]

    def _plan(self, groups: Sequence[Group]) -> list[_Minibatch]:
        if not any(t.loss_mask.any() for g in groups for c in g.trajectories for t in c.traces):
            raise _nothing_to_train()
        learnable = [g for g in groups if group_lessons([g], self.settings)]
        parts = min(self.settings.minibatches_per_step, len(learnable))
        planned = [
            self._minibatch(group_lessons(learnable[i::parts], self.settings)) for i in range(parts)
        ]
        return [m for m in planned if m.batches]

    def _minibatch(self, lessons: Sequence[Lesson]) -> _Minibatch:
        traces = [lesson.trace for lesson in lessons]
        batches, long = plan_batches(traces, max_tokens=self.settings.max_tokens_per_batch)
        return _Minibatch(
            batches=batches,
            advantages=np.array([lesson.advantage for lesson in lessons], np.float32),
            weights=np.array([lesson.weight for lesson in lessons], np.float32),
            dropped_tokens=sum(int(traces[i].loss_mask.sum()) for i in long),
        )

    def _train(self, minibatches: Sequence[_Minibatch], tally: Tally, progress: Progress) -> None:
        epochs = self.settings.epochs_per_step
        olds = self._old_logprobs(minibatches) if epochs * len(minibatches) > 1 else None
        work, done = epochs * sum(len(m.batches) for m in minibatches), 0
        for _ in range(epochs):
            for i, minibatch in enumerate(minibatches):
                for k, batch in enumerate(minibatch.batches):
                    result = self._learn(batch, minibatch, olds[i][k] if olds else None, tally)
                    self._backward(result.loss)
                    done += 1
                    progress(done / work)
                tally.add_update(self._update(self._optimizer, self.settings.lr))
                self.optimizer_steps += 1

    def _learn(
        self, batch: TreeBatch, minibatch: _Minibatch, old: Tensor | None, tally: Tally
    ) -> PolicyLoss:
        logprobs, entropies = self._forward(batch)
        engine = torch.from_numpy(batch.engine_logprobs).to(logprobs.device)
        if old is None:
            old = logprobs.detach() if self.settings.recompute else engine
        advantages = minibatch.advantages[batch.sample_traces]
        weights = minibatch.weights[batch.sample_traces]
        result = policy_loss(
            logprobs,
            old_logprobs=old,
            engine_logprobs=engine,
            advantages=torch.from_numpy(advantages).to(logprobs.device),
            weights=torch.from_numpy(weights).to(logprobs.device),
            settings=self.settings,
        )
        tally.add_batch(batch, logprobs.detach(), entropies, result)
        return result

    @torch.no_grad()
    def _old_logprobs(self, minibatches: Sequence[_Minibatch]) -> list[list[Tensor]] | None:
        if not self.settings.recompute:
            return None
        return [[self._forward(batch)[0] for batch in m.batches] for m in minibatches]

    @torch.no_grad()
    def _measure_gap(self, groups: Sequence[Group], tally: Tally) -> None:
        """Compare with the engine on one group, when there is nothing to train on."""
        traces = [t for g in groups[:1] for c in g.trajectories for t in c.traces]
        for batch in plan_batches(traces, max_tokens=self.settings.max_tokens_per_batch)[0]:
            tally.add_gap(batch, self._forward(batch)[0])

    def _forward(
        self, batch: TreeBatch, *, temperature: float | None = None
    ) -> tuple[Tensor, Tensor]:
        return tree_logprobs(
            self._weights.working,
            batch,
            temperature=self.settings.temperature if temperature is None else temperature,
            chunk=self.settings.logits_per_chunk,
        )

    def _backward(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            self._weights.clear_gradients()
            raise TrainingError(f"the loss is {float(loss)}", fix="Lower the learning rate.")
        loss.backward()
        self._weights.collect_gradients()

    def _update(self, optimizer: torch.optim.Optimizer, lr: float) -> float:
        """Take one optimizer step and return the gradient norm before clipping."""
        norm = torch.nn.utils.clip_grad_norm_(
            list(self._weights.masters()), self.settings.max_grad_norm
        )
        if not torch.isfinite(norm):
            self._weights.clear_gradients()
            raise TrainingError(
                f"the gradient norm is {float(norm)}", fix="Lower the learning rate."
            )
        for parameters in optimizer.param_groups:
            parameters["lr"] = self._lr(lr) if optimizer is self._optimizer else lr
        optimizer.step()
        self._weights.publish()
        self._weights.clear_gradients()
        return float(norm)

    def _lr(self, lr: float) -> float:
        warmup = self.settings.warmup_steps
        return lr * min(1.0, (self.optimizer_steps + 1) / warmup) if warmup else lr

    def _new_optimizer(self) -> torch.optim.AdamW:
        return torch.optim.AdamW(
            list(self._weights.masters()),
            lr=self.settings.lr,
            betas=self.settings.betas,
            weight_decay=self.settings.weight_decay,
            fused=True,
        )


def _ignore(_: float) -> None:
    """Tell nobody."""


def _nothing_to_train() -> TrainingError:
    return TrainingError(
        "there is no trained token in these sessions",
        fix="See why: `polar show SESSION` tells what was dropped.",
    )
