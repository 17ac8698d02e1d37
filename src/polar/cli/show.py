"""`polar show SESSION`: a session's conversation, token by token, with what became of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, assert_never

import typer
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from polar import models
from polar.cli.console import console, plain, progress_line, without_control
from polar.cli.run_folder import RunFolder, chosen_run
from polar.config import environment
from polar.errors import ConfigError
from polar.rendering import load_renderer
from polar.store import SessionRecord, read_journal
from polar.trajectory.builders import drop_reason
from polar.types import Call, Cancelled, Completed, Ended, Failed, Grade, Outcome, TimedOut

if TYPE_CHECKING:
    from polar.rendering import Renderer

__all__ = ["call_body", "call_heading", "named_in", "outcome_text", "pieces", "show"]

Decode = Callable[[Sequence[int]], str]

_LISTED = 40
_HALF_CHARACTER = "\N{REPLACEMENT CHARACTER}"
_LONGEST_CHARACTER_TOKENS = 8
_SHADES = ((0.9, "black on green"), (0.5, "black on yellow"), (0.1, "black on dark_orange"))
_UNLIKELY = "white on red"


def show(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RUN] [SESSION]",
            help="Run folder (the newest in ./runs, else of `polar run`), and the id of a session "
            "or the beginning of it.",
        ),
    ] = None,
    run: Annotated[Path | None, typer.Option(help="The same as RUN.")] = None,
    attempt: Annotated[
        int | None, typer.Option(min=0, help="An earlier attempt of the session, from 0.")
    ] = None,
    logprobs: Annotated[
        bool, typer.Option("--logprobs", help="Shade each sampled token by its probability.")
    ] = False,
) -> None:
    """Look at a session: what the model read, what it sampled, what that earned.

    Without SESSION, or with a beginning that several ids share, the sessions are listed.

    Examples:
        polar show

        polar show heldout_after-0000-003-00

        polar show runs/demo train-0012 --logprobs
    """
    named, wanted = named_in(words or [])
    folder = chosen_run(named, run, data=environment().data)
    with read_journal(folder.journal) as journal:
        several = [each for each in journal.sessions() if each.session.id.startswith(wanted)]
        if len(several) > 1 and wanted not in {each.session.id for each in several}:
            _list(several, folder)
            return
        found = journal.find(wanted)
        if attempt is not None and attempt > found.session.attempt:
            raise ConfigError(
                f"{found.session.id} has no attempt {attempt}",
                where="--attempt",
                fix=f"Its last one is {found.session.attempt}.",
            )
        calls = journal.calls(found.session.id, attempt)
        _print_session(found, calls, folder, logprobs=logprobs)


def named_in(words: Sequence[str]) -> tuple[Path | None, str]:
    """Tell the run folder from the session's id: of two words the first, of one what is a folder.

    Raises:
        ConfigError: There are more.
    """
    if len(words) > 2:
        raise ConfigError(
            f"there are {len(words)} arguments", fix="Write polar show [RUN] [SESSION]."
        )
    if len(words) == 2:
        return Path(words[0]), words[1]
    if words and (Path(words[0]).is_dir() or "/" in words[0]):
        return Path(words[0]), ""
    return None, words[0] if words else ""


def _list(records: Sequence[SessionRecord], folder: RunFolder) -> None:
    table = Table(title=f"sessions of {plain(folder.path)}", title_justify="left", box=None)
    for column in ("session", "task", "state", "reward"):
        table.add_column(column)
    for record in records[:_LISTED]:
        grade = _grade(record.outcome)
        table.add_row(
            Text(record.session.id),
            Text(record.session.task_id),
            record.state,
            "" if grade is None else f"{grade.reward:.2f}",
        )
    console.print(table)
    if len(records) > _LISTED:
        console.print(f"and {len(records) - _LISTED} more; give the beginning of an id")
    console.print(f"Look at one: polar show {records[0].session.id} --run {plain(folder.path)}")


def _print_session(
    record: SessionRecord, calls: Sequence[Call], folder: RunFolder, *, logprobs: bool
) -> None:
    renderer = _renderer(folder)
    console.print(_summary(record, calls))
    console.print(_legend(logprobs=logprobs))
    by_id = {call.id: call for call in calls}
    policy = folder.rollout().build_policy
    for call in calls:
        parent = by_id.get(call.parent_id) if call.parent_id is not None else None
        console.print(Rule(style="dim"))
        dropped = drop_reason(call, policy)
        body = (
            _text_body(call)
            if call.capture == "text"
            else call_body(
                call, parent, renderer.decode, logprobs=logprobs, trained=dropped is None
            )
        )
        console.print(call_heading(call, parent, dropped))
        console.print(body, soft_wrap=True)
    console.print(Rule(style="dim"))
    console.print(outcome_text(record.outcome))


def _renderer(folder: RunFolder) -> Renderer:
    with progress_line("loading the tokenizer") as progress:
        model = models.resolve(folder.model(), cache=environment().cache, progress=progress)
        return load_renderer(str(model))


def _summary(record: SessionRecord, calls: Sequence[Call]) -> Text:
    sampled = sum(len(call.sampled_ids) for call in calls)
    attempt = calls[0].attempt if calls else record.session.attempt
    return Text.assemble(
        (record.session.id, "heading"),
        f"  task {record.session.task_id}  phase {record.phase}  step {record.step}"
        f"  attempt {attempt}  {record.state}  {len(calls)} calls, {sampled} tokens sampled",
        (_known(calls), "warn"),
    )


def _known(calls: Sequence[Call]) -> str:
    """Say where the tokens of a session are known less surely than is usual; else nothing."""
    counts = Counter(call.capture for call in calls)
    parts = [(counts["text"], "text only"), (counts["recorded"], "recorded")]
    return "".join(f"  {count} calls {how}" for count, how in parts if count)


def _legend(*, logprobs: bool) -> Text:
    legend = Text.assemble(
        ("context", "context"), "  ", ("sampled", "sampled"), "  ", ("not trained", "untrained")
    )
    if logprobs:
        for least, style in _SHADES:
            legend.append("  ").append(f" p > {least} ", style)
        legend.append("  ").append(f" p < {_SHADES[-1][0]} ", _UNLIKELY)
    return legend


def call_heading(call: Call, parent: Call | None, dropped: str | None) -> Text:
    """Say in a line what a call was and where it hangs in the token tree."""
    versions = sorted({int(version) for version in call.weight_versions})
    facts = [f"{len(call.prompt_ids)} context, {len(call.sampled_ids)} sampled"]
    if call.capture == "text":
        facts = ["text only: its tokens are not known"]
    elif call.capture == "recorded":
        facts.append("recorded: ids as the server told them")
    if versions:
        facts.append("weights " + ", ".join(f"v{version}" for version in versions))
    if len(call.logprobs):
        facts.append(f"mean logprob {float(call.logprobs.mean()):.2f}")
    if call.measured_tokens:
        facts.append(f"{call.measured_tokens} logprobs asked for afterwards")
    if call.opening_tokens:
        facts.append(f"begun with {call.opening_tokens} of the context")
    if call.discarded_tokens:
        facts.append(f"{call.discarded_tokens} sampled behind the end and discarded")
    if parent is not None:
        facts.append(f"extends call {parent.index}")
    if call.fork_reason is not None:
        facts.append(f"forks: {call.fork_reason}")
    if dropped is not None:
        facts.append(f"not trained: {dropped}")
    heading = Text.assemble((f"call {call.index} {call.kind}", "heading"))
    heading.append(f"  ended by {call.finish_reason}  " + "  ".join(facts))
    return heading


def call_body(
    call: Call, parent: Call | None, decode: Decode, *, logprobs: bool, trained: bool
) -> Text:
    """Write a call's new context and its sampled tokens, each in its own colour.

    Args:
        call: The call.
        parent: The call whose tokens its prompt extends: they are not shown again.
        decode: Text of token ids.
        logprobs: Whether sampled tokens are shaded by their probability.
        trained: Whether the call's tokens train.
    """
    known = 0 if parent is None else len(parent.prompt_ids) + len(parent.sampled_ids)
    body = Text().append(without_control(decode(call.prompt_ids[known:].tolist())), "context")
    sampled = call.sampled_ids.tolist()
    style = "sampled" if trained else "untrained"
    if not logprobs:
        return body.append(without_control(decode(sampled)), style)
    start = 0
    for text, count in pieces(sampled, decode):
        least = float(call.logprobs[start : start + count].min())
        body.append(without_control(text), _shade(least))
        start += count
    return body


def _text_body(call: Call) -> Text:
    """Write a call of which only the text is known: what was said last, and the reply."""
    body = Text()
    for message in call.messages[-1:]:
        body.append(f"{message.role}: {plain(message.content)}\n", "context")
    said = [call.reply.reasoning, call.reply.content]
    said += [f"{tool.name}({tool.arguments})" for tool in call.reply.tool_calls]
    return body.append(plain("\n".join(part for part in said if part)), "untrained")


def pieces(token_ids: Sequence[int], decode: Decode) -> list[tuple[str, int]]:
    """Cut ids into the shortest runs that decode to whole characters.

    Returns:
        Text and number of tokens of each run; the numbers add up to `len(token_ids)`.
    """
    found: list[tuple[str, int]] = []
    pending: list[int] = []
    for token_id in token_ids:
        pending.append(token_id)
        text = decode(pending)
        if text.endswith(_HALF_CHARACTER) and len(pending) < _LONGEST_CHARACTER_TOKENS:
            continue
        found.append((text, len(pending)))
        pending = []
    if pending:
        found.append((decode(pending), len(pending)))
    return found


def outcome_text(outcome: Outcome | None) -> Text:  # noqa: PLR0911 - one line an outcome
    """Say how a session ended and what it earned."""
    match outcome:
        case None:
            return Text("no outcome yet")
        case Completed(grade=grade, exit_code=exit_code, cut_off=limit):
            refused = "" if limit is None else f"; its last call was refused at the limit {limit}"
            return _graded(grade).append(f"  (the harness exited with {exit_code}{refused})")
        case TimedOut(stage=stage, grade=Grade() as grade):
            return _graded(grade).append(f"  (timed out while {stage})")
        case TimedOut(stage=stage):
            return Text(f"timed out while {stage}, not graded", "warn")
        case Ended(exit_code=exit_code):
            return Text(f"ended and not graded  (the harness exited with {exit_code})")
        case Failed(stage=stage, error=error):
            return Text(f"failed while {stage}: {without_control(error)}", "fail")
        case Cancelled(reason=reason):
            return Text(f"cancelled: {reason}", "warn")
        case _:
            assert_never(outcome)


def _shade(logprob: float) -> str:
    return next((style for least, style in _SHADES if math.exp(logprob) > least), _UNLIKELY)


def _grade(outcome: Outcome | None) -> Grade | None:
    match outcome:
        case Completed(grade=grade) | TimedOut(grade=grade):
            return grade
        case Failed() | Cancelled() | Ended() | None:
            return None
        case _:
            assert_never(outcome)


def _graded(grade: Grade) -> Text:
    verdict = ("passed", "ok") if grade.passed else ("not passed", "fail")
    text = Text.assemble(f"reward {grade.reward:g}  ", verdict)
    for name, value in grade.details.items():
        text.append(f"\n  {name}: {without_control(str(value))}")
    return text
