"""Grades by what is in the work folder, without running anything of the agent's."""

from __future__ import annotations

import asyncio
import posixpath
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from polar.errors import RuntimeFailed
from polar.evaluators.base import Evaluation
from polar.evaluators.pattern import PatternTimeout, search
from polar.evaluators.settings import read_settings
from polar.evaluators.work_folder import Missing, Unreadable, WorkFolder
from polar.tasks.paths import check_path
from polar.tasks.problems import Refused
from polar.types import Grade

__all__ = ["Check", "FilesEvaluator", "FilesSettings"]

_PATTERN_TIMEOUT_S = 5.0
_MAX_NAMED = 20


class Check(BaseModel):
    """One thing that must hold in the work folder: a path and exactly one condition."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    path: str
    """Relative to the work folder."""
    strip: bool = False
    """With `equals`: white space at both ends of the file and of the text does not matter."""
    equals: str | None = None
    """The file holds exactly this text."""
    contains: str | None = None
    """The file holds this text somewhere."""
    matches: str | None = None
    """A Python regular expression that is found somewhere in the file."""
    lines_any_order: list[str] | None = None
    """The file holds exactly these lines, in any order."""
    unchanged: Literal[True] | None = None
    """The file is as the task laid it out. A guard: see `FilesSettings.partial_weight`."""
    exists: Literal[True] | None = None
    """Something is there: a file, a folder or a link."""
    absent: Literal[True] | None = None
    """Nothing is there."""
    is_dir: Literal[True] | None = None
    """A folder is there, or a link to one in the work folder."""
    executable: bool | None = None
    """Whether the owner may execute the file."""
    mode: str | None = Field(None, pattern="^[0-7]{3,4}$")
    """The permissions of the file or folder in octal, like `755`."""
    link_to: str | None = None
    """A symbolic link is there that leads to this path."""

    @field_validator("path")
    @classmethod
    def _stay_inside(cls, path: str) -> str:
        return check_path(path)

    @field_validator("matches")
    @classmethod
    def _compile(cls, pattern: str | None) -> str | None:
        try:
            re.compile(pattern or "")
        except re.error as error:
            what = f"{pattern!r} is no regular expression: {error}"
            raise Refused(what, fix="Write it as for Python's `re`.") from error
        return pattern

    @model_validator(mode="after")
    def _one_condition(self) -> Self:
        given = [name for name in _CONDITIONS if getattr(self, name) is not None]
        if len(given) != 1:
            found = f"has {', '.join(given)}" if given else "has no condition"
            raise Refused(found, fix=f"Give exactly one of: {', '.join(_CONDITIONS)}.")
        if self.strip and self.equals is None:
            raise Refused("`strip` has no use here", fix="Give it with `equals` only.")
        return self

    @property
    def condition(self) -> str:
        """Name of the one condition that is given."""
        return next(name for name in _CONDITIONS if getattr(self, name) is not None)


class FilesSettings(BaseModel):
    """Settings of the `files` evaluator."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    checks: list[Check] = Field(min_length=1)
    """All of them must hold for the task to be passed."""
    nothing_else: bool = False
    """Whether every file must be one that the task laid out or that a check names. A guard."""
    partial_weight: float = Field(0.0, ge=0, lt=1)
    """Reward of a failed task: this times the share of checks that hold.

    Guards (`unchanged`, `nothing_else`) hold before the agent has done anything: they do not count
    in the share, and a broken one makes the reward 0.
    """
    max_bytes: int = Field(1 << 20, gt=0)
    """A larger file fails its check unread."""


class FilesEvaluator:
    """Reward 1 if all checks hold, else `partial_weight` times the share that do."""

    def __init__(self, settings: FilesSettings) -> None:
        self._settings = settings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make one from plain settings (`FilesSettings`)."""
        return cls(read_settings(FilesSettings, config, name="files"))

    async def grade(self, evaluation: Evaluation) -> Grade:
        """Look at each path once; nothing is executed.

        Raises:
            RuntimeFailed: An `unchanged` check names a file that the task does not lay out.
        """
        return await asyncio.to_thread(self._grade, evaluation)

    def _grade(self, evaluation: Evaluation) -> Grade:
        settings = self._settings
        look = _Look(WorkFolder(evaluation.work_dir, settings.max_bytes), evaluation.task.files)
        failures = [(check, look.failure(check)) for check in settings.checks]
        failed = [f"{check.path} {why}" for check, why in failures if why is not None]
        guard_broken = any(why is not None for check, why in failures if check.unchanged)
        if settings.nothing_else:
            extra = look.unexpected(settings.checks)
            failed += extra
            guard_broken = guard_broken or bool(extra)
        counted = [why for check, why in failures if not check.unchanged]
        share = sum(why is None for why in counted) / len(counted) if counted else 0.0
        passed = not failed
        partial = 0.0 if guard_broken else settings.partial_weight * share
        reward = 1.0 if passed else partial
        return Grade(reward=reward, passed=passed, details={"failed": failed})


@dataclass(frozen=True, slots=True)
class _Look:
    folder: WorkFolder
    laid_out: Mapping[str, str]

    def failure(self, check: Check) -> str | None:
        """Say why a check does not hold; absent if it does."""
        try:
            return _CONDITIONS[check.condition](self, check)
        except (Unreadable, PatternTimeout) as error:
            return str(error)

    def unexpected(self, checks: list[Check]) -> list[str]:
        """Name what the task did not lay out and no check names, up to a limit."""
        expected = frozenset({*self.laid_out, *(check.path for check in checks)})
        try:
            found = islice(self.folder.unexpected(expected), _MAX_NAMED)
            return [f"{path} should not be there" for path in found]
        except Unreadable as error:
            return [str(error)]

    def equals(self, check: Check) -> str | None:
        text, wanted = self._text(check), check.equals or ""
        if check.strip:
            text, wanted = text.strip(), wanted.strip()
        return None if text == wanted else "does not equal the expected text"

    def contains(self, check: Check) -> str | None:
        found = (check.contains or "") in self._text(check)
        return None if found else "does not contain the expected text"

    def matches(self, check: Check) -> str | None:
        found = search(check.matches or "", self._text(check), timeout_s=_PATTERN_TIMEOUT_S)
        return None if found else "does not match the pattern"

    def lines_any_order(self, check: Check) -> str | None:
        same = sorted(self._text(check).splitlines()) == sorted(check.lines_any_order or ())
        return None if same else "does not have the expected lines"

    def unchanged(self, check: Check) -> str | None:
        if check.path not in self.laid_out:
            what = f"`unchanged` names {check.path}, which the task does not lay out"
            raise RuntimeFailed(what, fix="Add it to the task's `files` or remove the check.")
        same = self._text(check) == self.laid_out[check.path]
        return None if same else "has been changed"

    def exists(self, check: Check) -> str | None:
        self.folder.status(check.path)
        return None

    def absent(self, check: Check) -> str | None:
        try:
            self.folder.status(check.path)
        except Missing:
            return None
        return "is still there"

    def is_dir(self, check: Check) -> str | None:
        is_folder = stat.S_ISDIR(self.folder.target_status(check.path).st_mode)
        return None if is_folder else "is not a folder"

    def executable(self, check: Check) -> str | None:
        may = bool(self._mode(check) & stat.S_IXUSR)
        return None if may == check.executable else f"is{'' if may else ' not'} executable"

    def mode(self, check: Check) -> str | None:
        mode = self._mode(check)
        return None if mode == int(check.mode or "", 8) else f"has the mode {mode:o}"

    def link_to(self, check: Check) -> str | None:
        target = self.folder.link_target(check.path)
        same = posixpath.normpath(target) == posixpath.normpath(check.link_to or "")
        return None if same else f"leads to {target}"

    def _mode(self, check: Check) -> int:
        return stat.S_IMODE(self.folder.target_status(check.path).st_mode)

    def _text(self, check: Check) -> str:
        try:
            return self.folder.read(check.path).decode()
        except UnicodeDecodeError as error:
            raise Unreadable("is not UTF-8 text") from error


_CONDITIONS: Mapping[str, Callable[[_Look, Check], str | None]] = MappingProxyType(
    {
        "equals": _Look.equals,
        "contains": _Look.contains,
        "matches": _Look.matches,
        "lines_any_order": _Look.lines_any_order,
        "unchanged": _Look.unchanged,
        "exists": _Look.exists,
        "absent": _Look.absent,
        "is_dir": _Look.is_dir,
        "executable": _Look.executable,
        "mode": _Look.mode,
        "link_to": _Look.link_to,
    }
)
