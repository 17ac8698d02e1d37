"""Rollouts of real parts: journal, gateway, local processes, an agent that speaks HTTP."""

import asyncio
import itertools
import os
import shlex
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from polar.engines import Chunk, SampleRequest, TapedEngine
from polar.engines.base import Engine as EngineProtocol
from polar.engines.scripted import Script, ScriptedEngine
from polar.gateway import Gateway, GatewaySettings
from polar.harnesses.settings import ShellSettings
from polar.harnesses.shell import Shell
from polar.rendering.tiny import tiny_renderer
from polar.rollout import Plan, Rollout, RolloutSettings, SessionEvent
from polar.runtimes.local import LocalRuntime
from polar.runtimes.settings import LocalSettings
from polar.store import SqliteJournal
from polar.types import EvaluatorSpec, Limits, Message, Task, TaskId

AGENT = """
import json, os, sys, time, urllib.error, urllib.request

base_url, key, instruction = sys.argv[1:4]
messages = []

def post(**fields):
    body = json.dumps({"model": "m", "messages": messages, **fields}).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(base_url + "/chat/completions", body, headers)
    return urllib.request.urlopen(request, timeout=60)

for step in instruction.split("; "):
    word, _, rest = step.partition(" ")
    if word == "ask":
        messages.append({"role": "user", "content": rest})
        reply = json.load(post())["choices"][0]["message"]
        messages.append({"role": "assistant", "content": reply["content"]})
    elif word == "narrow":
        messages.append({"role": "user", "content": rest})
        reply = json.load(post(temperature=0.1, top_p=0.5, top_k=3))["choices"][0]["message"]
        messages.append({"role": "assistant", "content": reply["content"]})
    elif word == "retry":
        last = messages.pop()
        json.load(post())
        messages.append(last)
    elif word == "try":
        messages.append({"role": "user", "content": rest})
        try:
            json.load(post())
        except urllib.error.HTTPError:
            pass
        messages.pop()
    elif word == "absent":
        assert not os.path.exists(rest)
    elif word == "edit":
        messages[1]["content"] = rest
    elif word == "leave":
        messages.append({"role": "user", "content": rest})
        with post(stream=True) as stream:
            while b'"content":"' not in stream.readline().replace(b'"content":""', b""):
                pass
        messages.pop()
    elif word == "write":
        path, _, text = rest.partition(" ")
        with open(path, "w") as file:
            file.write(text)
    elif word == "gamble":
        with open(rest, "w") as file:
            file.write("42" if sum((reply["content"] or "").encode()) % 2 else "41")
    elif word == "signal":
        with open(rest + ".part", "w") as file:
            file.write(str(os.getpid()))
        os.rename(rest + ".part", rest)
    elif word == "await":
        while not os.path.exists(rest):
            time.sleep(0.01)
    elif word == "once":
        if not os.path.exists(rest):
            open(rest, "w").close()
            sys.exit(126)
    elif word == "exit":
        sys.exit(int(rest))
"""
"""Does the steps of its instruction, one after the other."""

RENDERER = tiny_renderer()


UNHEARD = "unheard"
"""A prompt whose last message is this word is never answered in full."""


class Engine(ScriptedEngine):
    """The scripted engine, which falls silent where nobody is meant to hear the end."""

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        chunks = cast(AsyncGenerator[Chunk], super().sample(request))
        unheard = f"{UNHEARD}<|im_end|>\n<|im_start|>" in RENDERER.decode(request.prompt_ids)
        async with aclosing(chunks):
            async for chunk in chunks:
                yield chunk
                if unheard:
                    await asyncio.Event().wait()


def replying(text: str = "the answer is") -> Script:
    """Reply with a text and a number that no two requests share."""
    numbers = itertools.count()

    def script(prompt_ids: Sequence[int]) -> Sequence[int]:
        return RENDERER.reply_ids(Message("assistant", f"{text} {next(numbers)}"))

    return script


def task(
    instruction: str, *, name: str = "task", evaluator: EvaluatorSpec | None = None, **limits
) -> Task:
    """Make a task that is passed when `out` holds 42."""
    check = {"path": "out", "equals": "42"}
    return Task(
        TaskId(name),
        instruction,
        evaluator or EvaluatorSpec("files", {"checks": [check]}),
        limits=Limits(**limits),
    )


@dataclass
class World:
    """Everything that a rollout stands on, started."""

    folder: Path
    journal: SqliteJournal
    engine: ScriptedEngine
    gateway: Gateway
    url: str
    runtime: LocalRuntime
    harness: Shell
    events: list[SessionEvent] = field(default_factory=list)

    def rollout(self, on_event: Callable[[SessionEvent], None] | None = None, **settings):
        return Rollout(
            gateway=self.gateway,
            runtime=self.runtime,
            harness=self.harness,
            journal=self.journal,
            work_root=self.folder / "work",
            model_name="m",
            settings=RolloutSettings(**settings),
            on_event=on_event or self.events.append,
        )

    def states(self, session_id: str) -> list[str]:
        return [event.state for event in self.events if event.session_id == session_id]


@asynccontextmanager
async def world(
    folder: Path,
    script: Script | None = None,
    *,
    gateway: GatewaySettings | None = None,
    sampler: EngineProtocol | None = None,
    **engine,
) -> AsyncIterator[World]:
    """Start the parts of a rollout in a folder; what samples is scripted unless it is given."""
    program = folder / "agent.py"
    program.write_text(AGENT)
    python = shlex.quote(sys.executable)
    agent = f"exec {python} -I -S {shlex.quote(str(program))}"
    shell = ShellSettings(command=f"{agent} {{base_url}} {{key}} {{instruction}}")
    scripted = Engine(script or replying(), **engine)
    taped = TapedEngine(sampler or scripted, folder / "engine.tape")
    runtime = LocalRuntime(LocalSettings(preload=False))
    async with SqliteJournal.open(folder / "journal.sqlite") as journal:
        served = Gateway(taped, RENDERER, journal, gateway)
        async with served.serve() as address:
            yield World(
                folder=folder,
                journal=journal,
                engine=scripted,
                gateway=served,
                url=address.url,
                runtime=runtime,
                harness=Shell(shell),
            )
        await taped.aclose()
    await runtime.aclose()


def plan(*tasks: Task, samples: int = 1, phase: str = "train", **fields) -> Plan:
    return Plan(tasks, samples, phase, **fields)


async def appeared(path: Path) -> None:
    """Wait for a file that another process makes."""
    await asyncio.to_thread(_wait_for, path)


def _wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
