"""Harnesses that are programs built on a library for agents: what their presets share."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

from polar.errors import ConfigError
from polar.harnesses.base import Installation, LaunchRequest
from polar.harnesses.extensions import json_servers
from polar.harnesses.pip import PipHarness
from polar.harnesses.settings import AgentScriptSettings

__all__ = ["ScriptHarness"]

_PROGRAMS = Path(__file__).parent / "programs"
_TOLD = ".config/polar/agent.json"

Settings = TypeVar("Settings", bound=AgentScriptSettings)


class ScriptHarness(PipHarness[Settings]):
    """Starts a Python program where the library is installed: the example, or the user's own.

    Args:
        settings: How it behaves.
    """

    example: ClassVar[str]
    """File name of the example."""

    def find(self) -> Installation:
        """Look for the library's Python and for the program.

        Raises:
            HarnessMissing: The library is nowhere.
            ConfigError: The user's program, or what an MCP server needs, is not there.
        """
        if not self._script.is_file():
            raise ConfigError(
                "the agent's program is not there",
                where=str(self._script),
                fix="Correct `script`, or leave it out.",
            )
        found = super().find()
        return replace(found, read_only=(*found.read_only, self._script.parent))

    @property
    def _script(self) -> Path:
        return self._settings.script or _PROGRAMS / self.example

    def _words(self, request: LaunchRequest) -> tuple[str, ...]:
        """Say how to start the program: `python SCRIPT SETTINGS.json ...`."""
        told = f"{request.place.home}/{_TOLD}"
        python = str(self._installation.executable)
        return (python, str(self._script), told, *self._settings.extra_args)

    def _env(self, request: LaunchRequest) -> dict[str, str]:
        return {"POLAR_INSTRUCTION": request.instruction or ""}

    def _files(self, request: LaunchRequest, more: Mapping[str, object]) -> dict[str, str]:
        """Write what the program is told besides address, key and task."""
        settings = self._settings
        told = {
            "model": request.model,
            "system_prompt": settings.system_prompt,
            "max_turns": settings.max_turns,
            "asks": request.asks,
            "interactive": request.interactive,
            "mcp_servers": json_servers(settings),
            **more,
        }
        return {_TOLD: json.dumps(told)}
