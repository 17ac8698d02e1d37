"""Plays a session with every harness preset and writes docs/harnesses.md: `make harnesses`.

Each harness is installed at its pinned version if it is not there, runs unmodified in the sandbox
against a script, and every sampled token is compared with the engine's own tape.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from polar import harnesses, runtimes
from polar.cli.harness_check import PlayedSession, checked, play
from polar.cli.install import install_harness
from polar.config import environment
from polar.config.families import settings_model

PAGE = Path(__file__).resolve().parent.parent / "docs" / "harnesses.md"
MARKS = ("<!-- table: begin -->", "<!-- table: end -->")
WIRE = {
    "claude_code": "Anthropic Messages",
    "codex": "OpenAI Responses",
    "gemini_cli": "Google generateContent",
    "mini_swe_agent": "OpenAI Chat",
    "opencode": "OpenAI Chat",
    "pi": "OpenAI Chat",
    "qwen_code": "OpenAI Chat",
}
HEAD = (
    "| preset | version | wire format | calls | sampled tokens kept | forks | seconds |",
    "|---|---|---|---|---|---|---|",
)


def main() -> None:
    """Play every preset and replace the table of the page."""
    rows = [_row(name) for name in WIRE]
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(MARKS[0])
    after = rest.partition(MARKS[1])[2]
    table = "\n".join([MARKS[0], "", *HEAD, *rows, "", MARKS[1]])
    PAGE.write_text(before + table + after, encoding="utf-8")
    print(f"wrote {PAGE}")


def _row(name: str) -> str:
    harness = checked(name, settings_model("harness", name)(cache=environment().cache))
    print(install_harness(harness))
    version = harness.find().version
    with tempfile.TemporaryDirectory(prefix="polar-harnesses-") as folder:
        played = asyncio.run(_play(harness, Path(folder)))
    assert played.wrote, played.result
    kept = f"{played.fidelity.kept} of {played.fidelity.sampled}"
    forks = ", ".join(played.forks) or "none"
    cells = (name, version, WIRE[name], len(played.calls), kept, forks)
    return "| " + " | ".join(map(str, cells)) + f" | {played.result.wall_s:.1f} |"


async def _play(harness: harnesses.base.Harness, folder: Path) -> PlayedSession:
    runtime = runtimes.default_runtime().runtime
    try:
        return await play(harness, runtime, folder)
    finally:
        await runtime.aclose()


if __name__ == "__main__":
    main()
