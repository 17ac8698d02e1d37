"""`polar demo`: the whole job on one machine, from nothing to a better model."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

import typer

from polar import harnesses
from polar.cli.console import console
from polar.cli.flags import RunFlag
from polar.cli.install import install_harness
from polar.cli.ranks import alone
from polar.cli.train import new_run_dir, run_training
from polar.config import Overrides, RunConfig, environment, parse_config, parse_override
from polar.tasks import Family

__all__ = ["demo", "demo_config"]

_HARNESS_SETTINGS: dict[str, dict[str, Any]] = {
    "mini_swe_agent": {"step_limit": 3},
    "pi": {"max_tokens": 96},
}
"""What is set besides base URL, key and model, so that a tiny model's sessions stay short."""

_STALENESS = {"embedded": 0}
"""The embedded engine shares its cores with the trainer: taking turns takes as long, and what is
trained is never stale."""

_OVERRIDES: dict[str, list[str]] = {
    "pi": [
        "rollout.max_calls=4",
        "loop.heldout_sessions=48",
        "loop.warm_start.sessions=48",
    ],
}
"""A session of Pi costs a second of Node, and its calls are JSON: a shorter evaluation, a longer
warm start, and an end to sessions that repeat themselves."""


_TASK_OVERRIDES: dict[Family, list[str]] = {
    "shell": [],
    "trail": [
        "tasks.heldout_count=64",
        "loop.heldout_sessions=64",
        "loop.warm_start.sessions=72",
    ],
}
"""A trail is solved by four turns in place of two: a longer warm start, a shorter evaluation."""

_TRAIL_TURNS: dict[str, list[str]] = {
    "mini_swe_agent": ["harness.settings.step_limit=6"],
    "pi": ["rollout.max_calls=7"],
}


def demo(  # noqa: PLR0913, PLR0917 - one parameter a flag
    harness: Annotated[str, typer.Option(help="mini_swe_agent or pi.")] = "mini_swe_agent",
    tasks: Annotated[
        Family, typer.Option(help="shell: one command a task; trail: three, one after the other.")
    ] = "shell",
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    steps: Annotated[int, typer.Option(help="Steps of reinforcement learning.")] = 20,
    minutes: Annotated[
        float, typer.Option(help="Time budget: no step is begun that would exceed it.")
    ] = 20.0,
    model: Annotated[str, typer.Option(help="A known name, a folder, or a hub id.")] = (
        "smollm2-135m"
    ),
    engine: Annotated[str, typer.Option(help="embedded or vllm.")] = "embedded",
    engine_url: Annotated[str | None, typer.Option(help="Address of the vLLM server.")] = None,
    run_dir: RunFlag = None,
    override: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting: loop.group_size=16")
    ] = None,
) -> None:
    """Train SmolLM2-135M by reinforcement learning through a real coding agent, in 20 minutes.

    A short supervised start on a scripted expert's sessions, an evaluation on held-out kinds of
    tasks, GRPO, the same evaluation again. Everything runs here, on the CPU; agents are sandboxed
    where bubblewrap is installed.

    Examples:
        polar demo

        polar demo --harness pi --seed 1

        polar demo --tasks trail --minutes 40

        polar demo --engine vllm --engine-url http://127.0.0.1:8000
    """
    alone(environment(), "polar demo")
    config = demo_config(
        harness=harness,
        tasks=tasks,
        seed=seed,
        steps=steps,
        minutes=minutes,
        model=model,
        engine=engine,
        engine_url=engine_url,
        overrides=override or [],
    )
    console.print("[heading]Polar demo[/heading]: reinforcement learning through", harness)
    installed = install_harness(harnesses.load(harness)(config.harness.settings))
    console.print(f"[ok]✓[/ok] {installed}", highlight=False)
    run_training(config, run_dir or new_run_dir(), resume=False)


def demo_config(  # noqa: PLR0913 - one parameter a flag
    *,
    harness: str,
    tasks: Family,
    seed: int,
    steps: int,
    minutes: float,
    model: str,
    engine: str,
    engine_url: str | None,
    overrides: Overrides,
) -> RunConfig:
    """Compose the demo's config; every value of it can be overridden.

    Raises:
        ConfigError: A flag or an override is wrong.
    """
    data: dict[str, Any] = {
        "model": model,
        "seed": seed,
        "engine": {"name": engine, "settings": {"urls": [engine_url]} if engine_url else {}},
        "harness": {"name": harness, "settings": dict(_HARNESS_SETTINGS.get(harness, {}))},
        "tasks": {"family": tasks, "train_count": 512, "heldout_count": 96},
        "rollout": {"run_workers": 16, "max_tokens": 64},
        "train": {
            "lr": 3e-5,
            "dtype": _dtype(engine),
            "train_embeddings": False,
            "seed": seed,
        },
        "loop": {
            "steps": steps,
            "minutes": minutes,
            "tasks_per_step": 6,
            "group_size": 8,
            "max_staleness": _STALENESS.get(engine, 1),
            "heldout_sessions": 96,
            "save_every": 5,
            "warm_start": {"sessions": 40, "epochs": 1, "batch_sessions": 8, "lr": 5e-5},
        },
    }
    own = [
        *_OVERRIDES.get(harness, []),
        *_TASK_OVERRIDES[tasks],
        *(_TRAIL_TURNS.get(harness, []) if tasks == "trail" else []),
    ]
    return parse_config(
        data,
        RunConfig,
        where="the demo's flags",
        overrides=[
            *(replace(parse_override(each), given="the demo's own settings") for each in own),
            *overrides,
        ],
    )


def _dtype(engine: str) -> str:
    """Choose what this machine trains in quickest."""
    from polar.train.model import choose_device, quick_dtype

    return quick_dtype(choose_device("auto", cpu_only=engine == "embedded"))
