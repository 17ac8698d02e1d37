"""`polar sft`: train a model on the good ones of recorded sessions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polar import models
from polar.cli.console import console, plain, progress_line
from polar.cli.live import LiveView
from polar.cli.ranks import alone
from polar.cli.recordings import of_files, of_run
from polar.cli.run_folder import RunFolder
from polar.cli.work import claimed, write_checkpoint
from polar.config import Override, SftConfig, environment, parse_config, write_config
from polar.config.documents import SUFFIXES, read_document
from polar.errors import ConfigError

if TYPE_CHECKING:
    from polar.train.selecting import Selection

__all__ = ["fine_tune", "sft"]


def sft(  # noqa: PLR0913, PLR0917 - one parameter a flag
    given: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[RUN] [CONFIG]",
            help="Run folder whose sessions to learn from, and a config for everything else.",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The same as RUN.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Parquet file of trajectories; may be repeated.")
    ] = None,
    min_reward: Annotated[
        float | None, typer.Option(help="Leave out sessions that earned less.")
    ] = None,
    best_of: Annotated[
        int | None, typer.Option(min=1, help="Keep so many of each task's sessions.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(min=1, help="Passes over the sessions.")] = None,
    model: Annotated[
        str | None, typer.Option(help="A known name, a folder, or a hub id; default the run's.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where to write; default runs/sft-TIME.")] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: sft.lr=1e-5")
    ] = None,
) -> None:
    """Train a model on exactly the tokens that were sampled in sessions worth imitating.

    Sessions on held-out tasks are left out.

    Examples:
        polar sft runs/rollout --min-reward 1.0

        polar sft --data a.parquet --data b.parquet --best-of 2 --model runs/one/checkpoints/final
    """
    source, config = _sources([run, *(given or [])], data or [])
    set_by = {"model": model, "sft.min_reward": min_reward, "sft.best_of": best_of}
    set_by |= {"sft.epochs": epochs}
    flags = [
        Override(key, value, f"--{key.removeprefix('sft.').replace('_', '-')} {value}")
        for key, value in set_by.items()
        if value is not None
    ]
    document = {"model": source.model()} if isinstance(source, RunFolder) else {}
    document |= {} if config is None else dict(read_document(config))
    settings = parse_config(
        document, SftConfig, where=str(config or "the flags"), overrides=[*flags, *(override or [])]
    )
    folder = out or Path("runs") / datetime.now().strftime("sft-%Y%m%d-%H%M%S")
    fine_tune(settings, folder, source)


def _sources(
    named: Sequence[Path | None], data: Sequence[Path]
) -> tuple[RunFolder | tuple[Path, ...], Path | None]:
    """Tell what to learn from and the config apart: a config is a file, a run is a folder.

    Raises:
        ConfigError: There is no such folder, or not one source.
    """
    paths = [path for path in named if path is not None]
    configs = [path for path in paths if path.is_file() or path.suffix in SUFFIXES]
    runs = [path for path in paths if path not in configs]
    if len(configs) > 1 or len(runs) + bool(data) != 1:
        raise ConfigError(
            "name either a run folder or files with --data, and one config at most",
            fix="See `polar sft --help` for examples.",
        )
    return RunFolder.at(runs[0]) if runs else tuple(data), configs[0] if configs else None


def fine_tune(
    config: SftConfig, out: Path, source: RunFolder | tuple[Path, ...]
) -> Mapping[str, object]:
    """Select, train, and write checkpoint, metrics and resolved config.

    Raises:
        ConfigError: The folder holds a training already, or no session is worth imitating.
    """
    alone(environment(), "polar sft")
    with claimed(out):
        if (out / "config.yaml").exists():
            raise ConfigError(
                "the folder holds a training already", where=str(out), fix="Name another one."
            )
        selection = _selected(config, source)
        write_config(out / "config.yaml", config)
        row = _train(config, out, selection)
    _report(out, row)
    return row


def _selected(config: SftConfig, source: RunFolder | tuple[Path, ...]) -> Selection:
    from polar.train.selecting import select

    phases = config.sft.phases

    def wanted(phase: str) -> bool:
        return phase in phases if phases else not phase.startswith("heldout")

    if isinstance(source, RunFolder):
        found = select(of_run(source, wanted), config.sft)
    else:
        found = select(of_files(source, wanted), config.sft)
    if not found.kept:
        reasons = ", ".join(f"{count} {reason}" for reason, count in found.left_out.items())
        raise ConfigError(
            f"no session is left to learn from ({reasons or 'none was recorded'})",
            where=str(source.path if isinstance(source, RunFolder) else source[0]),
            fix="Lower --min-reward, or set sft.phases to phases that were recorded.",
        )
    return found


def _train(config: SftConfig, out: Path, selection: Selection) -> Mapping[str, Any]:
    from polar.train import Trainer
    from polar.train.model import choose_device, load_model
    from polar.train.records import MetricsLog

    with progress_line("preparing the model") as say:
        folder = models.resolve(config.model, cache=environment().cache, progress=say)
    model = load_model(folder, choose_device(config.train.device))
    trainer = Trainer(model, config.train)
    with LiveView(console) as view:
        metrics = trainer.supervised(
            selection.kept,
            epochs=config.sft.epochs,
            batch_sessions=config.sft.batch_sessions,
            lr=config.sft.lr,
            progress=lambda share: view.training("recorded sessions", share),
        )
    row = {
        "phase": "sft",
        "step": 0,
        **asdict(metrics),
        "sessions": len(selection.kept),
        "left_out": dict(selection.left_out),
        "reward_mean": sum(t.reward for t in selection.kept) / len(selection.kept),
    }
    MetricsLog(out / "metrics.jsonl").add(row)
    write_checkpoint(trainer, folder, out / "checkpoints" / "final")
    return row


def _report(out: Path, row: Mapping[str, Any]) -> None:
    losses = " → ".join(f"{loss:.3f}" for loss in row["losses"])
    console.print(
        f"{row['sessions']} sessions, {row['trained_tokens']:,} trained tokens,"
        f" {row['optimizer_steps']} optimizer steps, loss by epoch {losses}",
        highlight=False,
        soft_wrap=True,
    )
    for reason, count in row["left_out"].items():
        console.print(f"  left out: {count} {reason}", highlight=False)
    checkpoint = out / "checkpoints" / "final"
    console.print(f"Checkpoint: [heading]{plain(checkpoint)}[/heading]", soft_wrap=True)
