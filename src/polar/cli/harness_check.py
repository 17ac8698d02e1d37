"""Plays one session of a real harness against a script, and reads what came to the gateway."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from polar import harnesses, runtimes
from polar.cli.findings import Finding
from polar.cli.loop import run_async
from polar.engines.base import Engine
from polar.engines.scripted import ScriptedEngine
from polar.engines.taped import TapedEngine, read_tape
from polar.errors import PolarError
from polar.gateway import Gateway, SessionPolicy
from polar.harnesses.base import Harness, LaunchRequest
from polar.rendering.base import Renderer
from polar.rendering.tiny import tiny_renderer
from polar.runtimes.base import ExecResult, Runtime, SandboxSpec
from polar.store import SqliteJournal, read_journal
from polar.trajectory import (
    FidelityReport,
    TapeRecord,
    build,
    check,
    check_tape,
)
from polar.types import Call, Limits, Message, Session, SessionId, TaskId

__all__ = ["PlayedSession", "check_harness", "checked", "play", "scripted_model"]

_COMMANDS = ("echo hello > hello.txt", "cat hello.txt")
_INSTRUCTION = "Create a file hello.txt that contains the word hello. Then show it."
_SESSION = SessionId("harness-check")
_TURN = "<|im_start|>assistant\n"
_LIMITS = Limits(memory_mb=8192, processes=512)
_RUN_S = 120.0
_MAX_CONTEXT = 2_000_000
_MAX_CALLS = 20


@dataclass(frozen=True, slots=True)
class PlayedSession:
    """What a harness did in a session of two commands and an end."""

    result: ExecResult
    wrote: bool
    """Whether the file that the scripted model wrote is there."""
    calls: tuple[Call, ...]
    """All calls, in order."""
    fidelity: FidelityReport
    """What was checked token by token, against the engine's own tape too."""

    @property
    def forks(self) -> tuple[str, ...]:
        """Why calls after the first did not extend the one before, in order."""
        return tuple(call.fork_reason for call in self.calls if call.fork_reason is not None)


async def play(
    harness: Harness,
    runtime: Runtime,
    folder: Path,
    *,
    model: tuple[Engine, Renderer] | None = None,
    max_tokens: int | None = None,
    run_s: float = _RUN_S,
) -> PlayedSession:
    """Run a harness through gateway, sandbox and journal.

    Args:
        harness: An installed harness.
        runtime: Where it runs.
        folder: An empty folder for the work, the journal and the tape.
        model: What samples, and its renderer; absent: a script of two commands and an end.
        max_tokens: Most sampled tokens of a call; absent: what the harness asks for.
        run_s: After how many seconds the harness is killed.

    Raises:
        FidelityError: A token that was sampled is not on record exactly as it was.
        PolarError: A part cannot be started.
    """
    if model is None:
        model = await asyncio.to_thread(scripted_model, harness)
    sampler, renderer = model
    engine = TapedEngine(sampler, folder / "tape")
    work = folder / "work"
    await asyncio.to_thread(work.mkdir)
    try:
        async with SqliteJournal.open(folder / "journal.sqlite") as journal:
            gateway = Gateway(engine, renderer, journal)
            async with gateway.serve() as address:
                session = Session(_SESSION, TaskId("check"), "check", 0, "polar-harness-check")
                await journal.open_session(session, phase="check", step=0)
                await gateway.open(
                    session,
                    SessionPolicy(
                        max_tokens=max_tokens,
                        max_calls=_MAX_CALLS,
                        kind_of=harness.kind_of,
                        agent_header=harness.agent_header,
                        agent_tool=harness.agent_tool,
                        whole_calls=harness.whole_calls,
                    ),
                )
                result = await _run(harness, runtime, work, (address.url, session.key), run_s=run_s)
    finally:
        await engine.aclose()
    return await asyncio.to_thread(_read, folder, result)


def checked(name: str, settings: BaseModel) -> Harness:
    """Make a harness for the check: the script's tokens are many, and are not to be summarised.

    Args:
        name: A name of the harnesses family.
        settings: Its settings.
    """
    if "context_window" in type(settings).model_fields:
        settings = settings.model_copy(update={"context_window": _MAX_CONTEXT})
    return harnesses.load(name)(settings)


def scripted_model(
    harness: Harness, commands: Sequence[str] = _COMMANDS
) -> tuple[Engine, Renderer]:
    """Make a model that runs commands through a harness's own tool and ends."""
    renderer = tiny_renderer()
    return ScriptedEngine(
        _Script(renderer, harness.expert_turns(commands)), max_context=_MAX_CONTEXT
    ), renderer


def check_harness(name: str, settings: BaseModel) -> Iterator[Finding]:
    """Play a session and say what it shows.

    Args:
        name: A name of the harnesses family.
        settings: Its settings.
    """
    subject = f"session of {name}"
    try:
        harness = checked(name, settings)
        harness.find()
        with tempfile.TemporaryDirectory(prefix="polar-check-") as folder:
            played = run_async(_play_once(harness, Path(folder)))
    except PolarError as error:
        yield Finding(subject, "fail", error.finding, error.fix)
        return
    found = (
        f"{len(played.calls)} calls in {played.result.wall_s:.1f} s, exit code "
        f"{played.result.exit_code}, file {'written' if played.wrote else 'missing'}, "
        f"{played.fidelity.kept} of {played.fidelity.sampled} sampled tokens kept, "
        f"forks: {', '.join(played.forks) or 'none'}"
    )
    fix = f"It said: {_said(played.result)}"
    yield Finding(subject, "ok" if played.wrote else "fail", found, None if played.wrote else fix)


async def _play_once(harness: Harness, folder: Path) -> PlayedSession:
    runtime = runtimes.default_runtime().runtime
    try:
        return await play(harness, runtime, folder)
    finally:
        await runtime.aclose()


async def _run(
    harness: Harness, runtime: Runtime, work: Path, address: tuple[str, str], *, run_s: float
) -> ExecResult:
    url, key = address
    installation = await asyncio.to_thread(harness.find)
    async with runtime.start(SandboxSpec(work, _LIMITS, installation.read_only, url)) as sandbox:
        launch = harness.launch(LaunchRequest(_INSTRUCTION, "polar-check", key, sandbox.place))
        await sandbox.put_files(launch.files)
        return await sandbox.run(launch.process, timeout_s=run_s)


class _Script:
    """Replies with the harness's expert turns; to side calls, with words."""

    def __init__(self, renderer: Renderer, turns: Sequence[Message]) -> None:
        self._renderer = renderer
        self._turns = turns

    def __call__(self, prompt_ids: Sequence[int]) -> Sequence[int]:
        """Give the reply to a prompt: which turn it is follows from the prompt alone."""
        prompt = self._renderer.decode(prompt_ids)
        turn = prompt.count(_TURN) - 1
        reply = self._turns[min(turn, len(self._turns) - 1)]
        if any(f'"name": "{call.name}"' not in prompt for call in reply.tool_calls):
            reply = Message("assistant", "Done.")
        return self._renderer.reply_ids(reply)


def _read(folder: Path, result: ExecResult) -> PlayedSession:
    with read_journal(folder / "journal.sqlite") as journal:
        calls = tuple(journal.calls(_SESSION, 0))
    fidelity = check(calls, build(calls))
    tape = folder / "tape"
    entries = read_tape(tape) if tape.exists() else ()  # nothing was sampled
    check_tape(
        calls,
        [
            TapeRecord(entry.prompt_sha256, entry.prompt_tokens, entry.token_ids, entry.logprobs)
            for entry in entries
        ],
    )
    hello = folder / "work" / "hello.txt"
    wrote = hello.is_file() and hello.read_text(encoding="utf-8", errors="replace") == "hello\n"
    return PlayedSession(result, wrote, calls, fidelity)


def _said(result: ExecResult) -> str:
    return (result.stderr.strip() or result.stdout.strip() or "nothing")[-400:]
