"""Grades by running a grader over a copy of the work in a new sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator

from polar.errors import RuntimeFailed
from polar.evaluators.base import Evaluation
from polar.evaluators.settings import read_settings
from polar.runtimes.base import ExecResult, ProcessSpec, SandboxSpec
from polar.runtimes.scratch import scratch_folder
from polar.tasks.paths import check_paths, lay_out
from polar.types import Grade

__all__ = ["CommandEvaluator", "CommandSettings"]

_SHELL_COULD_NOT_RUN_IT = (126, 127)
_REWARD_LINE = re.compile(r"reward:\s*(-?[0-9.]+(?:e-?[0-9]+)?)\s*", re.IGNORECASE)
_SHOWN_CHARS = 2000


class CommandSettings(BaseModel):
    """Settings of the `command` evaluator."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    run: str = Field(min_length=1)
    """A shell command, started in a copy of the work folder; `$GRADER` is the folder of `files`."""
    files: dict[str, str] = Field(default_factory=dict)
    """Files of the grader (path -> text), in a folder that the agent never sees."""
    reward: Literal["exit_code", "last_line"] = "exit_code"
    """Where the reward is read.

    `exit_code`: 1 for exit code 0, else 0. `last_line`: the last line of the output must be
    `reward: X` with X from 0 to 1; anything else is 0. Choose `exit_code`, or print the reward from
    a process that does not run the agent's code, where that code could print one of its own.
    """
    pass_at: float = Field(1.0, gt=0, le=1)
    """From which reward on the task counts as passed."""
    timeout_s: float = Field(30.0, gt=0)
    """A grader that runs longer is killed and the reward is 0: the agent's work may be what hangs.

    Keep it below the task's `limits.grade_s`.
    """
    max_work_mb: int = Field(256, gt=0)
    """A larger work folder is not copied and the reward is 0."""

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        check_paths(files)
        return files


class CommandEvaluator:
    """Reward by a grader's exit code or last line of output.

    The grader gets a sandbox of its own without network, and in it a copy of the work: so it may
    write, and the agent's folder stays as it was. What the agent can cause (a failing, hanging or
    crashing grader) is a reward of 0; only a sandbox that does not start, or a command that the
    shell cannot find or execute, is a broken grader.
    """

    def __init__(self, settings: CommandSettings) -> None:
        self._settings = settings

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self:
        """Make one from plain settings (`CommandSettings`)."""
        return cls(read_settings(CommandSettings, config, name="command"))

    async def grade(self, evaluation: Evaluation) -> Grade:
        """Copy the work, lay out the grader, run it.

        Raises:
            RuntimeFailed: The sandbox did not start, or the shell could not run the command.
        """
        async with scratch_folder() as scratch:
            work, grader = scratch / "work", scratch / "grader"
            refusal = await asyncio.to_thread(self._prepare, evaluation.work_dir, work, grader)
            if refusal is not None:
                return _grade(0.0, passed=False, why=refusal)
            result = await self._run(evaluation, work=work, grader=grader)
        return self._read(result)

    def _prepare(self, agents_work: Path, work: Path, grader: Path) -> str | None:
        for folder in (work, grader):
            folder.mkdir()
        lay_out(self._settings.files, grader)
        if agents_work.is_symlink() or not agents_work.is_dir():
            return "the work folder has been replaced"
        return _copy_work(agents_work, work, max_bytes=self._settings.max_work_mb << 20)

    async def _run(self, evaluation: Evaluation, *, work: Path, grader: Path) -> ExecResult:
        sandbox = SandboxSpec(
            work_dir=work, limits=evaluation.task.limits, read_only=(grader,), gateway_url=None
        )
        process = ProcessSpec(
            argv=("sh", "-c", self._settings.run),
            env={
                "GRADER": str(grader),
                "LC_ALL": "C.UTF-8",
                "TZ": "UTC",
                "PYTHONHASHSEED": "0",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
        )
        async with evaluation.runtime.start(sandbox) as started:
            return await started.run(process, timeout_s=self._settings.timeout_s)

    def _read(self, result: ExecResult) -> Grade:
        if result.timed_out:
            return _grade(0.0, passed=False, why="the grader timed out", result=result)
        if result.exit_code in _SHELL_COULD_NOT_RUN_IT:
            raise RuntimeFailed(
                f"the grader could not be run: {result.stderr.strip()[-200:]}",
                where=f"evaluator `command`, run {self._settings.run!r}",
                fix="Check the command and that its program is in the sandbox.",
            )
        if self._settings.reward == "exit_code":
            reward = 1.0 if result.exit_code == 0 else 0.0
            why = f"exit code {result.exit_code}"
        else:
            reward, why = _reward_line(result.stdout)
        return _grade(reward, passed=reward >= self._settings.pass_at, why=why, result=result)


def _reward_line(stdout: str) -> tuple[float, str]:
    lines = stdout.rstrip().splitlines()
    found = _REWARD_LINE.fullmatch(lines[-1]) if lines else None
    try:
        reward = float(found.group(1)) if found else None
    except ValueError:
        reward = None
    if reward is None or not 0 <= reward <= 1:
        return 0.0, "the last line is not `reward: X` with X from 0 to 1"
    return reward, f"reward {reward}"


def _grade(reward: float, *, passed: bool, why: str, result: ExecResult | None = None) -> Grade:
    details: dict[str, Any] = {"why": why}
    if result is not None:
        details |= {
            "exit_code": result.exit_code,
            "timed_out": result.timed_out,
            "stdout": result.stdout[-_SHOWN_CHARS:],
            "stderr": result.stderr[-_SHOWN_CHARS:],
        }
    return Grade(reward=reward, passed=passed, details=details)


def _copy_work(source: Path, target: Path, *, max_bytes: int) -> str | None:
    """Copy files, folders and links (as links), and skip everything else and what is unreadable.

    Returns:
        Why nothing was copied; absent if it was.
    """
    size = 0
    for folder, _, files in os.walk(source):
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in files)
        if size > max_bytes:
            return f"the work folder holds more than {max_bytes} bytes"
    with contextlib.suppress(OSError):  # what the agent made unreadable, the grader does not see
        shutil.copytree(source, target, symlinks=True, ignore=_special_files, dirs_exist_ok=True)
    return None


def _special_files(folder: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    kept = (stat.S_ISREG, stat.S_ISDIR, stat.S_ISLNK)
    return [name for name, mode in modes.items() if not any(test(mode) for test in kept)]
