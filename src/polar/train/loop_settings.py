"""What a user can set about the training loop."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["LoopSettings", "WarmStartSettings"]


class WarmStartSettings(BaseModel):
    """A short supervised start on an expert's trajectories, made through the same harness."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sessions: int = Field(default=0, ge=0)
    """Expert sessions to collect; 0 switches the warm start off."""
    epochs: int = Field(default=1, ge=1)
    """Passes over the expert's trajectories."""
    batch_sessions: int = Field(default=8, ge=1)
    """Sessions of an optimizer step."""
    lr: float = Field(default=2e-5, gt=0)
    """Learning rate of the warm start."""


class LoopSettings(BaseModel):
    """How long to train, on how much, and how often to look."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int = Field(default=20, ge=0)
    """Optimizer steps of reinforcement learning."""
    tasks_per_step: int = Field(default=4, ge=1)
    """Tasks (groups) of a step."""
    group_size: int = Field(default=8, ge=2)
    """Sessions of a task, over which advantages are computed."""
    max_staleness: int = Field(default=1, ge=0)
    """How many weight versions a trained token may be behind. From 1 on the sessions of up to
    that many coming steps are sampled while a step is trained, no more of them than keep training
    from waiting, and sampling stops only while the weights change. 0: sampling and training take
    turns."""
    late_groups: int = Field(default=0, ge=0)
    """How many of a step's groups training does not wait for once it has nothing else to do. The
    next step trains them, so nothing is lost for having taken long; it takes one of the weight
    versions that `max_staleness` allows."""
    refills: int = Field(default=0, ge=0)
    """How often a step collects fresh tasks in place of groups whose rewards do not differ."""
    shuffled_rewards: bool = False
    """A control experiment: each group's rewards are dealt out to its sessions at random, so that
    nothing can be learned. What the held-out tasks gain all the same is no effect of the rewards.
    """
    heldout_sessions: int = Field(default=64, ge=0)
    """Held-out tasks of an evaluation, one session each; 0 switches evaluation off."""
    evaluate_every: int | None = Field(default=None, ge=1)
    """Steps between evaluations on the held-out tasks; absent: only before and after."""
    save_every: int = Field(default=5, ge=1)
    """Steps between saves of the state that `--resume` needs; an interrupt saves too."""
    minutes: float | None = Field(default=None, gt=0)
    """Time budget of the whole run: no step is begun that would not leave time to evaluate."""
    warm_start: WarmStartSettings = WarmStartSettings()
    """The supervised warm start."""

    @property
    def depth(self) -> int:
        """Steps that are collected before their turn."""
        return self.max_staleness - bool(self.late_groups)

    @model_validator(mode="after")
    def _late_groups_are_young_enough(self) -> LoopSettings:
        if self.late_groups and not self.max_staleness:
            raise ValueError("late_groups needs max_staleness of 1 or more: late is a version old")
        if self.late_groups and self.late_groups >= self.tasks_per_step:
            raise ValueError(
                f"late_groups must be below tasks_per_step, which is {self.tasks_per_step}"
            )
        return self
