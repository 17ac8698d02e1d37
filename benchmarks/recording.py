"""Record a group of sessions: a real harness, played by seeded scripts.

The harness, its prompts, its sandbox, the gateway, the journal and the grading are what every run
uses. What the model would say is made up: each session has its own seeded list of commands over
the same few files, each with a sentence before it, so that sessions differ from their first reply
on. Every second one ends with the right answer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from polar import harnesses, runtimes
from polar.config.families import settings_model, work_settings
from polar.errors import PolarError
from polar.gateway import Gateway
from polar.harnesses.base import Harness
from polar.harnesses.settings import MiniSweAgentSettings, PiSettings
from polar.rendering.base import Renderer
from polar.rollout import ExpertEngine, Plan, Rollout
from polar.rollout.settings import RolloutSettings
from polar.store import SqliteJournal, read_journal
from polar.types import Call, EvaluatorSpec, Group, Message, Task, TaskId

WORDS = tuple(
    word
    for line in (
        "amber basin cedar delta ember fjord grove haven inlet jetty knoll larch maple north",
        "ocean pearl quarry ridge stone tidal upper vivid water xenon yield zebra",
    )
    for word in line.split()
)
FILES = ("notes.txt", "report.txt", "src/main.py", "src/table.csv")
SENTENCES = (
    "I want to see what {file} says about {word}.",
    "The {word} lines of {file} may tell more.",
    "Before I go on, I look at a part of {file}.",
    "Something about {word} is still missing, so I search {file}.",
    "Let me compare this with {file}.",
)
COMMANDS = (
    "sed -n '{a},{b}p' {file}",
    "grep -n {word} {file} | head -n 4",
    "grep -c {word} {file}",
    "head -n {a} {file} | tail -n 3",
    "tail -n +{a} {file} | head -n 3",
    "wc -l {file} && echo {word} >> seen.txt",
)
OWN_PROMPTS = {
    "mini_swe_agent": MiniSweAgentSettings(prompt="default", step_limit=0),
    "pi": PiSettings(system_prompt=None, context_window=1_000_000),
}
"""Settings with which a harness sends its own prompt; others do so by default."""
MAX_CONTEXT = 1_000_000
INSTRUCTION = "Find out how many lines of notes.txt name amber and write the number to answer.txt."


@dataclass(frozen=True, slots=True)
class Recording:
    """A group as it is trained on, and the calls that it was made from."""

    group: Group
    calls: dict[str, list[Call]]
    """Session id -> its calls."""


def make_task() -> Task:
    """Lay out four files of 40 lines and ask for a number."""
    rng = random.Random("files")
    files = {name: "".join(f"{_line(rng)}\n" for _ in range(40)) for name in FILES}
    return Task(
        id=TaskId("ablation"),
        instruction=INSTRUCTION,
        files=files,
        evaluator=EvaluatorSpec(
            "files", {"checks": [{"path": "answer.txt", "strip": True, "equals": _answer(files)}]}
        ),
    )


def session_turns(harness: Harness, task: Task, sample: int, turns: int) -> list[Message]:
    """Write what the model of one session says; the last turn ends it."""
    rng = random.Random(f"session {sample}")
    answer = _answer(task.files) if sample % 2 == 0 else "none"
    chosen = [
        (_fill(rng.choice(SENTENCES), rng), _fill(rng.choice(COMMANDS), rng))
        for _ in range(turns - 2)
    ]
    chosen.append(("That is all I need.", f"echo {answer} > answer.txt"))
    said = [*(sentence for sentence, _ in chosen), "The task is done."]
    messages = harness.expert_turns([command for _, command in chosen])
    return [
        replace(message, content=f"{sentence}\n\n{message.content}".rstrip())
        for sentence, message in zip(said, messages, strict=True)
    ]


def installed(name: str, *, at_work: bool = False) -> Harness:
    """Make a harness that sends its own prompt; end with what to do where it is missing.

    Args:
        name: The harness.
        at_work: Whether it is as `polar run` starts it, with all its tools.
    """
    settings = OWN_PROMPTS.get(name) or settings_model("harness", name)(
        **(work_settings(name) if at_work else {}),
        context_window=MAX_CONTEXT,  # or it summarises its history
    )
    harness = harnesses.load(name)(settings)
    try:
        harness.find()
    except PolarError as error:
        raise SystemExit(f"{error}") from error
    return harness


async def record(
    folder: Path, harness: Harness, renderer: Renderer, *, sessions: int, turns: int
) -> Recording:
    """Play the sessions of one task through harness, sandbox, gateway and journal."""
    task = make_task()
    engine = ExpertEngine(renderer.reply_ids, max_context=MAX_CONTEXT)
    plan = Plan((task,), sessions, "rollout")
    engine.prepare(
        {
            plan.session_id(0, sample): session_turns(harness, task, sample, turns)
            for sample in range(sessions)
        }
    )
    runtime = runtimes.default_runtime().runtime
    try:
        async with SqliteJournal.open(folder / "journal.sqlite") as journal:
            gateway = Gateway(engine, renderer, journal)
            async with gateway.serve():
                rollout = Rollout(
                    gateway=gateway,
                    runtime=runtime,
                    harness=harness,
                    journal=journal,
                    work_root=folder / "work",
                    model_name="recorded",
                    settings=RolloutSettings(run_workers=4, max_trace_tokens=MAX_CONTEXT),
                )
                (group,) = await rollout.collect_all(plan)
    finally:
        await runtime.aclose()
    return await asyncio.to_thread(_read, folder / "journal.sqlite", group)


def _read(path: Path, group: Group) -> Recording:
    with read_journal(path) as journal:
        calls = {t.session_id: list(journal.calls(t.session_id)) for t in group.trajectories}
    return Recording(group, calls)


def _line(rng: random.Random) -> str:
    return " ".join(rng.choices(WORDS, k=6))


def _answer(files: Mapping[str, str]) -> str:
    return str(sum("amber" in line for line in files["notes.txt"].splitlines()))


def _fill(template: str, rng: random.Random) -> str:
    a = rng.randint(3, 30)
    return template.format(
        a=a, b=a + rng.randint(1, 3), word=rng.choice(WORDS), file=rng.choice(FILES)
    )
