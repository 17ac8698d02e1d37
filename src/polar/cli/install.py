"""`polar install HARNESS`: installs a harness's pinned version into Polar's own folder."""

from __future__ import annotations

import shutil
import subprocess
from typing import Annotated

import typer

from polar import harnesses
from polar.cli.console import console, progress_line
from polar.config import RunConfig, load_config
from polar.errors import HarnessMissing, SetupError
from polar.harnesses.base import Harness

__all__ = ["install", "install_harness"]

_TIMEOUT_S = 1200.0


def install(
    harness: Annotated[str, typer.Argument(help=f"One of {', '.join(harnesses.names())}.")],
) -> None:
    """Install a harness where Polar looks for it: nothing else on the machine is touched.

    Examples:
        polar install mini_swe_agent

        polar install pi
    """
    config = load_config(None, [f"harness.name={harness}"], RunConfig)
    found = install_harness(harnesses.load(harness)(config.harness.settings))
    console.print(f"[ok]✓[/ok] {found}", highlight=False)


def install_harness(harness: Harness) -> str:
    """Find a harness, or install it; say in a line what is there.

    Raises:
        HarnessMissing: It cannot be installed by Polar.
        SetupError: A command of the installation failed.
    """
    try:
        found = harness.find()
    except HarnessMissing:
        commands = harness.install_command()
        if not commands:
            raise
        with progress_line(f"installing {harness.name}") as say:
            for command in commands:
                say(" ".join(command[:4]) + " …")
                _run(harness.name, command)
        found = harness.find()
    return f"{harness.name} {found.version} at {found.executable}"


def _run(name: str, command: tuple[str, ...]) -> None:
    if shutil.which(command[0]) is None:
        raise SetupError(
            f"installing {name} needs `{command[0]}`, which is not on PATH",
            fix=f"Install {command[0]}, or install {name} yourself and set its `executable`.",
        )
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise SetupError(
            f"installing {name} took longer than {_TIMEOUT_S:.0f} s",
            where=" ".join(command),
            fix="Check the network, and run it again.",
        ) from error
    except subprocess.CalledProcessError as error:
        raise SetupError(
            f"installing {name} failed: {error.stderr.strip()[-600:]}",
            where=" ".join(command),
            fix="Run that command yourself to see more.",
        ) from error
