"""`polar run` with a scripted model: `run_here.py HARNESS RUN_FOLDER CONTEXT FLAGS [TASK]`.

FLAGS are words joined by commas: `yes`, `interactive`, `none`. The variable SETTINGS holds settings
of the harness (or of `rollout.`), parted by blanks; their own blanks are no-break spaces. COMMANDS
is a command for the expert.
"""

import asyncio
import os
import sys
from pathlib import Path

from polar.cli.harness_check import scripted_model
from polar.cli.here import Work, cut_replies, refused_for_length, work_here
from polar.cli.run import kept_in, run_config
from polar.cli.work import claimed
from polar.engines.scripted import ScriptedEngine
from polar.harnesses import load
from polar.harnesses.base import Harness
from polar.rendering.tiny import tiny_renderer
from polar.types import Message


def model(harness: Harness, commands: tuple[str, ...] | None, context: int):
    """Make a model: of a small context that says much, of one word, or the expert."""
    renderer = tiny_renderer()
    said = renderer.reply_ids(Message("assistant", "Hello."))
    if context:
        long = renderer.reply_ids(Message("assistant", "Hello. " * 20))
        engine = ScriptedEngine(lambda _: long, max_context=context)
        return engine, renderer
    if harness.name == "shell":
        return ScriptedEngine(lambda _: said, max_context=100_000), renderer
    return scripted_model(harness) if commands is None else scripted_model(harness, commands)


def main() -> int:
    name, folder, context, flags, *task = sys.argv[1:]
    settings = [
        (each if each.startswith("rollout.") else f"harness.settings.{each}").replace("\u00a0", " ")
        for each in os.environ.get("SETTINGS", "").split(" ")
        if each
    ]
    config = run_config(None, name, [f"harness.name={name}", *settings])
    harness = load(name)(config.harness.settings)
    commands = os.environ.get("COMMANDS")
    engine, renderer = model(harness, (commands,) if commands else None, int(context))
    work = Work(
        Path.cwd(),
        os.environ,
        task[0] if task else None,
        interactive="interactive" in flags,
        asks="yes" not in flags,
    )
    run_dir = Path(folder)
    with claimed(run_dir):
        kept_in(run_dir, config)
        worked = asyncio.run(work_here(config, (engine, renderer), run_dir, work))
    if (refused := refused_for_length(name, worked)) is not None:
        print(refused, file=sys.stderr)
        return refused.exit_code
    print(worked.session_id, worked.outcome, cut_replies(name, worked) or "", file=sys.stderr)
    return worked.exit_code


if __name__ == "__main__":
    sys.exit(main())
