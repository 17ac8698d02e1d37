"""The real Aider, whose model writes edits as text: what it asks besides, and what is a history."""

import pytest
from scripted_sessions import ROOMY, Account, Turn, made, played, say

from polar.types import Message

pytestmark = pytest.mark.timeout(600)

COMMIT_MESSAGE = "generates concise, one-line Git commit messages"
SUMMARY = "*Briefly* summarize this partial conversation"


def edit(before: str, after: str) -> Message:
    """Write a search and replace block: of the empty text, to make the file."""
    lines = ("<<<<<<< SEARCH", *before.split(), "=======", *after.split(), ">>>>>>> REPLACE")
    return say("\n".join(("hello.txt", "```", *lines, "```")))


class Mending:
    """A model that writes the wrong word, then the right one, and answers what is asked aside."""

    def __init__(self) -> None:
        self._edits = [edit("", "hullabaloo"), edit("hullabaloo", "hello")]

    def __call__(self, turn: Turn) -> Message:
        if COMMIT_MESSAGE in turn.prompt:
            return say("feat: greet")
        if SUMMARY in turn.prompt:
            return say("I asked for a greeting.")
        return self._edits.pop(0)


def aider(**settings):
    return made("aider", context_window=ROOMY, **settings)


async def test_an_edit_in_text_makes_the_file_in_one_call(tmp_path):
    session = await played(aider(), tmp_path, lambda turn: edit("", "hello"))

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["hello.txt"]
    (call,) = session.calls
    assert (call.kind, call.fork_reason, call.tools) == ("main", None, ())
    assert [message.role for message in call.messages].count("assistant") == 1
    assert session.fidelity.kept == session.fidelity.sampled > 0


async def test_a_test_that_fails_is_shown_in_a_history_that_begins_anew(tmp_path):
    harness = aider(test_command="grep -x hello hello.txt || (echo mistaken; false)")

    session = await played(harness, tmp_path, Mending())

    assert session.wrote, session.result
    assert Account(session.calls).kinds() == ["main"] * 2
    assert "mistaken" in session.calls[1].messages[-1].content
    assert session.forks == ("new_conversation",)
    assert session.fidelity.kept == session.fidelity.sampled > 0


async def test_a_commit_message_is_dropped(tmp_path):
    session = await played(aider(commits=True), tmp_path, Mending())

    account = Account(session.calls)
    assert account.kinds() == ["main", "auxiliary"], session.result
    assert (tmp_path / "work" / ".git").is_dir()
    assert account.dropped == {"kind_auxiliary": account.sampled("auxiliary")}
    assert session.fidelity.kept == account.sampled("main") > 0


async def test_a_summary_of_its_history_is_dropped(tmp_path):
    harness = aider(
        test_command="grep -x hello hello.txt || (echo mistaken; false)",
        extra_args=("--max-chat-history-tokens=1",),
    )

    session = await played(harness, tmp_path, Mending())

    assert session.wrote, session.result
    account = Account(session.calls)
    # How often it tries the last summary is up to the threads that end with the program.
    assert account.kinds()[:3] == ["main", "compaction", "main"]
    assert set(account.kinds()[3:]) <= {"compaction"}
    assert set(account.dropped) <= {"kind_compaction", "abandoned"}
    assert sum(account.dropped.values()) == account.sampled("compaction") > 0
    assert session.fidelity.kept == account.sampled("main") > 0


async def test_its_commands_reach_the_gateway_only_as_foreign(tmp_path):
    ask = (
        "curl -s -o /dev/null -H 'content-type: application/json' -H 'authorization: Bearer k' "
        """-d '{"model": "m", "messages": [{"role": "user", "content": "x"}]}' """
        '$(sed \'s/.*api_base": "\\([^"]*\\)".*/\\1/\' $HOME/.config/polar/aider/models.json)'
        "/chat/completions"
    )
    both = say(f"```bash\n{ask}\necho hello > hello.txt\n```")

    session = await played(aider(), tmp_path, lambda turn: both)

    assert session.wrote, session.result
    assert Account(session.calls).kinds() == ["main", "foreign"]


async def test_a_command_of_several_lines_is_run_as_one(tmp_path):
    harness = aider()
    odd = "cat > hello.txt <<'END'\nhello\nEND\nprintf '%s' 'a\\nb' > odd.txt"

    session = await played(harness, tmp_path, lambda turn: harness.expert_turns((odd,))[0])

    assert session.wrote, session.result
    assert (tmp_path / "work" / "odd.txt").read_text() == "a\\nb"


async def test_without_commands_it_runs_none(tmp_path):
    suggested = say("```bash\necho hello > hello.txt\n```")

    session = await played(aider(commands=False), tmp_path, lambda turn: suggested)

    assert session.result.exit_code == 0, session.result
    assert not session.wrote
