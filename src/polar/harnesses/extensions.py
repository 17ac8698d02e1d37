"""How MCP servers and skills come to a harness that knows them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from polar.errors import ConfigError
from polar.harnesses.settings import ExtensibleSettings, InstalledSettings, McpSettings

__all__ = ["json_servers", "shown_folders", "with_skills"]

_COPY = (
    'while [ "$1" != -- ]; do into="$0/${1##*/}"; '
    'mkdir -p "$into" && cp -R "$1/." "$into/" || exit 126; shift; done; shift; exec "$@"'
)
"""Copied, because some harnesses do not follow links and some write beside what they read."""


def shown_folders(settings: InstalledSettings) -> tuple[Path, ...]:
    """Name the host folders that a sandbox must show for MCP servers and skills.

    Raises:
        ConfigError: A folder is not there, or is no skill.
    """
    servers = settings.mcp_servers.values() if isinstance(settings, McpSettings) else ()
    skills = settings.skills if isinstance(settings, ExtensibleSettings) else ()
    needed = [folder for server in servers for folder in server.read_only]
    for folder in needed:
        if not folder.is_dir():
            raise ConfigError(
                "a folder that an MCP server needs is not there",
                where=str(folder),
                fix="Correct `read_only` of the server.",
            )
    for folder in skills:
        if not (folder / "SKILL.md").is_file():
            raise ConfigError(
                "a skill is a folder with a SKILL.md, and there is none",
                where=str(folder),
                fix="Correct `skills`.",
            )
    return (*needed, *skills)


def with_skills(
    argv: Sequence[str], settings: ExtensibleSettings, *, folder: str
) -> tuple[str, ...]:
    """Have skills copied into the harness's folder before a program starts.

    Args:
        argv: The program's command line.
        settings: Say which skills.
        folder: Where the harness looks for skills; it is made.
    """
    if not settings.skills:
        return tuple(argv)
    return ("/bin/sh", "-c", _COPY, folder, *map(str, settings.skills), "--", *argv)


def json_servers(settings: McpSettings) -> Mapping[str, Mapping[str, object]]:
    """Write MCP servers as most harnesses want them: `mcpServers`."""
    return {
        name: {"command": server.command, "args": list(server.args), "env": dict(server.env)}
        for name, server in settings.mcp_servers.items()
    }
