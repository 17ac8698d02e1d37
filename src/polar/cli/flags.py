"""Flags that several commands have, and the settings that they stand for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polar.config import Override

__all__ = ["EngineFlag", "EngineUrlFlag", "HarnessFlag", "ModelFlag", "RunFlag", "overrides_of"]

HarnessFlag = Annotated[
    str | None,
    typer.Option("--harness", "-H", help="The agent program; default mini_swe_agent."),
]
ModelFlag = Annotated[
    str | None, typer.Option(help="A known name, a folder, or a hub id; default smollm2-135m.")
]
EngineUrlFlag = Annotated[
    list[str] | None,
    typer.Option(
        help="Address of an engine's server, again for each more; absent: the embedded engine."
    ),
]
EngineFlag = Annotated[str, typer.Option(help="What serves at --engine-url.")]
RunFlag = Annotated[
    Path | None,
    typer.Option("--run", "--run-dir", help="Run folder to write; default runs/TIME."),
]
"""`--run` is the run folder in every command; `--run-dir` is what it was called here."""


def overrides_of(
    *, harness: str | None, model: str | None, engine: str, engine_url: list[str] | None
) -> list[Override]:
    """Write flags as settings; a flag that is not given sets nothing."""
    given = [
        Override(key, value, f"--{flag} {value}")
        for key, flag, value in (("harness.name", "harness", harness), ("model", "model", model))
        if value is not None
    ]
    if engine_url:
        urls = " ".join(f"--engine-url {url}" for url in engine_url)
        given += [
            Override("engine.name", engine, f"--engine {engine}"),
            Override("engine.settings.urls", engine_url, urls),
        ]
    return given
