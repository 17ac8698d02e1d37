"""What a user can set about where metrics go."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["MetricsSettings"]


class MetricsSettings(BaseModel):
    """Where metrics go besides `metrics.jsonl` of the run folder."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    writers: tuple[Literal["tensorboard", "trackio", "wandb"], ...] = ()
    """Any of `tensorboard` (event files in the run folder), `trackio` and `wandb`; each needs its
    package: `pip install 'polar-rl[tensorboard]'`."""
    project: Annotated[str, Field(min_length=1)] = "polar"
    """Project that the run belongs to; for `trackio` and `wandb`. The run has the name of its
    folder."""
    wandb_mode: Literal["offline", "online"] = "offline"
    """`offline`: W&B's files stay in the run folder until `wandb sync`; `online`: they are sent."""
