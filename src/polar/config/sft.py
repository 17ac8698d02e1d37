"""The config of supervised fine-tuning on recorded sessions."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict

from polar.config.run import absolute_folder
from polar.train.settings import TrainSettings
from polar.train.sft_settings import SftSettings

__all__ = ["SftConfig"]


class SftConfig(BaseModel):
    """Everything that `polar sft` can be told."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, AfterValidator(absolute_folder)] = "smollm2-135m"
    """A name that Polar knows, a folder in Hugging Face format, or a hub id. With `--run` the
    default is the model that the run was started with."""
    sft: SftSettings = SftSettings()
    """Which recorded sessions are imitated, and how long."""
    train: TrainSettings = TrainSettings()
    """How the weights are trained: batches, precision, adapter, AdamW; what is about rewards and
    ratios has no effect here."""
