"""How far a run is: what is saved for a resumed run, and what its evaluations found."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path

from polar.errors import ConfigError
from polar.train.checkpoint import replacing_file

__all__ = ["Evaluation", "Late", "LoopState", "wilson_interval"]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Held-out pass@1 with its 95% interval (Wilson score, one session a task)."""

    passed: int
    sessions: int
    pass_at_1: float
    low: float
    high: float
    rollout_s: float


@dataclass(frozen=True, slots=True)
class Late:
    """A group that its step did not wait for; the next step trains it."""

    step: int
    """The step whose task it is."""
    place: int
    """The task's number within that step."""


@dataclass(frozen=True, slots=True)
class LoopState:
    """What a resumed run needs to know besides the trainer's own state."""

    step: int
    """Finished steps."""
    warm_started: bool
    before: Evaluation | None
    spent_s: float
    """Wall time of earlier processes of this run."""
    weight_version: int
    """Version of the weights; it names the trainer's state that belongs to this one."""
    evaluated: int = 0
    """The last step after which the held-out tasks were measured, between the first and the last
    evaluation."""
    late: tuple[Late, ...] = ()
    """Groups that the last finished step did not wait for."""

    def trainer_path(self, folder: Path) -> Path:
        """Name the file of the trainer's state."""
        return folder / f"trainer-{self.weight_version:05d}"

    def save(self, path: Path) -> None:
        """Write atomically."""
        with replacing_file(path) as fresh:
            fresh.write_text(json.dumps({"version": 1, **asdict(self)}, indent=1))

    @classmethod
    def load(cls, path: Path) -> LoopState:
        """Read a saved state.

        Raises:
            ConfigError: It is missing, broken or of another version.
        """
        try:
            raw = json.loads(path.read_text())
            version, before = raw.pop("version"), raw.pop("before")
            late = tuple(Late(**each) for each in raw.pop("late", []))
            if version != 1:
                raise ValueError(f"it has version {version}, not 1")
            return cls(before=Evaluation(**before) if before else None, late=late, **raw)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ConfigError(
                f"the run's state cannot be read: {error}",
                where=str(path),
                fix="Start a new run, or name another run folder.",
            ) from error

    def has(self, phase: str, step: int) -> bool:
        """Tell whether a resumed run counts a row of metrics, or makes it again."""
        match phase:
            case "train":
                return step <= self.step
            case "warm_start":
                return self.warm_started
            case "heldout_before":
                return self.before is not None
            case "heldout":
                return step <= self.evaluated
            case _:
                return False


def wilson_interval(passed: int, total: int) -> tuple[float, float]:
    """Compute the 95% Wilson score interval of a proportion.

    Source: E. B. Wilson, 1927, J. Am. Stat. Assoc. 22, 209.
    """
    if total == 0:
        return 0.0, 1.0
    z = 1.959964
    share = passed / total
    centre = (share + z * z / (2 * total)) / (1 + z * z / total)
    half = z * math.sqrt(share * (1 - share) / total + z * z / (4 * total**2)) / (1 + z * z / total)
    return max(0.0, centre - half), min(1.0, centre + half)
