"""Flags that several commands have, and the settings that they stand for."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["EngineFlag", "EngineUrlFlag", "HarnessFlag", "ModelFlag", "overrides_of"]

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


def overrides_of(
    *, harness: str | None, model: str | None, engine: str, engine_url: list[str] | None
) -> list[str]:
    """Write flags as settings, `key=value`; a flag that is not given sets nothing."""
    given = [
        f"{key}={value}"
        for key, value in (("harness.name", harness), ("model", model))
        if value is not None
    ]
    if engine_url:
        given += [f"engine.name={engine}", f"engine.settings.urls=[{', '.join(engine_url)}]"]
    return given
