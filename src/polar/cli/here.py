"""Runs one harness in the user's own folder through a gateway, and keeps the session."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from polar import harnesses, trajectory
from polar.cli.log_file import run_log
from polar.cli.loop import keep_loaded, to_its_end
from polar.cli.run_folder import RunFolder
from polar.cli.work import write_trajectories
from polar.config import RunConfig
from polar.engines.base import Engine
from polar.engines.taped import TapedEngine
from polar.errors import EngineError, RuntimeFailed
from polar.gateway import Gateway, SessionPolicy, SessionUsage
from polar.harnesses.base import Harness, Launch, LaunchRequest
from polar.rendering.base import Renderer
from polar.runtimes.base import Place
from polar.runtimes.foreground import ForegroundResult, own_environment, run_in_foreground
from polar.store import SqliteJournal
from polar.types import (
    BuildReport,
    Cancelled,
    Ended,
    EvaluatorSpec,
    Failed,
    Group,
    Outcome,
    Session,
    SessionId,
    Task,
    TaskId,
    Trajectory,
)

__all__ = ["PHASE", "Work", "Worked", "cut_replies", "refused_for_length", "work_here"]

PHASE = "run"
_MOST_TOKENS = 4096
"""Of a reply for which nobody sets a limit; but no more than a quarter of the context window."""
_NO_EVALUATOR = EvaluatorSpec("none")
"""Names none: what was done at work has no grader."""


@dataclass(frozen=True, slots=True)
class Work:
    """What a harness is to do, and how it meets its user."""

    folder: Path
    """Where it works; nothing confines it."""
    environ: Mapping[str, str]
    """The user's environment."""
    instruction: str | None = None
    """What to do; absent: the user says it."""
    interactive: bool = False
    """Whether its own screen is started."""
    asks: bool = True
    """Whether it keeps its own approvals."""


@dataclass(frozen=True, slots=True)
class Worked:
    """What was kept of a session."""

    session_id: SessionId
    outcome: Outcome
    exit_code: int
    """The harness's; where a signal asked for the end, 128 and its number."""
    usage: SessionUsage
    report: BuildReport
    max_context: int
    unasked_max_tokens: int | None
    """Most sampled tokens of a call for which the harness set no limit; absent: there is one for
    all calls."""


async def work_here(
    config: RunConfig, model: tuple[Engine, Renderer], run_dir: Path, work: Work
) -> Worked:
    """Serve a harness, start it at the terminal, and keep what it and the model did.

    Args:
        config: Of the run.
        model: What samples, and its renderer.
        run_dir: Where the session is kept, beside earlier ones of the same model.
        work: What to do.

    Raises:
        EngineError: The harness's requests do not fit the model's context window.
        PolarError: A part cannot be started.
    """
    folder = RunFolder(run_dir)
    sampler, renderer = model
    engine = TapedEngine(sampler, folder.tape)
    try:
        async with (
            run_log(folder.log),
            SqliteJournal.open(folder.journal, settings=config.journal) as journal,
        ):
            gateway = Gateway(engine, renderer, journal, config.gateway)
            async with gateway.serve() as address:
                keep_loaded()
                return await _session(config, (gateway, address.url), journal, folder, work)
    finally:
        await engine.aclose()


def refused_for_length(name: str, worked: Worked) -> EngineError | None:
    """Say that the model's context window is too small for a harness, where that is so."""
    usage = worked.usage
    if not usage.refused_for_length or usage.calls:
        return None
    return EngineError(
        f"the first request of {name} has {usage.longest_refused:,} tokens, the model's context "
        f"window {worked.max_context:,}",
        fix="Serve a model with a longer context (--engine-url), or make the request shorter: "
        "docs/configuration.md lists the harness's settings.",
    )


def cut_replies(name: str, worked: Worked) -> str | None:
    """Say that replies were cut at a limit which nobody set, where that is so."""
    if not (cut := worked.usage.cut_unasked):
        return None
    replies = "1 reply was" if cut == 1 else f"{cut} replies were"
    return (
        f"{replies} cut at {worked.unasked_max_tokens:,} tokens, for {name} sets no limit: "
        "--set rollout.max_tokens=N sets another"
    )


async def _session(
    config: RunConfig,
    served: tuple[Gateway, str],
    journal: SqliteJournal,
    folder: RunFolder,
    work: Work,
) -> Worked:
    gateway, url = served
    max_context = gateway.capabilities.max_context
    harness = _fitted(config, max_context)
    number = len(await journal.sessions(phase=PHASE))
    name = f"{harness.name}-{number:04d}"
    session = Session(SessionId(name), TaskId(PHASE), name, 0, secrets.token_urlsafe(24))
    place = Place(str(work.folder), str(folder.home), url)
    launch = harness.launch(_request(config, session, place, work))
    await asyncio.to_thread(_put_files, folder.home, launch.files)
    await journal.open_session(session, phase=PHASE, step=number)
    await journal.set_state(session, "running")
    policy = _policy(config, harness, max_context)
    ended, usage = await _run(gateway, policy, (session, launch), work)
    if gateway.failure is not None:
        raise gateway.failure
    outcome = _outcome(ended, usage)
    kept = await to_its_end(_keep(config, journal, folder, (session, number, work), outcome))
    signaled = ended.interrupted_by
    code = ended.exit_code if signaled is None else 128 + signaled
    limit = policy.unasked_max_tokens
    return Worked(session.id, outcome, code, usage, kept, max_context, limit)


def _fitted(config: RunConfig, max_context: int) -> Harness:
    """Make the harness believe in the context window that there is, unless it is set."""
    settings = config.harness.settings
    can_tell = "context_window" in type(settings).model_fields
    if can_tell and "context_window" not in settings.model_fields_set:
        settings = settings.model_copy(update={"context_window": max_context})
    return harnesses.load(config.harness.name)(settings)


def _request(config: RunConfig, session: Session, place: Place, work: Work) -> LaunchRequest:
    return LaunchRequest(
        work.instruction,
        Path(config.model).name,
        session.key,
        place,
        interactive=work.interactive,
        asks=work.asks,
    )


def _policy(config: RunConfig, harness: Harness, max_context: int) -> SessionPolicy:
    """Sample as the config says; its limit of a reply holds where somebody set it."""
    rollout = config.rollout
    limited = "max_tokens" in rollout.model_fields_set  # the default is for training sessions
    return SessionPolicy(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        max_tokens=rollout.max_tokens if limited else None,
        unasked_max_tokens=None if limited else min(_MOST_TOKENS, max(1, max_context // 4)),
        max_calls=rollout.max_calls,
        kind_of=harness.kind_of,
        agent_header=harness.agent_header,
        agent_tool=harness.agent_tool,
        whole_calls=harness.whole_calls,
    )


async def _run(
    gateway: Gateway,
    policy: SessionPolicy,
    started: tuple[Session, Launch],
    work: Work,
) -> tuple[ForegroundResult, SessionUsage]:
    """Let the harness in, and out when it has ended: what still runs is abandoned, on record."""
    session, launch = started
    await gateway.open(session, policy)
    try:
        ended = await run_in_foreground(
            launch.process,
            folder=work.folder,
            env=own_environment(work.environ, launch.hides),
            interactive=work.interactive,
        )
    finally:
        usage = await to_its_end(gateway.close(session.id))
    return ended, usage


def _outcome(ended: ForegroundResult, usage: SessionUsage) -> Outcome:
    if ended.interrupted_by is not None:
        return Cancelled("interrupted")
    if usage.calls == 0:
        return Failed("running", f"no model call was made (exit {ended.exit_code})")
    return Ended(ended.exit_code)


def _state(outcome: Outcome) -> str:
    match outcome:
        case Cancelled():
            return "cancelled"
        case Failed():
            return "failed"
        case _:
            return "completed"


async def _keep(
    config: RunConfig,
    journal: SqliteJournal,
    folder: RunFolder,
    session: tuple[Session, int, Work],
    outcome: Outcome,
) -> BuildReport:
    """Record how the session ended, build its traces and write them as Parquet."""
    one, number, work = session
    await journal.set_state(one, _state(outcome), outcome)
    settings = config.rollout
    built = trajectory.build(
        await journal.calls(one.id, one.attempt),
        builder=settings.builder,
        policy=settings.build_policy,
    )
    task = Task(one.task_id, work.instruction or "", _NO_EVALUATOR)
    ids = (one.id, one.task_id, one.group_id)
    done = Trajectory(*ids, built.traces, reward=0.0, outcome=outcome, report=built.report)
    group = Group(one.group_id, task, (done,))
    await asyncio.to_thread(write_trajectories, folder.path, PHASE, number, (group,))
    return built.report


def _put_files(home: Path, files: Mapping[str, str]) -> None:
    """Write config files where only the user can read them: they hold the session's key."""
    try:
        home.mkdir(mode=0o700, exist_ok=True)
        for name, text in files.items():
            path = home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RuntimeFailed(
            f"the harness's private folder cannot be written: {error}",
            where=str(home),
            fix="Check free space and permissions there.",
        ) from error
