"""Where things are in a run folder, and what its config says about reading it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from polar.config import parse_config
from polar.config.documents import read_document
from polar.errors import ConfigError
from polar.rollout.settings import RolloutSettings

__all__ = ["RunFolder", "chosen_run", "newest_run"]


class _Stored(BaseModel):
    """The part of a resolved config that reading a run needs; the rest may want torch."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str
    rollout: RolloutSettings


@dataclass(frozen=True, slots=True)
class RunFolder:
    """A folder that a run wrote."""

    path: Path

    @classmethod
    def at(cls, path: Path) -> RunFolder:
        """Take a folder that a user named.

        Raises:
            ConfigError: There is none.
        """
        if not path.is_dir():
            raise ConfigError(
                "there is no such run folder",
                where=str(path),
                fix="Check the path; a run folder is what --run named, or is in ./runs.",
            )
        return cls(path)

    @property
    def journal(self) -> Path:
        """The journal of all sessions and calls."""
        return self.path / "journal.sqlite"

    @property
    def tape(self) -> Path:
        """What the engine saw and sampled, recorded at the engine."""
        return self.path / "engine.tape"

    def worker_tape(self, number: int) -> Path:
        """Give the tape of a worker of the gateway, counted from 1."""
        return self.tape.with_name(f"{self.tape.name}.{number}")

    def tapes(self) -> tuple[Path, ...]:
        """List the tapes that there are: a run may have been resumed with other workers."""
        own = [self.tape] if self.tape.exists() else []
        return (*own, *sorted(self.path.glob(f"{self.tape.name}.*")))

    @property
    def expert_tape(self) -> Path:
        """The same of the scripted expert, where there was a warm start."""
        return self.path / "expert.tape"

    @property
    def engine_log(self) -> Path:
        """What happened to the engine's servers; absent where nothing did."""
        return self.path / "engine.log"

    @property
    def log(self) -> Path:
        """What went wrong without ending the run, with tracebacks; absent where nothing did."""
        return self.path / "run.log"

    @property
    def home(self) -> Path:
        """The private home of a harness that ran in the user's own folder."""
        return self.path / "home"

    def tables(self) -> tuple[Path, ...]:
        """List the Parquet files of trajectories."""
        return tuple(sorted((self.path / "trajectories").glob("*.parquet")))

    def model(self) -> str:
        """Read which model the run used."""
        return self._stored().model

    def rollout(self) -> RolloutSettings:
        """Read how sessions became trajectories."""
        return self._stored().rollout

    def _stored(self) -> _Stored:
        path = self.path / "config.yaml"
        return parse_config(read_document(path), _Stored, where=str(path))


def chosen_run(*named: Path | None, data: Path) -> RunFolder:
    """Take the run folder that an argument or a flag names, or the newest one.

    Args:
        named: What the user gave, at most one of them.
        data: Polar's data folder.

    Raises:
        ConfigError: There is no such folder, or two are named.
    """
    given = [path for path in named if path is not None]
    if len(given) > 1:
        raise ConfigError(
            "two run folders are named",
            where=" and ".join(map(str, given)),
            fix="Name one, as RUN or with --run.",
        )
    return RunFolder.at(given[0]) if given else newest_run(data=data)


def newest_run(root: Path = Path("runs"), *, data: Path | None = None) -> RunFolder:
    """Find the run folder whose journal was written last.

    Args:
        root: Where to look first.
        data: Polar's data folder, whose `runs` are looked at where `root` has none.

    Raises:
        ConfigError: There is none.
    """
    journals = _journals(root) or ([] if data is None else _journals(data / "runs"))
    if not journals:
        raise ConfigError(
            "there is no run folder here",
            where=str(root.absolute()),
            fix="Name one with --run DIR, or make one with `polar demo` or `polar run`.",
        )
    return RunFolder(journals[-1].parent)


def _journals(root: Path) -> list[Path]:
    return sorted(root.glob("*/journal.sqlite"), key=lambda path: path.stat().st_mtime)
