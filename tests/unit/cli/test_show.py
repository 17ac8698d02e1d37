"""`polar show`: the conversation as it was sampled, in colours, with what became of it."""

import re
import sqlite3
from pathlib import Path

import pytest
from run_folders import FIRST, SECOND, make_call, write_run

from polar.cli import app, console
from polar.cli.run_folder import chosen_run
from polar.cli.show import call_body, call_heading, named_in, outcome_text, pieces
from polar.errors import ConfigError, JournalError
from polar.types import Completed, Grade


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("show")
    write_run(folder)
    return folder


@pytest.fixture
def show(root, capsys, monkeypatch):
    monkeypatch.chdir(root)
    monkeypatch.setattr(console.console, "_width", 200)

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            app.main(["show", *arguments])
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return run


def test_a_session_of_the_newest_run_is_shown(show):
    code, told, _ = show(FIRST)

    assert code == 0
    assert "call 0 main" in told
    assert "extends call 0" in told
    assert "cat a" in told
    assert "reward 0.5" in told


def test_the_beginning_of_an_id_is_enough_when_one_session_has_it(show):
    assert "call 0 main" in show(FIRST[:-1] + "1")[1]


def test_a_shared_beginning_lists_the_sessions(show):
    code, told, _ = show("train")

    assert code == 0
    assert FIRST in told
    assert SECOND in told
    assert "call 0" not in told


def test_a_call_that_does_not_train_says_why_by_what_the_runs_config_says(show, root):
    config = root / "runs" / "one" / "config.yaml"
    before = config.read_text()
    assert "not trained: kind_auxiliary" in show(SECOND)[1]

    config.write_text(before.replace("- subagent", "- auxiliary"))
    try:
        assert config.read_text() != before
        assert "not trained: kind" not in show(SECOND)[1]
    finally:
        config.write_text(before)


def test_what_the_parent_call_held_is_not_shown_again(show):
    _, told, _ = show(FIRST)

    assert told.count("number 0 of") == 1


def test_a_fork_and_a_call_that_does_not_train_are_told(show):
    _, told, _ = show(SECOND)

    assert "forks: new_conversation" in told
    assert "not trained: kind_auxiliary" in told


def test_what_an_engine_asked_for_afterwards_or_sampled_too_far_is_told(show):
    first, second = show(FIRST)[1].split("call 1 main")

    assert "1 logprobs asked for afterwards  3 sampled behind the end and discarded" in second
    assert "asked for afterwards" not in first
    assert "discarded" not in first


def test_what_a_model_wrote_cannot_steer_the_terminal(show):
    for session in (FIRST, SECOND):
        assert "\x1b" not in show(session)[1]
    assert "\N{SYMBOL FOR ESCAPE}[2J" in show(FIRST)[1]


def test_logprobs_shade_every_token_and_change_no_text(show):
    plain, shaded = show(FIRST)[1], show(FIRST, "--logprobs")[1]

    assert "p > 0.9" in shaded
    assert plain.splitlines()[2:] == shaded.splitlines()[2:]


def test_an_unknown_session_is_one_clear_error(show):
    code, _, error = show("nobody")

    assert code == JournalError.exit_code
    assert "nobody" in error


def test_without_a_run_folder_the_error_says_how_to_make_one(show, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)

    code, _, error = show(FIRST)

    assert code == 2
    assert "polar demo" in error


def test_how_a_calls_tokens_are_known_is_told_where_it_is_not_as_usual():
    told = [
        call_heading(make_call(prompt=[1], sampled=[2], capture=capture), None, None).plain
        for capture in ("tokens", "recorded", "text")
    ]
    assert "recorded" not in told[0]
    assert "ids as the server told them" in told[1]
    assert "text only: its tokens are not known" in told[2]
    assert "sampled" not in told[2]


def test_of_a_session_of_text_alone_the_words_are_shown(tmp_path, capsys):
    run = write_run(tmp_path)
    with sqlite3.connect(run / "journal.sqlite") as journal:
        journal.execute("UPDATE calls SET capture = 'text'")
    journal.close()

    with pytest.raises(SystemExit):
        app.main(["show", FIRST, "--run", str(run)])

    told = " ".join(capsys.readouterr().out.split())  # wherever the terminal wraps it
    assert "2 calls text only" in told
    assert "user: list it" in told
    assert "number 0 of" not in told


def test_context_and_sampled_tokens_differ_in_style_and_every_character_has_one():
    call = make_call(prompt=b"read", sampled=b"said")

    body = call_body(call, None, decode_utf8, logprobs=False, trained=True)

    assert body.plain == "readsaid"
    assert body.style == ""
    assert [(span.start, span.end, span.style) for span in body.spans] == [
        (0, 4, "context"),
        (4, 8, "sampled"),
    ]


def test_each_token_is_shaded_by_its_own_probability():
    call = make_call(prompt=b"", sampled=b"abcd", logprobs=[-0.01, -0.5, -1.5, -9.0])

    body = call_body(call, None, decode_utf8, logprobs=True, trained=True)

    assert [(span.start, str(span.style).split()[-1]) for span in body.spans] == [
        (0, "green"),
        (1, "yellow"),
        (2, "dark_orange"),
        (3, "red"),
    ]


def decode_utf8(token_ids) -> str:
    return bytes(token_ids).decode(errors="replace")


@pytest.mark.parametrize("text", ["abc", "é", "a🙂b", ""])
def test_pieces_are_whole_characters_and_lose_nothing(text):
    found = pieces(list(text.encode()), decode_utf8)

    assert "".join(piece for piece, _ in found) == text
    assert sum(count for _, count in found) == len(text.encode())


def test_pieces_of_a_reply_cut_within_a_character_lose_no_token():
    found = pieces(list("a🙂".encode())[:-1], decode_utf8)

    assert sum(count for _, count in found) == 4
    assert re.fullmatch("a\N{REPLACEMENT CHARACTER}+", "".join(piece for piece, _ in found))


@pytest.mark.parametrize(
    ("named", "wanted"),
    [
        ((), (None, "")),
        (("train",), (None, "train")),
        (("RUN",), ("RUN", "")),
        (("no/such",), ("no/such", "")),
        (("RUN", "train"), ("RUN", "train")),
    ],
)
def test_a_run_folder_and_a_session_are_told_apart(tmp_path, named, wanted):
    words = [word.replace("RUN", str(tmp_path)) for word in named]
    folder = wanted[0] and Path(wanted[0].replace("RUN", str(tmp_path)))
    assert named_in(words) == (folder, wanted[1])


def test_more_words_than_a_run_folder_and_a_session_are_refused():
    with pytest.raises(ConfigError, match="3 arguments"):
        named_in(["a", "b", "c"])


def test_a_run_folder_is_named_once(tmp_path):
    assert chosen_run(tmp_path, None, data=tmp_path).path == tmp_path
    assert chosen_run(None, tmp_path, data=tmp_path).path == tmp_path
    with pytest.raises(ConfigError, match="two run folders"):
        chosen_run(tmp_path, tmp_path, data=tmp_path)
    with pytest.raises(ConfigError, match="no such run folder"):
        chosen_run(tmp_path / "missing", data=tmp_path)


def test_an_attempt_that_there_never_was_is_refused(show):
    code, _, complained = show(FIRST, "--attempt", "7")
    assert code == 2
    assert f"{FIRST} has no attempt 7" in complained


def test_the_limit_at_which_a_session_was_cut_off_is_told():
    told = outcome_text(Completed(Grade(0.0, False), 1, "max_calls")).plain
    assert "its last call was refused at the limit max_calls" in told
    assert "refused" not in outcome_text(Completed(Grade(0.0, False), 1)).plain
