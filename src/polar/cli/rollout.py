"""`polar rollout TASKS`: run tasks through a harness and keep sessions and trajectories."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer

from polar import harnesses
from polar.cli.console import console, plain
from polar.cli.engine_counts import engine_counts
from polar.cli.flags import (
    EngineFlag,
    EngineUrlFlag,
    HarnessFlag,
    ModelFlag,
    RunFlag,
    overrides_of,
)
from polar.cli.install import install_harness
from polar.cli.live import LiveView
from polar.cli.loop import run_async
from polar.cli.run_folder import RunFolder
from polar.cli.train import new_run_dir
from polar.cli.work import claimed, write_trajectories
from polar.config import RunConfig, environment, load_config, write_config
from polar.errors import ConfigError
from polar.evaluators import check_tasks
from polar.tasks import read_tasks
from polar.types import Cancelled, Failed, Group, Task, TimedOut

__all__ = ["rollout"]


def rollout(  # noqa: PLR0913, PLR0917 - one parameter a flag
    tasks: Annotated[Path, typer.Argument(help="Task file, JSON lines.")],
    harness: HarnessFlag = None,
    samples: Annotated[int, typer.Option("--samples", "-n", min=1, help="Sessions a task.")] = 1,
    model: ModelFlag = None,
    engine_url: EngineUrlFlag = None,
    engine: EngineFlag = "vllm",
    config: Annotated[Path | None, typer.Option(help="A config for everything else.")] = None,
    run_dir: RunFlag = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: rollout.run_workers=8")
    ] = None,
) -> None:
    """Run every task N times, grade the work, and write calls, sessions and trajectories.

    A run that was interrupted goes on where it stopped when it is started again with its --run.

    Examples:
        polar rollout tasks.jsonl --harness pi -n 4

        polar rollout tasks.jsonl --engine-url http://127.0.0.1:8000 --model Qwen/Qwen3-0.6B
    """
    found = read_tasks(tasks)
    check_tasks(found)
    flags = overrides_of(harness=harness, model=model, engine=engine, engine_url=engine_url)
    settings = load_config(config, [*flags, *(override or [])], RunConfig)
    folder = run_dir or new_run_dir()
    install_harness(harnesses.load(settings.harness.name)(settings.harness.settings))
    with claimed(folder):
        _check_goes_on(folder, settings)
        write_config(folder / "config.yaml", settings)
        try:
            groups = run_async(_rollout(settings, folder.absolute(), found, samples))
        except KeyboardInterrupt:
            console.print(
                "\n[warn]Interrupted.[/warn] Every finished session is kept. "
                f"Go on with the same command and --run {plain(folder)}",
                highlight=False,
                soft_wrap=True,
            )
            raise
        write_trajectories(folder, "rollout", 0, groups)
    _report(folder, groups)


async def _rollout(
    config: RunConfig, run_dir: Path, tasks: tuple[Task, ...], samples: int
) -> tuple[Group, ...]:
    from polar.cli.compose import compose

    with LiveView(console) as view:
        async with compose(
            config,
            run_dir,
            cache=environment().cache,
            training=False,
            on_event=view.session,
            say=view.say,
        ) as parts:
            groups = await view.shown(parts.collect)(
                tasks, samples=samples, phase="rollout", step=0
            )
    return groups


_PLACES = {"prepare_workers", "ready_buffer", "run_workers", "grade_workers"}
"""Settings that may change on the way, for they change how fast and not what is sampled."""


def _check_goes_on(folder: Path, config: RunConfig) -> None:
    """See that the sessions of a folder are of this rollout, before its config is replaced.

    Raises:
        ConfigError: They are those of a training, of another model, or sampled otherwise.
    """
    if not (folder / "config.yaml").exists():
        return
    stored = RunFolder(folder)
    now = config.rollout.model_dump(exclude=_PLACES)
    different = [
        what
        for what, same in (
            ("model", stored.model() == config.model),
            ("rollout", stored.rollout().model_dump(exclude=_PLACES) == now),
        )
        if not same
    ]
    if (folder / "metrics.jsonl").exists():
        what = "the run folder is that of a training"
    elif different:
        what = f"the sessions in the run folder have another `{different[0]}`"
    else:
        return
    raise ConfigError(what, where=str(folder), fix="Name another folder with --run.")


def causes_of(groups: Sequence[Group]) -> Mapping[str, int]:
    """Count the sessions that were not graded by why, the most frequent first."""
    causes: Counter[str] = Counter()
    for trajectory in (each for group in groups for each in group.trajectories):
        match trajectory.outcome:
            case Failed(stage=stage, error=error):
                causes[f"failed while {stage}: {error}"] += 1
            case TimedOut(stage=stage, grade=None):
                causes[f"out of time while {stage}"] += 1
            case Cancelled(reason=reason):
                causes[f"cancelled: {reason}"] += 1
            case _:
                pass
    return dict(causes.most_common())


def _report(run_dir: Path, groups: tuple[Group, ...]) -> None:
    from rich.table import Table

    from polar.train.figures import figures_of, passed

    for what, number in causes_of(groups).items():
        console.print(f"[warn]{number} x[/warn] {plain(what)}", highlight=False, soft_wrap=True)
    table = Table("task", "sessions", "passed", "reward", "sampled tokens")
    for group in groups:
        figures = figures_of([group])
        wins = sum(passed(trajectory) for trajectory in group.trajectories)
        table.add_row(
            plain(group.task.id),
            str(figures.sessions),
            str(wins),
            f"{figures.reward_mean:.2f}",
            str(figures.sampled_tokens),
        )
    console.print(table)
    reports = (trajectory.report for group in groups for trajectory in group.trajectories)
    for what, tokens in engine_counts(reports).items():
        console.print(f"{tokens:,} {what}", highlight=False, soft_wrap=True)
    console.print(f"Run folder: [heading]{plain(run_dir)}[/heading]", soft_wrap=True)
    first = groups[0].trajectories[0].session_id
    console.print(
        f"Look at a session: [heading]polar show {first} --run {plain(run_dir)}[/heading]",
        soft_wrap=True,
    )
