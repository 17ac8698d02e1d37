"""The task file: JSON lines, one task a line, read strictly and written back without loss."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from polar.errors import TaskFileError
from polar.tasks.paths import check_paths
from polar.tasks.problems import Problem, problems_in
from polar.types import EvaluatorSpec, Limits, Task, TaskId

__all__ = ["EvaluatorLine", "LimitsLine", "TaskLine", "read_tasks", "write_tasks"]

_MAX_SHOWN = 20
_DEFAULT_LIMITS = Limits()
_FIX_JSON = "Write one JSON object on one line."


class EvaluatorLine(BaseModel):
    """How a finished session becomes a reward."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    name: str = Field(min_length=1)
    """An evaluator: `files`, `command`, or one that an installed package offers."""
    config: dict[str, Any] = Field(default_factory=dict)
    """Settings of that evaluator."""


class LimitsLine(BaseModel):
    """Budgets of one session, in seconds, and its resource limits."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)

    prepare_s: float = Field(_DEFAULT_LIMITS.prepare_s, gt=0)
    """Seconds to start the sandbox."""
    run_s: float = Field(_DEFAULT_LIMITS.run_s, gt=0)
    """Seconds for the harness; time in which the engine is paused is not counted."""
    grade_s: float = Field(_DEFAULT_LIMITS.grade_s, gt=0)
    """Seconds to grade the work."""
    max_calls: int = Field(_DEFAULT_LIMITS.max_calls, gt=0)
    """Most model calls of a session; the next one is refused."""
    cpu_s: int = Field(_DEFAULT_LIMITS.cpu_s, gt=0)
    """Seconds of processor time of each process in the sandbox."""
    memory_mb: int = Field(_DEFAULT_LIMITS.memory_mb, gt=0)
    """Megabytes of memory of the sandbox."""
    processes: int = Field(_DEFAULT_LIMITS.processes, gt=0)
    """Most processes in the sandbox."""


class TaskLine(BaseModel):
    """One line of a task file."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    id: str = Field(min_length=1)
    """Unique in the file; figures and trajectories refer to it."""
    instruction: str = Field(min_length=1)
    """What the harness is asked to do."""
    evaluator: EvaluatorLine
    """How the work is graded."""
    files: dict[str, str] = Field(default_factory=dict)
    """Path relative to the work folder -> text, laid out before the harness starts."""
    kind: str = Field("default", min_length=1)
    """Family that the task belongs to, for figures by kind."""
    expert: list[str] = Field(default_factory=list)
    """Shell commands that solve the task, one a turn; for a supervised warm start only."""
    limits: LimitsLine = Field(default_factory=LimitsLine)
    """Budgets; what is left out keeps its default."""

    @field_validator("files")
    @classmethod
    def _stay_inside(cls, files: dict[str, str]) -> dict[str, str]:
        check_paths(files)
        return files

    @classmethod
    def of(cls, task: Task) -> TaskLine:
        """Describe a task as a line."""
        return cls(
            id=task.id,
            instruction=task.instruction,
            evaluator=EvaluatorLine(
                name=task.evaluator.name, config=json.loads(_dump(task.evaluator.config))
            ),
            files=dict(task.files),
            kind=task.kind,
            expert=list(task.expert),
            limits=LimitsLine(**asdict(task.limits)),
        )

    def task(self) -> Task:
        """Make the task that the line describes."""
        return Task(
            id=TaskId(self.id),
            instruction=self.instruction,
            evaluator=EvaluatorSpec(self.evaluator.name, self.evaluator.config),
            files=self.files,
            kind=self.kind,
            expert=tuple(self.expert),
            limits=Limits(**self.limits.model_dump()),
        )


@dataclass(frozen=True, slots=True)
class _Broken:
    line: int
    problem: Problem


def read_tasks(path: Path) -> tuple[Task, ...]:
    """Read all tasks of a file, or say everything that is wrong with it.

    Blank lines and a byte order mark are skipped; there are no comments.

    Args:
        path: A JSON lines file in UTF-8.

    Raises:
        TaskFileError: The file cannot be read or is empty, or lines are broken: all of them are
            named (the first 20 in full).
    """
    tasks: dict[str, tuple[int, Task]] = {}
    broken: list[_Broken] = []
    for number, line in _lines(path):
        parsed = _parse(line)
        if not isinstance(parsed, TaskLine):
            broken += [_Broken(number, problem) for problem in parsed]
        elif parsed.id in tasks:
            first = tasks[parsed.id][0]
            what = f"the id {parsed.id!r} is already that of line {first}"
            broken.append(_Broken(number, Problem(what, "Give each task its own id.")))
        else:
            tasks[parsed.id] = (number, parsed.task())
    if broken:
        _refuse(path, broken)
    if not tasks:
        raise TaskFileError("the file has no tasks", where=str(path), fix=_FIX_JSON)
    return tuple(task for _, task in tasks.values())


def write_tasks(path: Path, tasks: Iterable[Task]) -> None:
    """Write tasks so that `read_tasks` gives equal ones; what has its default is left out.

    Args:
        path: Replaced if it exists, in one step.
        tasks: With evaluator settings that are plain JSON.

    Raises:
        TaskFileError: The file cannot be written, or a task cannot be told in the format.
    """
    text = "".join(f"{_line_of(task, path)}\n" for task in tasks)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(text.encode())
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        what = f"the task file cannot be written: {error.strerror}"
        raise TaskFileError(what, where=str(path), fix="Choose another path.") from error


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        data = path.read_bytes()
    except OSError as error:
        what = f"the task file cannot be read: {error.strerror}"
        raise TaskFileError(what, where=str(path), fix="Check the path.") from error
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if line.strip():
            yield number, line


def _parse(line: bytes) -> TaskLine | tuple[Problem, ...]:
    try:
        value = json.loads(
            line.decode(), object_pairs_hook=_unique_keys, parse_constant=_no_constant
        )
        _dump(value).encode()
        return TaskLine.model_validate(value)
    except ValidationError as error:
        return problems_in(error, TaskLine)
    except UnicodeDecodeError as error:
        return (Problem(f"byte {error.start + 1} is not UTF-8", "Save the file as UTF-8."),)
    except UnicodeEncodeError:
        return (Problem("a text has half a surrogate pair (\\ud8..)", "Write the whole pair."),)
    except json.JSONDecodeError as error:
        return (Problem(f"not JSON at column {error.colno}: {error.msg}", _FIX_JSON),)
    except (ValueError, RecursionError) as error:
        return (Problem(f"not usable as JSON: {error}", _FIX_JSON),)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key!r} is there twice")
        found[key] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _dump(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, default=_plain)


def _plain(value: object) -> dict[Any, Any]:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{value!r} has no JSON form")


def _line_of(task: Task, path: Path) -> str:
    try:
        line = TaskLine.of(task)
        text = _dump(line.model_dump(exclude_defaults=True))
        text.encode()
    except ValidationError as error:
        problem = problems_in(error, TaskLine)[0]
        raise TaskFileError(problem.what, where=f"task {task.id!r}", fix=problem.fix) from error
    except (TypeError, ValueError) as error:
        what = f"the task has no JSON form: {error}"
        raise TaskFileError(what, where=f"task {task.id!r} for {path}") from error
    return text


def _refuse(path: Path, broken: list[_Broken]) -> NoReturn:
    if len(broken) == 1:
        line, problem = broken[0].line, broken[0].problem
        raise TaskFileError(problem.what, where=f"{path}:{line}", fix=problem.fix)
    shown = [f"{path}:{each.line}: {each.problem}" for each in broken[:_MAX_SHOWN]]
    if len(broken) > _MAX_SHOWN:
        shown.append(f"and {len(broken) - _MAX_SHOWN} more")
    raise TaskFileError(
        f"{len(broken)} things are wrong in the task file",
        where=f"{path}:{broken[0].line}",
        fix="\n  ".join(["Correct these:", *shown]),
    )
