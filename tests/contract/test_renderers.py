"""What every renderer owes, whatever the model."""

from itertools import count

import pytest

from polar.rendering.family import FamilyRenderer
from polar.rendering.generic import GenericRenderer
from polar.rendering.tiny import CHATML, tiny_tokenizer
from polar.rendering.tokenizer import encode
from polar.types import (
    Message,
    ReasoningDelta,
    TextDelta,
    ToolArgumentsDelta,
    ToolCall,
    ToolCallStart,
    ToolSpec,
)

TAGS = (
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    "<tool_response>",
    "</tool_response>",
)
QWEN35 = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
NATIVE_TOOLS = (
    "{% if tools %}<|im_start|>system\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' + m['content'] }}"
    "{% for call in m.get('tool_calls') or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}", "{{ '<|im_start|>assistant\n<think>\n' }}"
)
"""Every reply begins in reasoning, which its history does not show."""
HYBRID = CHATML.replace(
    "{{ '<|im_start|>assistant\n' }}",
    "<|im_start|>assistant\n{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}",
)
MAKERS = {
    "generic": lambda: GenericRenderer(tiny_tokenizer(CHATML)),
    "generic-native-tools": lambda: GenericRenderer(tiny_tokenizer(NATIVE_TOOLS)),
    "generic-thinking": lambda: GenericRenderer(tiny_tokenizer(CHATML, special_tokens=TAGS)),
    "generic-hybrid": lambda: GenericRenderer(tiny_tokenizer(HYBRID, special_tokens=TAGS)),
    "family-qwen3": lambda: FamilyRenderer(tiny_tokenizer(special_tokens=TAGS), "qwen3"),
    "family-qwen3.5": lambda: FamilyRenderer(
        tiny_tokenizer(special_tokens=TAGS + QWEN35), "qwen3.5"
    ),
}
TOOLS = (
    ToolSpec(
        "bash",
        "Run a command.",
        {"type": "object", "properties": {"command": {"type": "string"}}},
    ),
)
START = (Message("system", "Be brief."), Message("user", "What is in the folder? é😀"))
RESULT = (Message("tool", "a.txt\nb.txt", tool_call_id="call_0"),)
REPLY = 'I look.\n<tool_call>\n{"name": "bash", "arguments": {"command": "ls"}}\n</tool_call>'
REPLIES = {
    "family-qwen3.5": "I look.</think>\n\n<tool_call>\n<function=bash>\n<parameter=command>\nls\n"
    "</parameter>\n</function>\n</tool_call>",
}


@pytest.fixture(scope="module", params=MAKERS)
def name(request):
    return request.param


@pytest.fixture(scope="module")
def renderer(name):
    return MAKERS[name]()


@pytest.fixture
def sampled(name, renderer):
    """A reply with one call, its end-of-turn token included."""
    text = REPLIES.get(name, REPLY)
    return [*encode(renderer._tokenizer, text), renderer.stop_token_ids[0]]


def parse(renderer, ids, size):
    numbers = count()
    parser = renderer.parser(TOOLS, new_tool_call_id=lambda: f"call_{next(numbers)}")
    deltas = []
    for start in range(0, len(ids), size):
        deltas += parser.feed(ids[start : start + size])
    rest, message = parser.finish()
    return [*deltas, *rest], message


def test_a_prompt_shows_messages_and_tools(renderer):
    text = renderer.decode(renderer.render(START, TOOLS))
    for shown in ("Be brief.", "What is in the folder? é😀", "bash", "Run a command."):
        assert shown in text


def test_rendering_is_repeatable(renderer):
    assert renderer.render(START, TOOLS) == renderer.render(START, TOOLS)


def test_a_bridge_only_appends_and_shows_what_is_new(renderer, sampled):
    prompt = renderer.render(START, TOOLS)
    delta = renderer.bridge([*prompt, *sampled], RESULT, TOOLS, prompt_tokens=len(prompt))
    text = renderer.decode(delta)
    assert "a.txt\nb.txt" in text
    assert "Be brief." not in text
    assert renderer.decode(prompt).endswith(text[text.rindex("<|im_start|>assistant") :])


def test_a_cut_reply_is_closed_by_the_end_of_turn_token(renderer, sampled):
    prompt = renderer.render(START, TOOLS)
    whole = [*prompt, *sampled]
    end = renderer.stop_token_ids[0]
    delta = renderer.bridge(whole, RESULT, TOOLS, prompt_tokens=len(prompt))
    cut = renderer.bridge(whole[:-1], RESULT, TOOLS, prompt_tokens=len(prompt))
    assert cut == [end, *delta]


def test_a_reply_is_read_as_it_was_sampled(renderer, sampled):
    message = parse(renderer, sampled, len(sampled))[1]
    assert message.tool_calls == (ToolCall("call_0", "bash", '{"command": "ls"}'),)
    assert "tool_call" not in message.content
    assert "I look." in (message.content, message.reasoning)


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_deltas_add_up_to_the_message(renderer, sampled, size):
    deltas, message = parse(renderer, sampled, size)
    assert message == parse(renderer, sampled, len(sampled))[1]
    texts = {kind: "" for kind in (TextDelta, ReasoningDelta, ToolArgumentsDelta)}
    for delta in deltas:
        if not isinstance(delta, ToolCallStart):
            texts[type(delta)] += delta.text
    assert texts[TextDelta] == message.content
    assert texts[ReasoningDelta] == (message.reasoning or "")
    assert texts[ToolArgumentsDelta] == "".join(c.arguments for c in message.tool_calls)


def test_stop_tokens_and_fingerprint_are_known(renderer):
    assert renderer.decode(renderer.stop_token_ids[:1]) == "<|im_end|>"
    assert len(renderer.fingerprint) == 64


@pytest.mark.parametrize("name", [name for name in MAKERS if name.startswith("generic")])
def test_a_bridge_is_what_rendering_the_whole_conversation_gives(name):
    renderer = MAKERS[name]()
    prompt = renderer.render(START, TOOLS)
    call = ToolCall("call_0", "bash", '{"command": "ls"}')
    turn = Message("assistant", "I look.\n" if "native" in name else "I look.", tool_calls=(call,))
    whole = renderer.render([*START, turn, *RESULT], TOOLS)
    end = whole.index(renderer.stop_token_ids[0], len(prompt)) + 1
    delta = renderer.bridge(whole[:end], RESULT, TOOLS, prompt_tokens=len(prompt))
    assert whole == [*whole[:end], *delta]


OPENING = '<tool_call>\n{"name": "bash", "arguments":'
EMPTY = "<think>\n\n</think>\n\n"
SILENCES = {
    "generic": "",
    "generic-native-tools": "",
    "generic-thinking": "",
    "generic-hybrid": EMPTY,
    "family-qwen3": EMPTY,
}
"""How a turn without reasoning goes on after the generation prompt."""


def begun(renderer, opening, text):
    """A prompt with an opening, what the model samples after it, and what is read of both."""
    prompt = [*renderer.render(START, TOOLS), *opening]
    sampled = [*encode(renderer._tokenizer, text), renderer.stop_token_ids[0]]
    message = parse(renderer, [*opening, *sampled], 3)[1]
    return prompt, sampled, message


@pytest.mark.parametrize(
    ("tool", "rest"),
    [
        ("bash", ' {"command": "ls"}}\n</tool_call>'),
        (None, 'bash", "arguments": {"command": "ls"}}\n</tool_call>'),
    ],
)
def test_after_an_opening_the_model_can_only_go_on_with_a_call(name, renderer, tool, rest):
    opening = renderer.call_opening(tool)
    if name not in SILENCES:
        assert opening is None
        return
    text = renderer.decode(opening)
    assert text == SILENCES[name] + (OPENING if tool else OPENING[: OPENING.index("bash")])
    prompt, sampled, message = begun(renderer, opening, rest)
    assert message == Message(
        "assistant", "", tool_calls=(ToolCall("call_0", "bash", '{"command": "ls"}'),)
    )
    delta = renderer.bridge([*prompt, *sampled], RESULT, TOOLS, prompt_tokens=len(prompt))
    after = renderer.decode(delta)
    assert after.startswith("\n<|im_start|>")
    assert "a.txt" in after


def test_an_opening_is_tokenized_as_the_model_would_sample_it(name, renderer):
    if name in SILENCES:
        call = Message("assistant", "", tool_calls=(ToolCall("c", "bash", '{"command": "ls"}'),))
        whole = renderer.reply_ids(call)
        text = renderer.decode(whole)
        opening = renderer.call_opening("bash")
        assert renderer.decode(opening).endswith(OPENING)
        if text.startswith(renderer.decode(opening)):
            assert whole[: len(opening)] == opening


def test_a_template_that_writes_calls_in_another_order_has_no_opening():
    template = NATIVE_TOOLS.replace(
        '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}',
        '{"arguments": {{ call.function.arguments | tojson }}, "name": "{{ call.function.name }}"}',
    )
    assert template != NATIVE_TOOLS
    renderer = GenericRenderer(tiny_tokenizer(template))
    assert renderer.call_opening("bash") is None


def test_reasoning_that_the_prompt_has_opened_is_closed_by_the_opening():
    renderer = GenericRenderer(tiny_tokenizer(THINKING, special_tokens=TAGS))
    opening = renderer.call_opening("bash")
    assert renderer.decode(opening) == f"\n</think>\n\n{OPENING}"
    message = begun(renderer, opening, ' {"command": "ls"}}')[2]
    assert message.tool_calls == (ToolCall("call_0", "bash", '{"command": "ls"}'),)
    assert (message.reasoning, message.content) == (None, "")
