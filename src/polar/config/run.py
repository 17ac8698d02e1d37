"""The config of a run: one section for each part, each declared by the part itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    SerializeAsAny,
    create_model,
    model_validator,
)

from polar.config.families import DEFAULT_NAMES, settings_model
from polar.gateway.settings import GatewaySettings
from polar.rollout.settings import RolloutSettings
from polar.store.settings import JournalSettings
from polar.tasks import Family
from polar.tasks.problems import Refused
from polar.train.loop_settings import LoopSettings
from polar.train.settings import TrainSettings
from polar.train.writers.settings import MetricsSettings

__all__ = [
    "EngineSection",
    "HarnessSection",
    "RunConfig",
    "RuntimeSection",
    "TasksSection",
    "absolute_folder",
    "installed_in",
    "specialised",
]


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


def absolute_folder(model: str) -> str:
    """Make a model that is a folder independent of where Polar is started."""
    folder = Path(model).expanduser()
    return str(folder.absolute()) if folder.is_dir() else model


InputFile = Annotated[Path, AfterValidator(_absolute)]
"""Absolute once read, so that a run can be resumed from any folder."""


class EngineSection(BaseModel):
    """What samples."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """A name of the engines family."""
    settings: SerializeAsAny[BaseModel]
    """The engine's own settings."""


class HarnessSection(BaseModel):
    """The agent program."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """A name of the harnesses family."""
    settings: SerializeAsAny[BaseModel]
    """The harness's own settings."""


class RuntimeSection(BaseModel):
    """Where the agent program runs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    """A name of the runtimes family; `auto`: bubblewrap where it works, else local processes
    with a warning."""
    settings: SerializeAsAny[BaseModel]
    """The runtime's own settings; `auto` has none."""


class TasksSection(BaseModel):
    """Which tasks to train on, and which to hold out.

    Paths are taken from the folder that Polar is started in.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    family: Family | None = None
    """A generated family: `shell` wants one command a task, `trail` three, each of which needs
    what the one before it printed; absent: `train` names a file."""
    train: InputFile | None = None
    """Task file to train on."""
    heldout: InputFile | None = None
    """Task file to evaluate on, before and after; absent: no evaluation."""
    train_count: int = Field(default=512, ge=1)
    """Generated tasks to train on."""
    heldout_count: int = Field(default=64, ge=0)
    """Generated held-out tasks."""
    heldout_seed: int = 1000
    """Seed of the generated held-out tasks, the same for every training seed."""


class RunConfig(BaseModel):
    """Everything that a run can be told. `load_config` makes it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[str, AfterValidator(absolute_folder)] = "smollm2-135m"
    """A name that Polar knows, a folder in Hugging Face format, or a hub id."""
    seed: int = 0
    """Seed of tasks, sampling order and training."""
    engine: EngineSection
    """What samples."""
    harness: HarnessSection
    """The agent program."""
    runtime: RuntimeSection
    """Where the agent program runs."""
    gateway: GatewaySettings = GatewaySettings()
    """The model boundary."""
    journal: JournalSettings = JournalSettings()
    """What is kept of each session."""
    tasks: TasksSection = TasksSection()
    """Which tasks to train on, and which to hold out."""
    rollout: RolloutSettings = RolloutSettings()
    """How sessions are run."""
    train: TrainSettings = TrainSettings()
    """How the policy learns."""
    loop: LoopSettings = LoopSettings()
    """How long to train, on how much, and how often to look."""
    metrics: MetricsSettings = MetricsSettings()
    """Where metrics go besides the run folder."""

    @model_validator(mode="after")
    def _sampled_as_trained(self) -> Self:
        """Refuse to train on another distribution than the one that is sampled from."""
        for name in ("temperature", "top_p", "top_k"):
            sampled, trained = getattr(self.rollout, name), getattr(self.train, name)
            if sampled != trained:
                raise Refused(
                    f"`train.{name}` is {trained}, but `rollout.{name}` is {sampled}",
                    fix="Set both to the same value.",
                    keys=(f"train.{name}", f"rollout.{name}"),
                )
        return self

    @model_validator(mode="after")
    def _steps_are_scored(self) -> Self:
        """Refuse credit by step where it would be the same as by outcome, or no control."""
        if self.train.credit == "outcome":
            return self
        if self.gateway.scorer is None and self.train.discount == 1.0:
            raise Refused(
                "`train.credit` is steps, and nothing scores them",
                fix="Name a `gateway.scorer`, or leave `train.credit` out.",
                keys=("train.credit", "train.discount", "gateway.scorer"),
            )
        if self.loop.shuffled_rewards:
            raise Refused(
                "`loop.shuffled_rewards` deals out the rewards of sessions, and `train.credit` is"
                " steps, whose scores would still tell what to learn",
                fix="Run the control with `train.credit` at outcome.",
                keys=("train.credit", "loop.shuffled_rewards"),
            )
        return self


_SECTIONS: Mapping[str, type[BaseModel]] = {
    "engine": EngineSection,
    "harness": HarnessSection,
    "runtime": RuntimeSection,
}


def specialised(data: Mapping[str, Any]) -> type[RunConfig]:
    """Make the run config whose sections have the settings of the implementations named in `data`.

    Raises:
        ConfigError: A family has no implementation of that name.
    """
    fields: dict[str, Any] = {}
    for key, section in _SECTIONS.items():
        name = _name(data.get(key), DEFAULT_NAMES[key])
        settings = settings_model(key, name)
        exact = create_model(
            section.__name__,
            __base__=section,
            name=(str, name),
            settings=(settings, Field(default={}, validate_default=True)),
        )
        fields[key] = (exact, Field(default_factory=exact, validate_default=True))
    return create_model("RunConfig", __base__=RunConfig, **fields)


def installed_in(cache: Path, data: dict[str, Any]) -> None:
    """Let the harness look for its installation in Polar's cache, unless `data` says where.

    Raises:
        ConfigError: There is no harness of that name.
    """
    declared = settings_model("harness", _name(data.get("harness"), DEFAULT_NAMES["harness"]))
    section = data.setdefault("harness", {})
    given = section.setdefault("settings", {}) if isinstance(section, dict) else None
    if "cache" in declared.model_fields and isinstance(given, dict):
        given.setdefault("cache", str(cache))


def _name(section: object, default: str) -> str:
    name = section.get("name", default) if isinstance(section, dict) else default
    return name if isinstance(name, str) else default
