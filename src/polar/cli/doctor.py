"""`polar doctor`: checks what this machine and an engine can do, and says what to do about it."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from polar.cli.console import console
from polar.cli.findings import Finding, check_machine
from polar.cli.run_folder import RunFolder
from polar.config import RunConfig, environment, load_config
from polar.errors import SetupError

__all__ = ["doctor"]

_MARKS = {"ok": "✓", "warn": "!", "fail": "✗"}


def doctor(
    engine_url: Annotated[
        list[str] | None,
        typer.Option(help="Address of an engine's server to probe as well; again for each more."),
    ] = None,
    engine: Annotated[str, typer.Option(help="What serves at --engine-url.")] = "vllm",
    harness: Annotated[
        str | None,
        typer.Option(help="Harness to play a session with: the real one, against a script."),
    ] = None,
    model: Annotated[
        str, typer.Option(help="Model whose tokenizer must agree with the engine's.")
    ] = "smollm2-135m",
    run_dir: Annotated[
        Path | None,
        typer.Option("--run", help="Run folder to read what happened to the engine's servers in."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check this machine: versions, memory, disk, sandbox, Node, harnesses, models, and an engine.

    Each finding says what to do. Exits with 3 if anything fails, else 0.

    Examples:
        polar doctor

        polar doctor --engine-url http://127.0.0.1:8000 --model Qwen/Qwen3-0.6B

        polar doctor --engine-url http://gpu1:8000 --engine-url http://gpu2:8000

        polar doctor --run runs/20260101-120000

        polar doctor --harness codex

        polar doctor --json
    """
    findings = list(
        _shown(_findings(engine_url or [], engine, model, harness, run_dir), quiet=as_json)
    )
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    if any(finding.state == "fail" for finding in findings):
        raise typer.Exit(SetupError.exit_code)


def _findings(
    engine_urls: list[str], engine: str, model: str, harness: str | None, run_dir: Path | None
) -> Iterator[Finding]:
    cache = environment().cache
    yield from check_machine(cache)
    if engine_urls:
        from polar.cli.engine_check import check_engine

        yield from check_engine(engine, engine_urls, model=model, cache=cache)
    if run_dir is not None:
        from polar.cli.engine_log import check_engine_log

        yield from check_engine_log(RunFolder.at(run_dir).engine_log)
    if harness is not None:
        from polar.cli.harness_check import check_harness

        config = load_config(None, [f"harness.name={harness}"], RunConfig)
        yield from check_harness(harness, config.harness.settings)


def _shown(findings: Iterable[Finding], *, quiet: bool) -> Iterator[Finding]:
    """Print each finding as soon as it is known."""
    for finding in findings:
        if not quiet:
            line = Text.assemble((f"{_MARKS[finding.state]} ", finding.state))
            line.append(f"{finding.subject:<24}", "heading").append(finding.found)
            if finding.fix is not None and finding.state != "ok":
                line.append(f"\n    fix: {finding.fix}")
            console.print(line, soft_wrap=True)
        yield finding
