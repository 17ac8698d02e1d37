"""`polar run`: one harness in the current folder, whose session is kept."""

from __future__ import annotations

import asyncio
import os
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from polar import harnesses, models
from polar.cli.console import errors, plain, progress_line
from polar.cli.engine_counts import engine_counts
from polar.cli.flags import EngineFlag, EngineUrlFlag, HarnessFlag, ModelFlag, overrides_of
from polar.cli.here import Work, Worked, cut_replies, refused_for_length, work_here
from polar.cli.loop import run_async
from polar.cli.run_folder import RunFolder
from polar.cli.work import claimed
from polar.config import (
    Overrides,
    RunConfig,
    environment,
    parse_config,
    work_settings,
    write_config,
)
from polar.config.documents import read_document
from polar.engines.base import Engine
from polar.errors import ConfigError
from polar.rendering import Renderer, load_renderer

__all__ = ["kept_in", "run", "run_config"]

_LONGEST_TRACE = 1_000_000
"""What people do takes longer than what is trained on; the journal has it all in any case."""


def run(  # noqa: PLR0913, PLR0917 - one parameter a flag
    task: Annotated[
        list[str] | None, typer.Argument(help="What to do; left out: say it at its own screen.")
    ] = None,
    harness: HarnessFlag = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Start its own screen, TASK being first.")
    ] = False,
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Let it act without asking. Nothing confines it here."),
    ] = False,
    model: ModelFlag = None,
    engine_url: EngineUrlFlag = None,
    engine: EngineFlag = "vllm",
    config: Annotated[Path | None, typer.Option(help="A config for everything else.")] = None,
    run_dir: Annotated[
        Path | None,
        typer.Option("--run", help="Where to keep it; default a new folder in Polar's data."),
    ] = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: harness.settings.tools=[]")
    ] = None,
) -> None:
    """Run a harness here, on your own files, and keep the session: calls, tokens, trajectory.

    It runs as you, unconfined, with its own approvals. Without TASK its own screen is started.
    Its config goes into a private folder; your own config of it is neither read nor changed.
    A reply for which it sets no limit ends after 4,096 tokens, or a quarter of the context window:
    --set rollout.max_tokens=N sets one for all replies.
    Exits with the harness's own exit code.

    Examples:
        polar run --harness codex -- "make the tests pass"

        polar run --harness claude_code --engine-url http://127.0.0.1:8000 --model Qwen/Qwen3-8B

        polar run --harness pi --yes --run ~/sessions -- "explain this repository"
    """
    flags = overrides_of(harness=harness, model=model, engine=engine, engine_url=engine_url)
    settings = run_config(config, harness, [*flags, *(override or [])])
    work = _work(" ".join(task or ()), interactive=interactive, yes=yes)
    harnesses.load(settings.harness.name)(settings.harness.settings).find()
    folder = _folder(run_dir, settings.harness.name)
    with claimed(folder):
        kept_in(folder, settings)
        worked = run_async(_run(settings, folder, work))
    _report(folder, settings.harness.name, worked)


def run_config(path: Path | None, harness: str | None, overrides: Overrides) -> RunConfig:
    """Read the config of a run at work: what nobody sets is as people need it.

    Args:
        path: A config file.
        harness: The harness that a flag names.
        overrides: Settings that win over the file's.

    Raises:
        ConfigError: A setting is wrong.
    """
    data: dict[str, Any] = read_document(path) if path is not None else {}
    section = data.setdefault("harness", {})
    name = harness or (section.get("name") if isinstance(section, dict) else None)
    given = section.setdefault("settings", {}) if isinstance(section, dict) else None
    if isinstance(given, dict):
        given |= {key: value for key, value in work_settings(name).items() if key not in given}
    rollout = data.setdefault("rollout", {})
    if isinstance(rollout, dict):
        rollout.setdefault("max_trace_tokens", _LONGEST_TRACE)
    where = "the flags" if path is None else str(path)
    return parse_config(data, RunConfig, where=where, overrides=overrides)


def kept_in(folder: Path, config: RunConfig) -> None:
    """Keep the config in a new run folder; in an older one, see that the sessions go together.

    Raises:
        ConfigError: The folder's sessions are of another model, or become traces otherwise.
    """
    if not (folder / "config.yaml").exists():
        write_config(folder / "config.yaml", config)
        return
    stored = RunFolder(folder)
    for what, was, now in (
        ("model", stored.model(), config.model),
        ("rollout", stored.rollout(), config.rollout),
    ):
        if was != now:
            raise ConfigError(
                f"the sessions in the run folder have another `{what}`",
                where=str(folder),
                fix="Name another folder with --run.",
            )


def _work(task: str, *, interactive: bool, yes: bool) -> Work:
    interactive = interactive or not task
    if interactive and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "there is no terminal for the harness's own screen",
            fix='Say what to do: polar run --harness NAME -- "task".',
        )
    return Work(Path.cwd(), os.environ, task or None, interactive=interactive, asks=not yes)


def _folder(chosen: Path | None, harness: str) -> Path:
    if chosen is not None:
        return chosen.expanduser().absolute()
    time = datetime.now().strftime("%Y%m%d-%H%M%S")
    return environment().data / "runs" / f"{time}-{harness}"


async def _run(config: RunConfig, folder: Path, work: Work) -> Worked:
    with progress_line("starting the engine") as say:
        model_dir = await asyncio.to_thread(
            models.resolve, config.model, cache=environment().cache, progress=say
        )
        model = await asyncio.to_thread(_model, config, model_dir)
    return await work_here(config, model, folder, work)


def _model(config: RunConfig, model_dir: Path) -> tuple[Engine, Renderer]:
    from polar.cli.compose import make_engine

    return make_engine(config, model_dir), load_renderer(str(model_dir))


def _report(folder: Path, name: str, worked: Worked) -> None:
    """Say on standard error what was kept: standard output is the harness's."""
    if (refused := refused_for_length(name, worked)) is not None:
        raise refused
    usage, report = worked.usage, worked.report
    errors.print(
        f"kept {worked.session_id}: {usage.calls} calls, {report.sampled} sampled tokens, "
        f"{report.kept} of them in {report.trace_tokens} tokens of traces",
        soft_wrap=True,
    )
    if report.text_calls:
        errors.print(
            f"[warn]of {report.text_calls} calls only the text is known[/warn]: the engine's "
            "server tells no token ids",
            soft_wrap=True,
        )
    for what, tokens in engine_counts([report]).items():
        errors.print(f"{tokens:,} {what}", highlight=False, soft_wrap=True)
    if usage.refused_for_length:
        errors.print(
            f"[warn]warning:[/warn] {usage.refused_for_length} requests did not fit the context "
            f"window of {worked.max_context:,} tokens (the longest: {usage.longest_refused:,})",
            soft_wrap=True,
        )
    if (cut := cut_replies(name, worked)) is not None:
        errors.print(f"[warn]warning:[/warn] {cut}", soft_wrap=True)
    errors.print(
        f"Look at it: polar show {worked.session_id} --run {plain(folder)}", soft_wrap=True
    )
    raise typer.Exit(worked.exit_code)
