"""One optimizer step: gradients checked, clipped, applied to the masters, and published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from polar.errors import TrainingError
from polar.train.ranks import Alone, Ranks
from polar.train.settings import TrainSettings
from polar.train.weights import Weights

__all__ = ["Optimizer"]


class Optimizer:
    """AdamW over the float32 masters, with linear warm-up and a guard against NaN.

    Args:
        weights: What is trained.
        settings: AdamW's parameters.
        lr: Learning rate after warm-up, in place of the settings'.
        warmup_steps: Steps of linear warm-up.
        ranks: Who holds the other parts of the masters; nobody if left out.
    """

    def __init__(
        self,
        weights: Weights,
        settings: TrainSettings,
        *,
        lr: float,
        warmup_steps: int,
        ranks: Ranks | None = None,
    ) -> None:
        self.steps = 0
        self._weights, self._ranks = weights, ranks or Alone()
        self._lr, self._warmup_steps = lr, warmup_steps
        self._max_grad_norm = settings.max_grad_norm
        self._adamw = torch.optim.AdamW(
            weights.masters,
            lr=lr,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=True,
        )

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        if self.steps >= self._warmup_steps:
            return self._lr
        return self._lr * (self.steps + 1) / self._warmup_steps

    def collect(self) -> None:
        """Move what was added to the gradients of the computing weights to the masters'."""
        self._weights.collect_gradients()

    def update(self) -> float:
        """Take the step and return the gradient norm before clipping.

        Raises:
            TrainingError: The gradient is not finite.
        """
        masters = self._weights.masters
        self._weights.finish_gradients()
        gradients = [master.grad for master in masters if master.grad is not None]
        norm = self._ranks.norm(torch.nn.utils.get_total_norm(gradients))
        torch.nn.utils.clip_grads_with_norm_(masters, self._max_grad_norm, norm)
        if not torch.isfinite(norm):
            raise TrainingError(f"the gradient norm is {norm}", fix="Lower the learning rate.")
        for group in self._adamw.param_groups:
            group["lr"] = self.lr
        self._adamw.step()
        self.steps += 1
        self._weights.clear_gradients()
        self._weights.publish()
        return float(norm)

    @contextmanager
    def all_or_nothing(self, *, steps: int) -> Iterator[None]:
        """Undo everything if an error, or a cancel, comes before the last of some steps.

        Args:
            steps: Optimizer steps planned inside; with one there is nothing to remember.
        """
        before = self._snapshot() if steps > 1 else None
        try:
            yield
        except BaseException:
            self._weights.clear_gradients()
            if before is not None:
                self._restore(before)
            raise

    def state(self) -> dict[str, Any]:
        """Everything that `load_state` needs, the masters included; tensors are not copied.

        What ranks hold in parts is put together in the main memory of rank 0, one tensor at a
        time, so that any number of ranks can go on from it; the others get nothing.
        """

        def kept(whole: Tensor) -> Tensor:
            if self._ranks.rank:
                return whole.new_empty(0)
            return whole if self._ranks.size == 1 else whole.cpu()

        adamw, trainables = self._adamw.state_dict(), self._weights.trainables
        moments = {
            i: {k: kept(trainables[i].whole(v)) if v.dim() else v for k, v in found.items()}
            for i, found in adamw["state"].items()
        }
        return {
            "masters": [kept(t.whole(t.master.detach())) for t in trainables],
            "adamw": adamw | {"state": moments},
            "steps": self.steps,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Take masters, moments and step count from a saved state.

        Raises:
            TrainingError: The state belongs to another model or other trained layers.
        """
        trainables = self._weights.trainables
        if [t.shape for t in trainables] != [m.shape for m in state["masters"]]:
            raise TrainingError(
                "the saved state belongs to another model, or to other trained layers",
                fix="Resume with the model and the settings that the run was started with.",
            )
        moments = {
            i: {k: trainables[i].part(v) if v.dim() else v for k, v in found.items()}
            for i, found in state["adamw"]["state"].items()
        }
        self._restore(
            {
                "masters": [t.part(m) for t, m in zip(trainables, state["masters"], strict=True)],
                "adamw": state["adamw"] | {"state": moments},
                "steps": state["steps"],
            }
        )

    @torch.no_grad()
    def _restore(self, state: dict[str, Any]) -> None:
        """Go back to a state of this rank's own parts."""
        for master, saved in zip(self._weights.masters, state["masters"], strict=True):
            master.copy_(saved)
        self._adamw.load_state_dict(state["adamw"])
        self.steps = state["steps"]
        self._weights.publish()

    def _snapshot(self) -> dict[str, Any]:
        """Copy this rank's own parts."""
        adamw = self._adamw.state_dict()
        moments = adamw["state"]
        return {
            "masters": [master.detach().clone() for master in self._weights.masters],
            "adamw": adamw
            | {"state": {i: {k: v.clone() for k, v in m.items()} for i, m in moments.items()}},
            "steps": self.steps,
        }
