"""One optimizer step: gradients checked, clipped, applied to the masters, and published."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from polar.errors import TrainingError
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
    """

    def __init__(
        self, weights: Weights, settings: TrainSettings, *, lr: float, warmup_steps: int
    ) -> None:
        self.steps = 0
        self._weights = weights
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
        norm = torch.nn.utils.clip_grad_norm_(self._weights.masters, self._max_grad_norm)
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
                self.load_state(before)
            raise

    def state(self) -> dict[str, Any]:
        """Everything that `load_state` needs, the masters included; tensors are not copied."""
        return {
            "masters": [master.detach() for master in self._weights.masters],
            "adamw": self._adamw.state_dict(),
            "steps": self.steps,
        }

    @torch.no_grad()
    def load_state(self, state: dict[str, Any]) -> None:
        """Take masters, moments and step count from a saved state.

        Raises:
            TrainingError: The state belongs to another model or other trained layers.
        """
        masters = self._weights.masters
        if [m.shape for m in masters] != [m.shape for m in state["masters"]]:
            raise TrainingError(
                "the saved state belongs to another model, or to other trained layers",
                fix="Resume with the model and the settings that the run was started with.",
            )
        for master, saved in zip(masters, state["masters"], strict=True):
            master.copy_(saved)
        self._adamw.load_state_dict(state["adamw"])
        self.steps = state["steps"]
        self._weights.publish()

    def _snapshot(self) -> dict[str, Any]:
        state = self.state()
        moments = state["adamw"]["state"]
        return {
            "masters": [master.clone() for master in state["masters"]],
            "adamw": state["adamw"]
            | {"state": {i: {k: v.clone() for k, v in m.items()} for i, m in moments.items()}},
            "steps": state["steps"],
        }
