"""`polar train CONFIG`: train a model through a harness, or resume an interrupted run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polar.cli.console import console, plain
from polar.cli.flags import RunFlag
from polar.cli.live import LiveView
from polar.cli.loop import run_async
from polar.cli.ranks import told_once, work_for_rank_0
from polar.cli.stage_use import StageUse
from polar.cli.work import claimed, load_tasks, write_checkpoint, write_trajectories
from polar.config import RunConfig, environment, load_config, write_config
from polar.errors import ConfigError
from polar.rollout import SessionEvent
from polar.types import Group, Task

if TYPE_CHECKING:
    from polar.cli.compose import Parts
    from polar.train.loop_state import Evaluation
    from polar.train.writers import MetricsWriter

__all__ = ["run_training", "train"]

TaskSplits = tuple[tuple[Task, ...], tuple[Task, ...]]
"""Tasks to train on, and held-out ones."""


def train(
    given: Annotated[
        Path | None,
        typer.Argument(
            metavar="CONFIG|RUN",
            help="The run's config, YAML or TOML; or the folder of a run to go on with.",
        ),
    ] = None,
    resume: Annotated[Path | None, typer.Option(help="The same as RUN.")] = None,
    run_dir: RunFlag = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: loop.steps=5")
    ] = None,
) -> None:
    """Train a model by reinforcement learning through a harness.

    Examples:
        polar train config.yaml

        polar train config.yaml --set loop.steps=5 --run runs/try

        polar train --resume runs/20260101-120000

        torchrun --nproc-per-node 2 -m polar train config.yaml
    """
    with told_once(environment()):
        settings, folder, resumed = _wanted(given, resume, run_dir, override or ())
    run_training(settings, folder, resume=resumed)


def _wanted(
    given: Path | None, resume: Path | None, run_dir: Path | None, override: Sequence[str]
) -> tuple[RunConfig, Path, bool]:
    """Read what to do from the flags: settings, the run's folder, and whether to go on with it.

    Raises:
        ConfigError: A flag or a setting is wrong.
    """
    config, run = _config_or_run(given, resume)
    if run is None:
        return load_config(config, override, RunConfig), run_dir or new_run_dir(), False
    if run_dir is not None:
        raise ConfigError(
            "a resumed run is written where it is",
            where="--run",
            fix="Leave --run out, or copy the folder first.",
        )
    if not (run / "journal.sqlite").exists():
        raise ConfigError(
            "there is no run to resume",
            where=str(run),
            fix="Name the folder of a run that was interrupted.",
        )
    return load_config(run / "config.yaml", override, RunConfig), run, True


def _config_or_run(given: Path | None, resume: Path | None) -> tuple[Path | None, Path | None]:
    """Tell config and run apart: a config is a file, a run is a folder.

    Raises:
        ConfigError: There is not one of them.
    """
    if (given is None) == (resume is None):
        raise ConfigError(
            "name either a config file or --resume RUN",
            fix="See `polar train --help` for examples.",
        )
    return (None, given) if given is not None and given.is_dir() else (given, resume)


def new_run_dir() -> Path:
    """Name a run folder after the time."""
    return Path("runs") / datetime.now().strftime("%Y%m%d-%H%M%S")


def run_training(config: RunConfig, run_dir: Path, *, resume: bool) -> Mapping[str, object]:
    """Run a training to its end and return its summary.

    Of several ranks that torchrun has started only the first does; the others work for it.
    """
    if (at := environment()).rank:
        work_for_rank_0(config, at)
        return {}
    from polar.train.records import write_json
    from polar.train.writers import opened

    tasks = load_tasks(config.tasks, seed=config.seed)
    with claimed(run_dir):
        if not resume and (run_dir / "journal.sqlite").exists():
            raise ConfigError(
                "the run folder holds a run already",
                where=str(run_dir),
                fix=f"Go on with `polar train --resume {run_dir}`, or name another folder.",
            )
        write_config(run_dir / "config.yaml", config)
        try:
            with opened(config.metrics, run_dir.absolute()) as writers:
                training = _train(config, run_dir.absolute(), writers, tasks, resume=resume)
                summary = run_async(training)
        except KeyboardInterrupt:
            console.print(
                f"\n[yellow]Interrupted.[/yellow] Every finished session is kept. "
                f"Go on with: [bold]polar train --resume {plain(run_dir)}[/bold]",
                highlight=False,
                soft_wrap=True,
            )
            raise
        write_json(run_dir / "summary.json", summary)
        report(run_dir, summary)
        return summary


async def _train(
    config: RunConfig,
    run_dir: Path,
    writers: Sequence[MetricsWriter],
    tasks: TaskSplits,
    *,
    resume: bool,
) -> Mapping[str, object]:
    from polar.cli.compose import compose

    stages = StageUse(config.rollout)
    with LiveView(console) as view:

        def on_event(event: SessionEvent) -> None:
            stages.event(event)
            view.session(event)

        async with compose(
            config,
            run_dir,
            cache=environment().cache,
            training=True,
            on_event=on_event,
            say=view.say,
        ) as parts:
            return await _run_loop(parts, view, stages, writers, tasks, resume=resume)


async def _run_loop(
    parts: Parts,
    view: LiveView,
    stages: StageUse,
    writers: Sequence[MetricsWriter],
    tasks: TaskSplits,
    *,
    resume: bool,
) -> Mapping[str, object]:
    from polar.cli.compose import EngineSync
    from polar.train.loop import TrainingLoop
    from polar.train.records import MetricsLog, draw_curve
    from polar.train.writers import CountedRows

    config, run_dir = parts.config, parts.run_dir
    assert parts.trainer is not None
    metrics = await asyncio.to_thread(MetricsLog, run_dir / "metrics.jsonl")
    counted = await asyncio.to_thread(CountedRows, writers, run_dir / "metrics-sent.jsonl")
    train_tasks, heldout_tasks = tasks

    def record(row: Mapping[str, object]) -> None:
        if row["phase"] == "train":
            row = {**row, "stage_use": dict(stages.take())}
        metrics.add(row)
        counted.add([row])
        if row["phase"] == "train":
            view.step(row, steps=config.loop.steps)
        elif "pass_at_1" in row:
            view.say(
                f"[bold]{row['phase']}[/bold]  pass@1 {row['pass_at_1']:.1%}"
                f" [{row['low']:.1%}, {row['high']:.1%}], {row['sessions']} sessions,"
                f" {row['rollout_s']:.1f} s"
            )
        else:
            view.say(
                f"[bold]{row['phase']}[/bold]  {row['sessions']} expert sessions,"
                f" collected in {row['rollout_s']:.1f} s, trained in {row['train_s']:.1f} s"
            )

    def keep(phase: str, step: int, groups: tuple[Group, ...]) -> None:
        write_trajectories(run_dir, phase, step, groups)

    loop = TrainingLoop(
        trainer=parts.trainer,
        collect=view.shown(parts.collect),
        collect_expert=view.shown(parts.collect_expert),
        sync=EngineSync(parts),
        train_tasks=train_tasks,
        heldout_tasks=heldout_tasks,
        settings=config.loop,
        seed=config.seed,
        state_dir=run_dir / "state",
        record=record,
        keep=keep,
        progress=view.training,
        saved=lambda state: counted.send(state.has),
    )
    if resume:
        await asyncio.to_thread(loop.resume)
        await asyncio.to_thread(metrics.retain, loop.state.has)
        counted.add(metrics.rows)
        await asyncio.to_thread(counted.send)
        view.say(f"resuming after step {loop.state.step}")
    before, after = await loop.run()
    await asyncio.to_thread(counted.send)
    with view.doing("writing the checkpoint"):
        checkpoint = run_dir / "checkpoints" / "final"
        await asyncio.to_thread(write_checkpoint, parts.trainer, parts.model_dir, checkpoint)
        await asyncio.to_thread(
            draw_curve,
            run_dir / "curve.png",
            metrics.rows,
            title=f"{config.model} through {config.harness.name}, seed {config.seed}",
        )
    return _summary(parts, before, after, steps=loop.state.step, wall_s=loop.spent_s())


def _summary(
    parts: Parts,
    before: Evaluation | None,
    after: Evaluation | None,
    *,
    steps: int,
    wall_s: float,
) -> Mapping[str, object]:
    def interval(found: Evaluation | None) -> list[float] | None:
        return [found.low, found.high] if found else None

    config = parts.config
    return {
        "version": 1,
        "heldout_pass_at_1_before": before.pass_at_1 if before else None,
        "heldout_pass_at_1_before_interval_95": interval(before),
        "heldout_pass_at_1_after": after.pass_at_1 if after else None,
        "heldout_pass_at_1_after_interval_95": interval(after),
        "heldout_sessions": after.sessions if after else 0,
        "gain_points": 100 * (after.pass_at_1 - before.pass_at_1) if before and after else None,
        "sampling_temperature": config.rollout.temperature,
        "steps": steps,
        "wall_s": wall_s,
        "seed": config.seed,
        "harness": config.harness.name,
        "model": config.model,
        "engine": config.engine.name,
        "before": asdict(before) if before else None,
        "after": asdict(after) if after else None,
        "run_dir": str(parts.run_dir),
    }


def report(run_dir: Path, summary: Mapping[str, object]) -> None:
    """Print the closing table, the curve and where everything is."""
    from rich.table import Table

    from polar.train.records import MetricsLog, terminal_curve

    curve = terminal_curve(MetricsLog(run_dir / "metrics.jsonl").rows, width=console.width)
    if curve:
        console.print("\n[bold]pass rate of the training sessions, each step[/bold]")
        console.print(curve, markup=False, highlight=False)
    table = Table(title="Held-out tasks (kinds never trained on)")
    for column in ("", "pass@1", "95% interval", "sessions"):
        table.add_column(column, justify="left" if not column else "right")
    for name in ("before", "after"):
        share = summary[f"heldout_pass_at_1_{name}"]
        interval = summary[f"heldout_pass_at_1_{name}_interval_95"]
        if isinstance(share, float) and isinstance(interval, list):
            table.add_row(
                f"{name} reinforcement learning",
                f"{share:.1%}",
                f"{interval[0]:.1%} to {interval[1]:.1%}",
                str(summary["heldout_sessions"]),
            )
    console.print(table)
    if isinstance(gain := summary["gain_points"], float):
        console.print(f"Gain through reinforcement learning alone: [bold]{gain:+.1f} points[/bold]")
    console.print(
        f"Run folder: [bold]{plain(run_dir)}[/bold]  (wall {summary['wall_s']:.0f} s)",
        soft_wrap=True,
    )
    console.print(
        f"Curve: {plain(run_dir / 'curve.png')}   "
        f"Checkpoint: {plain(run_dir / 'checkpoints/final')}",
        soft_wrap=True,
    )
    phase = "heldout_after" if summary["heldout_sessions"] else "train"
    session = f"{phase}-{summary['steps']:04d}-000-00"
    console.print(
        f"Look at a session: [bold]polar show {session} --run {plain(run_dir)}[/bold]"
        f"   Check every token: [bold]polar verify {plain(run_dir)}[/bold]",
        soft_wrap=True,
    )
