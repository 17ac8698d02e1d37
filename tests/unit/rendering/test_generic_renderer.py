import pytest

from polar.errors import BadRequest, ModelMissing
from polar.rendering.generic import GenericRenderer
from polar.rendering.template import ChatTemplate
from polar.rendering.tiny import CHATML, tiny_renderer, tiny_tokenizer
from polar.types import Message, ToolCall, ToolSpec

TOOLS = (ToolSpec("bash", "Run a command.", {"type": "object", "properties": {}}),)
USER = Message("user", "List the files.")
CALL = ToolCall("call_1", "bash", '{"command":  "ls"}')

NO_SYSTEM = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
NO_TOOL_ROLE = (
    "{% for m in messages %}{% if m['role'] == 'tool' %}{{ raise_exception('no tool') }}"
    "{% endif %}{% endfor %}"
)
FORGETS_THOUGHTS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] + '\n' }}"
    "{% if loop.last and m['reasoning_content'] %}<think>{{ m['reasoning_content'] }}</think>"
    "{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
KEEPS_THOUGHTS = FORGETS_THOUGHTS.replace("loop.last and ", "")
NO_SPECIAL_CLOSE = (
    "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def text_of(renderer, *args):
    return renderer.decode(renderer.render(*args))


def test_a_plain_conversation_is_what_the_template_makes_of_it():
    assert text_of(tiny_renderer(), [USER], ()) == (
        "<|im_start|>user\nList the files.<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_that_the_template_ignores_go_into_the_system_message():
    text = text_of(tiny_renderer(), [Message("system", "Be brief."), USER], TOOLS)
    assert text.startswith("<|im_start|>system\nBe brief.\n\nYou can call these functions:\n{")
    assert '"name": "bash"' in text


def test_tools_make_a_system_message_where_there_is_none():
    text = text_of(tiny_renderer(), [USER], TOOLS)
    assert text.startswith("<|im_start|>system\nYou can call these functions:")


def test_a_template_without_system_role_gets_it_with_the_first_user_message():
    messages = [Message("system", "Be brief."), USER]
    text = text_of(tiny_renderer(NO_SYSTEM + CHATML), messages, ())
    assert text.startswith("<|im_start|>user\nBe brief.\n\nList the files.<|im_end|>")


def test_calls_in_history_are_written_as_the_model_writes_them():
    turn = Message("assistant", "Sure.", tool_calls=(CALL, CALL))
    text = text_of(tiny_renderer(), [USER, turn, Message("tool", "a.txt")], TOOLS)
    block = '<tool_call>\n{"name": "bash", "arguments": {"command":  "ls"}}\n</tool_call>'
    assert f"assistant\nSure.\n{block}\n{block}<|im_end|>\n<|im_start|>tool\na.txt" in text


def test_results_come_from_the_user_where_the_template_has_no_tool_role():
    renderer = tiny_renderer(NO_TOOL_ROLE + CHATML)
    turn = Message("assistant", "", tool_calls=(CALL,))
    text = text_of(renderer, [USER, turn, Message("tool", "a.txt")], TOOLS)
    assert "<|im_start|>user\n<tool_response>\na.txt\n</tool_response><|im_end|>" in text


def test_reasoning_is_kept_in_history_where_the_tokenizer_knows_think():
    renderer = GenericRenderer(tiny_tokenizer(special_tokens=("<think>", "</think>")))
    turn = Message("assistant", "Yes.", reasoning="Hm.")
    assert "<think>\nHm.\n</think>\n\nYes.<|im_end|>" in text_of(renderer, [USER, turn, USER], ())


def test_a_reply_cut_by_length_is_closed_as_context():
    renderer = tiny_renderer()
    previous = renderer.render([USER], ())
    end = renderer.stop_token_ids[0]
    closed = renderer.bridge([*previous, 65, end], [USER], (), prompt_tokens=len(previous))
    assert renderer.bridge([*previous, 65], [USER], (), prompt_tokens=len(previous)) == [
        end,
        *closed,
    ]


def test_an_empty_reply_is_closed_although_its_prompt_holds_end_tokens():
    renderer = tiny_renderer()
    previous = renderer.render([USER, Message("assistant", "Hi.")], ())
    delta = renderer.bridge(previous, [USER], (), prompt_tokens=len(previous))
    assert delta[0] == renderer.stop_token_ids[0]


def test_assistant_turns_that_were_never_sampled_can_be_bridged():
    renderer = tiny_renderer()
    prompt = renderer.render([USER], ())
    reply = renderer.render([USER, Message("assistant", "Yes."), USER], ())[len(prompt) :]
    sampled = reply[: reply.index(renderer.stop_token_ids[0]) + 1]
    new = [USER, Message("assistant", "I am invented."), USER]
    whole = renderer.render([USER, Message("assistant", "Yes."), *new], ())
    delta = renderer.bridge([*prompt, *sampled], new, (), prompt_tokens=len(prompt))
    assert [*prompt, *sampled, *delta] == whole


def test_a_template_that_forgets_reasoning_has_no_bridge():
    renderer = tiny_renderer(FORGETS_THOUGHTS)
    assert renderer.bridge([1, 2], [USER], (), prompt_tokens=1) is None


def test_a_template_that_keeps_reasoning_has_a_bridge():
    renderer = tiny_renderer(KEEPS_THOUGHTS)
    assert renderer.bridge([1, 2], [USER], (), prompt_tokens=1) is not None


def test_a_turn_without_a_special_token_at_its_end_has_no_bridge():
    renderer = tiny_renderer(NO_SPECIAL_CLOSE)
    assert renderer.bridge([1, 2], [USER], (), prompt_tokens=1) is None


def test_a_conversation_that_the_template_refuses_is_a_bad_request():
    alternate = (
        "{% for m in messages %}{% if m['role'] == 'user' and loop.index0 % 2 %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"
    )
    with pytest.raises(BadRequest, match="roles must alternate"):
        tiny_renderer(alternate + CHATML).render([USER, USER], ())


def test_a_tokenizer_without_a_template_is_no_chat_model():
    with pytest.raises(ModelMissing, match="no chat template"):
        ChatTemplate(tiny_tokenizer(""))


def test_a_template_that_renders_nothing_is_no_chat_model():
    with pytest.raises(ModelMissing, match="no plain conversation"):
        tiny_renderer("{{ raise_exception('never') }}")


def test_fingerprints_tell_templates_and_vocabularies_apart():
    prints = [
        tiny_renderer().fingerprint,
        tiny_renderer(CHATML + " ").fingerprint,
        GenericRenderer(tiny_tokenizer(special_tokens=("<x>",))).fingerprint,
    ]
    assert len(set(prints)) == 3
    assert tiny_renderer().fingerprint == prints[0]


def test_a_prompt_that_was_changed_by_whoever_got_it_is_rendered_again_as_it_was():
    renderer = tiny_renderer()
    long = Message("user", "List the files before the command. " * 200)
    first, second = (renderer.render([long], ()) for _ in range(2))
    first.append(0)
    assert renderer.render([long], ()) == second != first
