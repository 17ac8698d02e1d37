"""Settings of the rollout stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from polar.trajectory import BuildPolicy

__all__ = ["RolloutSettings"]

TrainableKind = Literal["main", "subagent", "auxiliary", "compaction"]
"""Kinds of calls that may train; those of the agent's own shell never do."""


class RolloutSettings(BaseModel):
    """How sessions are run: pool sizes, sampling, budgets, builder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    prepare_workers: int = Field(default=2, ge=1)
    """Sandboxes being started at the same time."""
    ready_buffer: int = Field(default=2, ge=1)
    """Started sandboxes that may wait for a run slot."""
    run_workers: int = Field(default=16, ge=1)
    """Harness processes at the same time; at best the engine's concurrency."""
    grade_workers: int = Field(default=2, ge=1)
    """Graders at the same time."""
    max_attempts: int = Field(default=2, ge=1)
    """Attempts of a session that failed through no fault of the model (sandbox, engine)."""
    broken_harness: Literal["grade", "fail"] = "grade"
    """What becomes of a session whose harness itself broke, as its preset reads the exit. `grade`:
    its work is judged all the same. `fail`: it has failed and is tried again, unless a limit was
    what ended it: its last call was refused, or the last reply was cut."""
    stop_after_failures: int | None = Field(default=32, ge=1)
    """Sessions in a row that end without a grade before the run is stopped; absent: never."""
    temperature: float = Field(default=1.0, gt=0)
    """Sampling temperature of training and evaluation, whatever the harness asks for."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus of training and evaluation; below 1 the sampled distribution is truncated."""
    top_k: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """How many of the likeliest tokens are sampled from, whatever the harness asks for; with a
    number the sampled distribution is truncated."""
    max_tokens: int = Field(default=256, ge=1)
    """Most sampled tokens of a call."""
    max_calls: int | None = Field(default=None, ge=1)
    """Most calls of a session, where that is fewer than its task allows."""
    builder: Literal["prefix_merging", "per_request", "canonical"] = "prefix_merging"
    """How calls become traces; `canonical` is for engines that render every history anew."""
    max_trace_tokens: int = Field(default=8192, ge=1)
    """Longest trace; the exact causal prefix is kept, the rest dropped with its reason."""
    train_kinds: Annotated[tuple[TrainableKind, ...], Field(min_length=1)] = ("main", "subagent")
    """Kinds of calls that train: those of the agent itself, of its sub-agents, its side calls
    (`auxiliary`: titles, summaries of output), and its summaries of a conversation that became too
    long (`compaction`). Others are dropped as `kind_auxiliary` and so on."""
    train_abandoned: bool = False
    """Whether what was sampled trains although the client left before the reply was complete, as
    when a time limit ends the session; else it is dropped as `abandoned`."""

    @property
    def build_policy(self) -> BuildPolicy:
        """What of a session trains."""
        return BuildPolicy(
            kinds=frozenset(self.train_kinds),
            drop_abandoned=not self.train_abandoned,
            max_trace_tokens=self.max_trace_tokens,
        )
