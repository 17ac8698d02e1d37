"""What each interceptor makes of a request, and how the config declares them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.config import RunConfig, load_config, parse_config, write_config
from polar.errors import BadRequest, ConfigError, InterceptorFailed
from polar.gateway import interceptors
from polar.gateway.interception import Interception
from polar.gateway.settings import InterceptorSpec
from polar.types import Chat, Message, Sent, ToolSpec

CHAT = Chat(
    "gpt",
    (Message("system", "Be brief."), Message("user", "hi")),
    tools=(ToolSpec("bash", "Runs a command.", {}), ToolSpec("read", "Reads a file.", {})),
)


def made(name, **settings):
    return interceptors.load(name)(interceptors.settings_model(name).model_validate(settings))


def turns(count, size=1000):
    """A conversation with so many tool results."""
    messages = [Message("user", "go")]
    for number in range(count):
        messages += [
            Message("assistant", f"turn {number}"),
            Message("tool", f"{number}".rjust(6, "0") + "x" * size, tool_call_id=str(number)),
        ]
    return replace(CHAT, messages=tuple(messages))


@pytest.mark.parametrize("name", interceptors.own_names())
def test_every_interceptor_is_found_by_its_name_and_says_what_can_be_set(name):
    assert name in interceptors.names()
    assert interceptors.settings_model(name).model_config["extra"] == "forbid"


def test_a_text_is_added_on_either_side_of_the_system_prompt():
    assert made("system_prompt", text="No.")(CHAT).messages[0].content == "Be brief.\n\nNo."
    before = made("system_prompt", text="No.", place="before")(CHAT)
    assert before.messages[0].content == "No.\n\nBe brief."
    assert before.messages[1:] == CHAT.messages[1:]


def test_without_a_system_prompt_the_text_becomes_one():
    chat = replace(CHAT, messages=CHAT.messages[1:])
    assert made("system_prompt", text="No.")(chat).messages == (
        Message("system", "No."),
        *chat.messages,
    )


def test_descriptions_are_replaced_added_to_and_cut_and_nothing_else_of_a_tool():
    rewrite = made("tool_descriptions", replace={"bash": "Shell."}, add={"read": "Slow."})
    seen = rewrite(CHAT)
    assert [tool.description for tool in seen.tools] == ["Shell.", "Reads a file.\n\nSlow."]
    assert [tool.name for tool in seen.tools] == ["bash", "read"]
    cut = made("tool_descriptions", max_chars=5)(CHAT)
    assert [tool.description for tool in cut.tools] == ["Runs ", "Reads"]


def test_old_tool_results_are_shortened_and_the_last_ones_stay_whole():
    rewrite = made("history", keep_last=2, step=1, head_chars=10, tail_chars=5)
    seen = rewrite(turns(5))
    results = [message for message in seen.messages if message.role == "tool"]
    assert results[0].content == "000000xxxx\n[... 991 characters left out ...]\nxxxxx"
    assert [len(result.content) for result in results[-2:]] == [1006, 1006]
    assert [result.tool_call_id for result in results] == ["0", "1", "2", "3", "4"]


def test_results_that_would_not_get_shorter_are_left_alone():
    rewrite = made("history", keep_last=0, step=1, head_chars=0, tail_chars=0)
    assert rewrite(turns(3, size=5)) == turns(3, size=5)


@given(st.integers(0, 20), st.integers(0, 5), st.integers(1, 6))
def test_history_changes_only_once_in_so_many_results(count, keep_last, step):
    rewrite = made("history", keep_last=keep_last, step=step)
    before, after = rewrite(turns(count)).messages, rewrite(turns(count + 1)).messages
    changed = after[: len(before)] != before
    due = count + 1 > keep_last and (count + 1 - keep_last) % step == 0
    only_the_new_one = keep_last == 0 and step == 1
    assert changed == (due and not only_the_new_one)
    whole = [m for m in after if m.role == "tool" and len(m.content) == 1006]
    assert len(whole) >= min(keep_last, count + 1)


def test_the_first_pattern_that_fits_chooses_the_model():
    choose = made("model_choice", models={"gpt-5-*": "small", "gpt*": "big"})
    assert choose(CHAT).model == "big"
    assert choose(replace(CHAT, model="gpt-5-nano")).model == "small"
    assert choose(replace(CHAT, model="other")).model == "other"


def test_what_changed_a_request_is_told_with_what_was_sent():
    steps = Interception.of(
        [
            InterceptorSpec(name="system_prompt", settings={"text": "No."}),
            InterceptorSpec(name="tool_descriptions"),
            InterceptorSpec(name="model_choice", settings={"models": {"gpt": "big"}}),
        ]
    )
    result = steps.apply(CHAT)
    assert result.seen.model == "big"
    names = ("system_prompt", "model_choice")
    assert result.sent == Sent("gpt", CHAT.messages, CHAT.tools, names, chosen_model="big")


def test_without_a_change_there_is_nothing_to_tell():
    result = Interception.of([InterceptorSpec(name="history")]).apply(CHAT)
    assert result.seen is CHAT
    assert result.sent is None


def test_a_function_in_a_file_of_ones_own_is_an_interceptor(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from dataclasses import replace\n"
        "def rename(chat, *, to='x'):\n    return replace(chat, model=to)\n"
    )
    spec = InterceptorSpec(python=f"{file}:rename", settings={"to": "y"})
    result = Interception.of([spec]).apply(CHAT)
    assert result.seen.model == "y"
    assert result.sent is not None
    assert result.sent.interceptors == (f"{file}:rename",)


@pytest.mark.parametrize("returned", [None, "text", {"messages": []}])
def test_a_function_that_returns_no_chat_has_failed(returned):
    with pytest.raises(InterceptorFailed, match="no Chat"):
        Interception([("mine", lambda chat: returned)]).apply(CHAT)


def test_a_function_that_raises_has_failed_and_its_error_is_named(caplog):
    with pytest.raises(InterceptorFailed, match="mine failed: ZeroDivisionError"):
        Interception([("mine", lambda chat: 1 / 0)]).apply(CHAT)
    assert "ZeroDivisionError" in caplog.text


def test_a_function_may_refuse_a_request():
    def refuse(chat):
        raise BadRequest("not today")

    with pytest.raises(BadRequest, match="not today"):
        Interception([("mine", refuse)]).apply(CHAT)


@pytest.mark.parametrize(
    ("spec", "what"),
    [
        ({"name": "histry"}, "Did you mean `history`?"),
        ({"name": "history", "settings": {"kep_last": 1}}, "unknown key `kep_last`"),
        ({"name": "history", "settings": {"keep_last": -1}}, "`keep_last` is -1"),
        ({"name": "system_prompt"}, "the key `text` is missing"),
        ({}, "has `name` or `python`"),
        ({"name": "history", "python": "a:b"}, "has `name` or `python`"),
        ({"python": "nothing"}, "does not name a function"),
    ],
)
def test_a_wrong_interceptor_is_refused_when_the_config_is_read(spec, what):
    with pytest.raises(ConfigError) as refused:
        parse_config({"gateway": {"interceptors": [spec]}}, RunConfig, where="x.yaml")
    assert what in str(refused.value)


@pytest.mark.parametrize(
    "name", ["polar_has_no_such_module:f", "json:nothing_there", "json:__name__"]
)
def test_a_function_that_cannot_be_had_is_a_config_error_at_the_start(name):
    with pytest.raises(ConfigError):
        Interception.of([InterceptorSpec(python=name)])


def test_declared_interceptors_are_read_back_as_they_were_written(tmp_path):
    declared = [{"name": "history", "settings": {"keep_last": 3}}, {"python": "mine.py:f"}]
    config = parse_config({"gateway": {"interceptors": declared}}, RunConfig, where="x")
    write_config(tmp_path / "c.yaml", config)
    assert load_config(tmp_path / "c.yaml", (), RunConfig).gateway == config.gateway
