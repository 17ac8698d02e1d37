"""The composition root: builds the parts of a run from its config and takes them down again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from polar import engines, harnesses, models, runtimes
from polar.cli.console import plain
from polar.cli.engine_log import engine_log
from polar.cli.gateway_worker import Welcome, spawn_worker
from polar.cli.log_file import run_log
from polar.cli.loop import keep_loaded
from polar.cli.ranks import joined
from polar.cli.run_folder import RunFolder
from polar.config import RunConfig, environment
from polar.engines.base import Engine
from polar.engines.servers import KnownWeights, ReplicatedEngine
from polar.engines.taped import TapedEngine
from polar.errors import ConfigError
from polar.gateway import Gateway, ModelBoundary, serve_control
from polar.gateway.workers import Workers
from polar.harnesses.base import Harness
from polar.rendering import load_renderer
from polar.rendering.base import Renderer
from polar.rollout import ExpertEngine, Plan, Rollout, SessionEvent
from polar.runtimes.base import Runtime
from polar.runtimes.scratch import remove_stale
from polar.store import SqliteJournal
from polar.types import Group, Message, Task

if TYPE_CHECKING:
    from polar.train import Trainer
    from polar.train.ranks import Ranks

__all__ = ["EngineSync", "Parts", "compose", "make_engine"]


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything a command needs, started."""

    config: RunConfig
    run_dir: Path
    model_dir: Path
    renderer: Renderer
    engine: Engine
    journal: SqliteJournal
    gateway: ModelBoundary
    harness: Harness
    runtime: Runtime
    rollout: Rollout
    trainer: Trainer | None
    expert: tuple[ExpertEngine, Rollout] | None

    async def collect(
        self,
        tasks: Sequence[Task],
        *,
        samples: int,
        phase: str,
        step: int,
        places: Sequence[int] | None = None,
        on_group: Callable[[Group], None] = lambda group: None,
    ) -> tuple[Group, ...]:
        """Run sessions of the policy."""
        version = None if self.trainer is None else self.trainer.weight_version
        max_age = 0 if phase.startswith("heldout") else self.config.loop.max_staleness
        plan = Plan(
            tuple(tasks),
            samples,
            phase,
            step,
            weight_version=version,
            max_age=max_age,
            places=None if places is None else tuple(places),
        )
        return await self.rollout.collect_all(plan, on_group=on_group)

    async def collect_expert(
        self, tasks: Sequence[Task], *, samples: int, phase: str, step: int
    ) -> tuple[Group, ...]:
        """Run the expert's sessions, through the same harness and gateway code.

        Raises:
            ConfigError: A task has no expert, or the harness cannot be played by one.
        """
        assert self.expert is not None
        engine, rollout = self.expert
        plan = Plan(tuple(tasks), samples, phase, step, weight_version=0)
        engine.prepare(
            {
                plan.session_id(index, sample): self._expert_turns(task)
                for index, task in enumerate(plan.tasks)
                for sample in range(samples)
            }
        )
        return await rollout.collect_all(plan)

    def _expert_turns(self, task: Task) -> tuple[Message, ...]:
        turns = self.harness.expert_turns(task.expert) if task.expert else ()
        if not turns:
            lacking = f"the harness {self.harness.name}" if task.expert else f"task {task.id!r}"
            raise ConfigError(
                f"{lacking} has no expert to learn from",
                where="loop.warm_start",
                fix="Set loop.warm_start.sessions to 0.",
            )
        return turns


class EngineSync:
    """Gives the engine the trainer's weights: in place when they share memory, else as files."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._shared = parts.config.engine.name == "embedded"

    async def before(self) -> None:
        """Hold new calls back and stop sampling."""
        await self._parts.gateway.pause()
        await self._parts.engine.pause()

    async def after(self, version: int) -> None:
        """Load the weights and let calls through."""
        path = None if self._shared else await asyncio.to_thread(self._write, version)
        await self._parts.engine.load_weights(version, path)
        await self._parts.engine.resume()
        await self._parts.gateway.resume()

    def _write(self, version: int) -> Path:
        assert self._parts.trainer is not None
        path = self._parts.run_dir / "weights"
        self._parts.trainer.save(path)
        return path


@asynccontextmanager
async def compose(
    config: RunConfig,
    run_dir: Path,
    *,
    cache: Path,
    training: bool,
    on_event: Callable[[SessionEvent], None],
    say: Callable[[str], None],
) -> AsyncIterator[Parts]:
    """Start the parts of a run in order; leave in the opposite order.

    Raises:
        PolarError: A part cannot be started; says which and what to do.
    """
    _check_workers(config)
    harness = harnesses.load(config.harness.name)(config.harness.settings)
    harness.find()
    await asyncio.to_thread(remove_stale)
    model_dir = await asyncio.to_thread(models.resolve, config.model, cache=cache, progress=say)
    renderer = await asyncio.to_thread(load_renderer, str(model_dir))
    async with AsyncExitStack() as stack:
        ranks = stack.enter_context(joined(environment(), model_dir)) if training else None
        engine, trainer = await asyncio.to_thread(
            _engine_and_trainer, config, model_dir, training, ranks
        )
        if trainer is not None and trainer.notice is not None:
            say(f"[yellow]note:[/yellow] {plain(trainer.notice)}")
        folder = RunFolder(run_dir)
        await stack.enter_async_context(run_log(folder.log))
        await stack.enter_async_context(engine_log(folder.engine_log))
        taped = TapedEngine(engine, folder.tape)
        stack.push_async_callback(taped.aclose)
        if training:
            await _check_updates(taped, config.engine.name)
        journal = await stack.enter_async_context(
            SqliteJournal.open(folder.journal, settings=config.journal)
        )
        runtime = _runtime(config, say)
        stack.push_async_callback(runtime.aclose)

        def rollout_at(gateway: ModelBoundary) -> Rollout:
            return Rollout(
                gateway=gateway,
                runtime=runtime,
                harness=harness,
                journal=journal,
                work_root=run_dir / "work",
                model_name=model_dir.name,
                settings=config.rollout,
                on_event=on_event,
            )

        gateway: ModelBoundary
        if config.gateway.workers:
            gateway = _workers(config, engine, journal, (model_dir, folder))
            await stack.enter_async_context(gateway.serve())
        else:
            gateway = Gateway(taped, renderer, journal, config.gateway)
            await stack.enter_async_context(gateway.serve())
        keep_loaded()
        if config.gateway.control is not None:
            control = await stack.enter_async_context(
                serve_control(gateway, journal, config.gateway.control)
            )
            say(f"control API at {control.url}")
        expert = None
        if training and config.loop.warm_start.sessions:
            scripted = ExpertEngine(renderer.reply_ids)
            taped_expert = TapedEngine(scripted, folder.expert_tape)
            stack.push_async_callback(taped_expert.aclose)
            expert_gateway = Gateway(taped_expert, renderer, journal, config.gateway)
            await stack.enter_async_context(expert_gateway.serve())
            expert = (scripted, rollout_at(expert_gateway))
        yield Parts(
            config=config,
            run_dir=run_dir,
            model_dir=model_dir,
            renderer=renderer,
            engine=taped,
            journal=journal,
            gateway=gateway,
            harness=harness,
            runtime=runtime,
            rollout=rollout_at(gateway),
            trainer=trainer,
            expert=expert,
        )


def make_engine(config: RunConfig, model_dir: Path) -> Engine:
    """Make what samples, for a run that trains nothing."""
    return _engine_and_trainer(config, model_dir, False)[0]


def _engine_and_trainer(
    config: RunConfig, model_dir: Path, training: bool, ranks: Ranks | None = None
) -> tuple[Engine, Trainer | None]:
    make = engines.load(config.engine.name)
    embedded = config.engine.name == "embedded"
    if not (embedded or training):
        return make(config.engine.settings), None
    from polar.train import Trainer
    from polar.train.model import choose_device, load_model

    # Of several ranks each has a GPU, and rank 0 keeps a copy to serve and save from.
    device = choose_device("cpu" if ranks else config.train.device, cpu_only=embedded)
    model = load_model(model_dir, device)
    trainer = Trainer(model, config.train, ranks=ranks) if training else None
    engine = make(model, config.engine.settings) if embedded else make(config.engine.settings)
    return engine, trainer


def _check_workers(config: RunConfig) -> None:
    """See that the engine can be used by several processes.

    Raises:
        ConfigError: It is in this one.
    """
    if not config.gateway.workers:
        return
    name = config.engine.name
    make = None if name == "embedded" else engines.load(name)
    if not (isinstance(make, type) and issubclass(make, ReplicatedEngine)):
        raise ConfigError(
            f"the engine {name} samples in the run's own process, so other processes cannot use it",
            where="gateway.workers",
            fix="Set gateway.workers to 0, or use an engine on servers, such as vllm.",
        )


def _workers(
    config: RunConfig, leader: Engine, journal: SqliteJournal, folders: tuple[Path, RunFolder]
) -> Workers:
    """Make the gateway of several processes, which all sample from the engine's servers."""
    assert isinstance(leader, ReplicatedEngine)
    model_dir, folder = folders
    make = cast(Callable[..., ReplicatedEngine], engines.load(config.engine.name))

    def welcome(number: int, weights: KnownWeights) -> Welcome:
        return Welcome(
            make_engine=partial(make, config.engine.settings),
            make_renderer=partial(load_renderer, str(model_dir)),
            settings=config.gateway,
            journal=folder.journal,
            cache_mb=config.journal.cache_mb,
            tape=folder.worker_tape(number),
            weights=weights,
        )

    return Workers(leader, journal, config.gateway, spawn=spawn_worker, welcome=welcome)


async def _check_updates(engine: Engine, name: str) -> None:
    """See before anything is run that the engine can be given what is learned.

    Servers that a killed run has left paused go on first.

    Raises:
        ConfigError: It takes no new weights.
    """
    await engine.resume()
    found = await engine.probe()
    if not found.weight_updates:
        raise ConfigError(
            f"the engine {name} cannot take new weights ({found.detail})",
            where="engine.name",
            fix="Train with an engine that can; `polar rollout` works with this one.",
        )


def _runtime(config: RunConfig, say: Callable[[str], None]) -> Runtime:
    if config.runtime.name != "auto":
        return runtimes.load(config.runtime.name)(config.runtime.settings)
    choice = runtimes.default_runtime()
    if choice.warning is not None:
        say(f"[yellow]warning:[/yellow] {plain(choice.warning)}")
    return choice.runtime
