"""Plays sessions with every harness preset and writes docs/harnesses.md: `make harnesses`.

Each harness is installed at its pinned version if it is not there, runs unmodified in the sandbox
against a script, and every sampled token is compared with the engine's own tape. The sessions with
sub-agents and with a full history are those of the tests.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path

from polar import harnesses, runtimes
from polar.cli.harness_check import PlayedSession, checked, play
from polar.cli.install import install_harness
from polar.config import environment
from polar.config.families import settings_model
from polar.trajectory import build

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))

import compaction_sessions  # noqa: E402
import subagent_sessions  # noqa: E402

PAGE = ROOT / "docs" / "harnesses.md"
WIRE = {
    "aider": "OpenAI Chat",
    "claude_agent_sdk": "Anthropic Messages",
    "claude_code": "Anthropic Messages",
    "codex": "OpenAI Responses",
    "gemini_cli": "Google generateContent",
    "mini_swe_agent": "OpenAI Chat",
    "openai_agents": "OpenAI Responses",
    "opencode": "OpenAI Chat",
    "pi": "OpenAI Chat",
    "qwen_code": "OpenAI Chat",
}
HEAD = (
    "| preset | version | wire format | calls | sampled tokens kept | forks | seconds |",
    "|---|---|---|---|---|---|---|",
)
KINDS_HEAD = (
    "| session | calls by kind | sampled tokens kept | dropped | forks |",
    "|---|---|---|---|---|",
)


def main() -> None:
    """Play every preset and replace the tables of the page."""
    page = _with_table(PAGE.read_text(encoding="utf-8"), "table", (*HEAD, *map(_row, WIRE)))
    page = _with_table(page, "kinds", (*KINDS_HEAD, *_kind_rows()))
    PAGE.write_text(page, encoding="utf-8")
    print(f"wrote {PAGE}")


def _with_table(page: str, name: str, lines: Iterable[str]) -> str:
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, _, rest = page.partition(begin)
    after = rest.partition(end)[2]
    return before + "\n".join([begin, "", *lines, "", end]) + after


def _kind_rows() -> Iterator[str]:
    for name in subagent_sessions.WAYS:
        yield _kind_row(
            f"{name}: two sub-agents at once",
            lambda folder, name=name: subagent_sessions.play_errands(name, folder),
        )
    for name, way in compaction_sessions.WAYS.items():
        yield _kind_row(
            f"{name}: a full history",
            lambda folder, way=way: compaction_sessions.play_full(way, folder),
        )


def _kind_row(title: str, session: Callable[[Path], Coroutine[None, None, PlayedSession]]) -> str:
    print(title)
    with tempfile.TemporaryDirectory(prefix="polar-harnesses-") as folder:
        played = asyncio.run(session(Path(folder)))
    assert played.wrote, played.result
    kinds = Counter(call.kind for call in played.calls)
    dropped = build(played.calls).report.dropped
    cells = (
        title,
        ", ".join(f"{count} {kind}" for kind, count in kinds.items()),
        f"{played.fidelity.kept} of {played.fidelity.sampled}",
        ", ".join(f"{tokens} {reason}" for reason, tokens in dropped.items()) or "none",
        ", ".join(played.forks) or "none",
    )
    return "| " + " | ".join(cells) + " |"


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
