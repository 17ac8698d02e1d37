import dataclasses
from itertools import count

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polar.errors import FidelityError
from polar.rendering import SessionSplicer
from polar.rendering.splice import _key, _tools_key
from polar.rendering.tiny import tiny_renderer
from polar.rendering.tokenizer import encode
from polar.types import Call, CallId, Chat, Message, Sampling, SessionId, ToolCall, ToolSpec

RENDERER = tiny_renderer()
END = RENDERER.stop_token_ids[0]
TOOLS = (ToolSpec("bash", "Run a command.", {"type": "object"}),)
START = (Message("system", "Be brief."), Message("user", "What is here?"))
CALL_REPLY = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>'


class Gateway:
    """What the gateway does with a splicer, with replies given by the test."""

    def __init__(self, renderer=RENDERER):
        self.renderer = renderer
        self.splicer = SessionSplicer(renderer)
        self.calls = []
        self.ids = count()

    def ask(self, messages, reply="ok", *, tools=TOOLS, finish="stop", ended=True, opening=()):
        prepared = self.splicer.prepare(Chat("m", tuple(messages), tools))
        sampled = [*encode(RENDERER._tokenizer, reply), *([END] if ended else [])]
        parser = self.renderer.parser(tools, new_tool_call_id=lambda: f"call_{next(self.ids)}")
        parser.feed([*opening, *sampled])
        call = Call(
            id=CallId(f"c{len(self.calls)}"),
            session_id=SessionId("s1"),
            attempt=0,
            index=len(self.calls),
            parent_id=prepared.parent_id,
            prompt_ids=np.array([*prepared.prompt_ids, *opening], np.int32),
            sampled_ids=np.array(sampled, np.int32),
            logprobs=np.zeros(len(sampled), np.float32),
            weight_versions=np.zeros(len(sampled), np.int32),
            messages=tuple(messages),
            tools=tools,
            sampling=Sampling(),
            reply=parser.finish()[1],
            finish_reason=finish,
            fork_reason=prepared.fork_reason,
            opening_tokens=len(opening),
        )
        self.splicer.record(call)
        self.calls.append(call)
        return call


def result(call, text="a.txt"):
    (tool_call,) = call.reply.tool_calls
    return Message("tool", text, tool_call_id=tool_call.id)


def how(call):
    return call.parent_id, call.fork_reason


@pytest.fixture
def gateway():
    return Gateway()


@pytest.fixture
def first(gateway):
    return gateway.ask(START, CALL_REPLY)


def extends(call, parent):
    seen = [*parent.prompt_ids, *parent.sampled_ids]
    return call.parent_id == parent.id and list(call.prompt_ids[: len(seen)]) == seen


def test_the_first_call_is_rendered_whole(gateway, first):
    assert how(first) == (None, None)
    assert list(first.prompt_ids) == RENDERER.render(START, TOOLS)


def test_the_next_turn_extends_the_call_before_it(gateway, first):
    second = gateway.ask([*START, first.reply, result(first)])
    assert extends(second, first)
    assert second.fork_reason is None
    assert RENDERER.decode(second.prompt_ids[len(first.prompt_ids) :]) == (
        f"{CALL_REPLY}<|im_end|>\n<|im_start|>tool\na.txt<|im_end|>\n<|im_start|>assistant\n"
    )


def test_sampled_ids_stay_although_their_text_would_be_encoded_otherwise(gateway):
    first = gateway.ask(START, "The")
    letters = np.array([*encode(RENDERER._tokenizer, "T"), *encode(RENDERER._tokenizer, "he")])
    assert len(encode(RENDERER._tokenizer, "The")) != len(letters)
    other = Gateway()
    prompt = other.splicer.prepare(Chat("m", START, TOOLS)).prompt_ids
    other.splicer.record(dataclasses.replace(first, sampled_ids=np.append(letters, END)))
    chat = Chat("m", (*START, Message("assistant", "The"), Message("user", "?")), TOOLS)
    prepared = other.splicer.prepare(chat)
    assert prepared.prompt_ids[len(prompt) :][: len(letters)].tolist() == letters.tolist()


REWRITINGS = {
    "white space at the ends": lambda m: dataclasses.replace(m, content=f" {m.content}\n"),
    "formatting of arguments": lambda m: dataclasses.replace(
        m, tool_calls=(dataclasses.replace(m.tool_calls[0], arguments='{"command":"ls"}'),)
    ),
    "other tool-call ids": lambda m: dataclasses.replace(
        m, tool_calls=(dataclasses.replace(m.tool_calls[0], id="other"),)
    ),
}


@pytest.mark.parametrize("rewriting", REWRITINGS)
def test_re_serialisation_is_no_rewrite(gateway, first, rewriting):
    copy = REWRITINGS[rewriting](first.reply)
    assert extends(gateway.ask([*START, copy, result(first)]), first)


@pytest.mark.parametrize(
    ("sampled", "sent_back"),
    [
        ('{"timeout": 60000.0}', '{"timeout":60000}'),
        ('{"size": 1e3}', '{"size":1000}'),
        ('{"id": 12345678901234567890}', '{"id":12345678901234567000}'),
        ('{"b": 1.50, "a": -0.0}', '{"b":1.5,"a":0}'),
    ],
)
def test_numbers_come_back_as_a_double_holds_them(gateway, sampled, sent_back):
    block = f'<tool_call>\n{{"name": "bash", "arguments": {sampled}}}\n</tool_call>'
    first = gateway.ask(START, block)
    (call,) = first.reply.tool_calls
    assert call.arguments == sampled
    copy = dataclasses.replace(
        first.reply, tool_calls=(dataclasses.replace(call, arguments=sent_back),)
    )
    assert extends(gateway.ask([*START, copy, result(first)]), first)


def test_arguments_nested_beyond_what_can_be_read_break_nothing(gateway, first):
    deep = ToolCall("call_x", "bash", "[" * 100_000)
    turn = Message("assistant", "", tool_calls=(deep,))
    asked = [*START, turn, Message("tool", "what?", tool_call_id="call_x")]
    assert how(gateway.ask(asked)) == (None, "edited_message")
    assert how(gateway.ask(asked)) == (None, "retry")


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: dataclasses.replace(m, content="I never said that."),
        lambda m: dataclasses.replace(m, tool_calls=()),
        lambda m: dataclasses.replace(
            m, tool_calls=(dataclasses.replace(m.tool_calls[0], arguments="{}"),)
        ),
        # OpenCode, where it could not read a call: the same id, but nothing that was sampled.
        lambda m: dataclasses.replace(
            m, tool_calls=(dataclasses.replace(m.tool_calls[0], name="invalid"),)
        ),
    ],
)
def test_a_rewritten_reply_forks(gateway, first, edit):
    second = gateway.ask([*START, edit(first.reply), result(first)])
    assert how(second) == (None, "edited_message")


def test_an_edit_forks_from_the_deepest_call_before_it(gateway, first):
    history = [*START, first.reply, result(first)]
    second = gateway.ask(history)
    third = gateway.ask([*history, second.reply, Message("user", "more")])
    edited = [*history, Message("assistant", "edited"), Message("user", "more")]
    fork = gateway.ask(edited)
    assert extends(third, second)
    assert extends(fork, first)
    assert fork.fork_reason == "edited_message"
    assert "edited<|im_end|>" in RENDERER.decode(fork.prompt_ids)


def test_a_turn_left_out_of_history_forks_from_the_call_before_it(gateway, first):
    history = [*START, first.reply, result(first)]
    gateway.ask(history, "no call: a format error")
    again = gateway.ask([*history, Message("user", "Format error.")])
    assert extends(again, first)
    assert again.fork_reason == "edited_message"


def test_a_reminder_that_is_put_into_the_past_and_taken_out_again_forks_each_time(gateway):
    """Gemini CLI does so after an empty reply; Claude Code leaves the reminder where it is."""
    first = gateway.ask(START, "Yes?")
    start = [*START, first.reply, Message("user", "Look.")]
    second = gateway.ask(start, CALL_REPLY)
    turn, more = [second.reply, result(second)], Message("user", "more")
    gateway.ask([*start, *turn], "")
    reminded = [*start[:-1], Message("user", "Look. Go on."), *turn]
    with_reminder = gateway.ask(reminded, "going on")
    without = gateway.ask([*start, *turn, with_reminder.reply, more])
    stays = gateway.ask([*reminded, with_reminder.reply, more])
    assert how(with_reminder) == (first.id, "edited_message")
    assert how(without) == (second.id, "edited_message")
    assert how(stays) == (with_reminder.id, None)


def test_an_identical_request_is_a_sibling_with_the_same_prompt(gateway, first):
    history = [*START, first.reply, result(first)]
    second, retry = gateway.ask(history), gateway.ask(history)
    assert how(retry) == (first.id, "retry")
    assert list(retry.prompt_ids) == list(second.prompt_ids)
    assert how(gateway.ask(START)) == (None, "retry")


def test_what_began_a_reply_is_context_of_its_turn_and_not_of_a_retry(gateway):
    opening = RENDERER.call_opening("bash")
    plain = gateway.ask(START, "ok")
    forced = gateway.ask(START, ' {"command": "ls"}}\n</tool_call>', opening=opening)
    again = gateway.ask(START, "ok")
    assert [call.fork_reason for call in gateway.calls] == [None, "retry", "retry"]
    assert list(forced.prompt_ids) == [*plain.prompt_ids, *opening]
    assert list(again.prompt_ids) == list(plain.prompt_ids)
    later = gateway.ask([*START, forced.reply, result(forced)])
    assert extends(later, forced)
    assert later.fork_reason is None


def test_an_abandoned_call_is_retried_but_never_extended(gateway):
    lost = gateway.ask(START, CALL_REPLY, finish="abandoned")
    retry = gateway.ask(START, CALL_REPLY)
    assert how(retry) == (None, "retry")
    assert extends(gateway.ask([*START, lost.reply, result(lost)]), retry)


def test_of_equal_replies_the_one_with_the_known_tool_call_id_goes_on(gateway, first):
    second = gateway.ask(START, CALL_REPLY)
    assert extends(gateway.ask([*START, first.reply, result(first)]), first)
    assert extends(gateway.ask([*START, second.reply, result(second, "b")]), second)


def test_of_equal_replies_without_ids_the_latest_goes_on(gateway):
    gateway.ask(START, "same")
    latest = gateway.ask(START, "same")
    assert extends(gateway.ask([*START, latest.reply, Message("user", "?")]), latest)


def test_other_tools_are_a_fork(gateway, first):
    fork = gateway.ask([*START, first.reply, result(first)], tools=())
    assert how(fork) == (None, "changed_tools")


def test_another_conversation_is_told_apart_from_an_edited_one(gateway, first):
    assert how(gateway.ask([Message("user", "Make a title.")])) == (None, "new_conversation")
    shortened = [*START, Message("user", "Summary of what was.")]
    assert how(gateway.ask(shortened)) == (None, "edited_message")


def test_an_edit_of_the_first_message_of_the_user_is_no_new_conversation(gateway, first):
    """Claude Code puts a reminder into it, and it stays there."""
    gateway.ask([*START, first.reply, result(first)])
    reminded = Message("user", "What is here? <system-reminder>Say something.</system-reminder>")
    edited = gateway.ask([START[0], reminded, first.reply, result(first)])
    assert how(edited) == (None, "edited_message")
    assert extends(
        gateway.ask([START[0], reminded, first.reply, result(first), edited.reply]), edited
    )


def test_the_same_turns_under_other_instructions_are_a_new_conversation(gateway, first):
    turns = [first.reply, result(first)]
    other = Message("system", "Extract what is worth remembering.")
    assert how(gateway.ask([other, START[1], *turns])) == (None, "new_conversation")
    written = ToolCall("call_of_theirs", "bash", '{"command": "ls"}')
    theirs = Message("assistant", "", tool_calls=(written,))
    begun = [START[0], Message("user", "Do something else."), theirs, *turns[1:]]
    assert how(gateway.ask(begun)) == (None, "new_conversation")


def test_a_reply_cut_by_length_is_closed_and_extended(gateway):
    first = gateway.ask(START, "The answer", finish="length", ended=False)
    second = gateway.ask([*START, first.reply, Message("user", "Go on.")])
    assert extends(second, first)
    assert second.prompt_ids[len(first.prompt_ids) + len(first.sampled_ids)] == END


def test_a_request_that_ends_in_the_reply_itself_goes_on_after_it(gateway, first):
    assert extends(gateway.ask([*START, first.reply]), first)


@pytest.mark.parametrize(
    ("reasoning", "parent"), [(None, True), (" Hm. ", True), ("Other thoughts.", False)]
)
def test_dropped_reasoning_is_tolerated_and_other_reasoning_is_not(gateway, reasoning, parent):
    first = gateway.ask(START, "ok")
    splicer = SessionSplicer(RENDERER)
    thought = dataclasses.replace(first.reply, reasoning="Hm.")
    splicer.record(dataclasses.replace(first, reply=thought))
    copy = dataclasses.replace(first.reply, reasoning=reasoning)
    prepared = splicer.prepare(Chat("m", (*START, copy, Message("user", "?")), TOOLS))
    assert (prepared.parent_id == first.id) is parent


class Unbridgeable:
    """A renderer whose template is not prefix-stable."""

    def __init__(self):
        self.render, self.parser = RENDERER.render, RENDERER.parser
        self.stop_token_ids = RENDERER.stop_token_ids

    def bridge(self, previous_ids, new_messages, tools, *, prompt_tokens=0):
        return None


@pytest.mark.parametrize(("ended", "reason"), [(True, "no_bridge"), (False, "unclosed_turn")])
def test_without_a_bridge_the_conversation_is_rendered_whole(ended, reason):
    gateway = Gateway(Unbridgeable())
    first = gateway.ask(START, "ok", ended=ended)
    history = [*START, first.reply, Message("user", "?")]
    second = gateway.ask(history)
    assert how(second) == (None, reason)
    assert list(second.prompt_ids) == RENDERER.render(history, TOOLS)
    third = gateway.ask([*history, second.reply, Message("user", "?")])
    assert how(third) == (None, "no_bridge")


def test_a_parent_that_the_prompt_does_not_extend_is_refused(gateway, first):
    wrong = dataclasses.replace(first, id=CallId("x"), index=1, parent_id=first.id)
    with pytest.raises(FidelityError, match=r"does not extend the call c0 .*call x"):
        gateway.splicer.record(wrong)


def test_a_long_session_keeps_only_what_is_new_of_each_prompt():
    gateway, history = Gateway(), list(START)
    for turn in range(20):
        call = gateway.ask(history, f"reply {turn}")
        history += [call.reply, Message("user", f"question {turn}")]
    kept = sum(len(record.delta_ids) for record in gateway.splicer._records.values())
    assert kept < len(gateway.calls[-1].prompt_ids)
    assert all(extends(b, a) for a, b in zip(gateway.calls, gateway.calls[1:], strict=False))


def prepared_anew(calls, history):
    """Prepare a request as a splicer does that remembers no earlier request."""
    splicer = SessionSplicer(RENDERER)
    for call in calls:
        splicer.record(call)
    return splicer.prepare(Chat("m", tuple(history), TOOLS))


@settings(max_examples=60)
@given(st.data())
def test_whatever_a_harness_does_a_named_parent_is_truly_extended(data):
    """Histories are cut, edited, repeated and continued at random; some requests come to nothing.

    What is remembered of earlier requests makes no difference.
    """
    gateway, histories = Gateway(), [list(START)]
    for _ in range(data.draw(st.integers(1, 8))):
        history = data.draw(st.sampled_from(histories))
        change = data.draw(st.sampled_from(["keep", "keep", "cut", "edit", "drop_reply"]))
        if change == "cut":
            history = history[: data.draw(st.integers(1, len(history)))]
        elif change == "edit":
            place = data.draw(st.integers(0, len(history) - 1))
            edited = dataclasses.replace(history[place], content="edited")
            history = [*history[:place], edited, *history[place + 1 :]]
        elif change == "drop_reply":
            history = [m for m in history if m.role != "assistant"]
        gateway.splicer.prepare(Chat("m", tuple(data.draw(st.sampled_from(histories))), TOOLS))
        anew = prepared_anew(gateway.calls, history)
        reply = data.draw(st.sampled_from(["a", "b", CALL_REPLY]))
        finish = data.draw(st.sampled_from(["stop", "length", "abandoned"]))
        call = gateway.ask(history, reply, finish=finish, ended=finish == "stop")
        assert (call.parent_id, call.fork_reason) == (anew.parent_id, anew.fork_reason)
        assert call.prompt_ids.tolist() == anew.prompt_ids.tolist()
        ids = [tool_call.id for tool_call in call.reply.tool_calls]
        new = [Message("tool", "r", tool_call_id=i) for i in ids] or [Message("user", "u")]
        histories.append([*history, call.reply, *new])
        if call.parent_id is not None:
            parent = next(c for c in gateway.calls if c.id == call.parent_id)
            assert extends(call, parent)
            assert parent.finish_reason != "abandoned"
        assert RENDERER.decode(call.prompt_ids).endswith("<|im_start|>assistant\n")
        assert isinstance(call.reply, Message)
        assert all(isinstance(c, ToolCall) for c in call.reply.tool_calls)


def test_text_that_is_no_unicode_and_numbers_of_any_size_are_told_apart():
    half, other_half = (Message("user", f"half a pair: {text}") for text in "\ud83d\ud83e")
    assert _key(half) != _key(other_half)
    large, larger = (
        _tools_key([ToolSpec("bash", "Run.", {"type": "object", "maximum": number})])
        for number in (2**80, 2**81)
    )
    assert large != larger
