"""The declared rules by which presets tell the kinds of their calls apart."""

import json

import pytest

from polar.config.families import settings_model
from polar.harnesses import load
from polar.types import Chat, Message, ToolSpec

OWN = {
    "claude_code": {"x-claude-code-session-id": "s"},
    "codex": {"session-id": "s", "x-codex-turn-metadata": '{"request_kind": "turn"}'},
    "gemini_cli": {"user-agent": "GeminiCLI/0.61.0/some-model (linux; x64)"},
    "opencode": {"x-session-affinity": "ses_1"},
    "pi": {"x-stainless-lang": "js"},
    "qwen_code": {"x-stainless-lang": "js"},
}
RUN = ToolSpec("run", "Runs a command.", {"type": "object"})
ASKED_LAST = {
    "claude_code": "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "qwen_code": "You are the component that summarizes a conversation when its context window",
}
"""Preset -> how it asks, in its last message, for a summary of the history."""
COMPACTING = {
    "gemini_cli": "You are a specialized system component responsible for distilling chat history",
    "opencode": "You are a context summarization agent. You are given a conversation",
    "pi": "You are a context summarization assistant. Your task is to read",
    "qwen_code": "You are the component that summarizes a conversation when its context window",
}
"""Preset -> the system prompt under which it has the history summarised."""
ASIDE = {
    "opencode": "You are a title generator. You output ONLY a thread title.",
    "qwen_code": "You are now acting as the managed memory extraction subagent for an AI",
}
"""Preset -> the system prompt of a side call."""
RULES = """You review code.

Important Rules:
 - You operate in non-interactive mode: do not ask the user questions; go on with what there is.
 - Use tools only when necessary."""


def conversation(*last: Message, system="s", task="u") -> tuple[Message, ...]:
    return (Message("system", system), Message("user", task), *last)


def kind_of(name, messages=None, *, tools=(RUN,), **headers):
    harness = load(name)(settings_model("harness", name)())
    chat = Chat("m", conversation() if messages is None else messages, tools=tools)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return harness.kind_of(chat, OWN[name] | named)


@pytest.mark.parametrize("name", OWN)
def test_a_call_with_tools_and_a_plain_prompt_is_a_main_one(name):
    assert kind_of(name) == "main"


@pytest.mark.parametrize("name", OWN)
def test_a_call_without_messages_is_told_apart_too(name):
    assert kind_of(name, ()) == "main"


@pytest.mark.parametrize(("name", "text"), ASKED_LAST.items())
def test_a_request_for_a_summary_after_replies_is_a_compaction(name, text):
    reply = Message("assistant", "I looked at the files.")

    assert kind_of(name, conversation(reply, Message("user", text))) == "compaction"
    reminded = Message("user", f"<reminder/>\n{text}")
    assert kind_of(name, conversation(reply, reminded)) == "compaction"


@pytest.mark.parametrize(("name", "text"), COMPACTING.items())
def test_a_call_under_the_prompt_of_a_summariser_is_a_compaction(name, text):
    assert kind_of(name, conversation(system=text), tools=()) == "compaction"


def test_codex_says_in_a_header_that_a_call_is_a_compaction():
    told = json.dumps({"request_kind": "compaction"})

    assert kind_of("codex", x_codex_turn_metadata=told) == "compaction"


@pytest.mark.parametrize("metadata", ["", "not JSON", "[]", '{"request_kind": 1}'])
def test_odd_metadata_of_codex_says_nothing(metadata):
    assert kind_of("codex", x_codex_turn_metadata=metadata) == "main"


@pytest.mark.parametrize("text", [*ASKED_LAST.values(), *COMPACTING.values(), *ASIDE.values()])
@pytest.mark.parametrize("name", OWN)
def test_a_task_or_a_file_that_quotes_the_harness_changes_no_kind(name, text):
    told = conversation(task=text)
    shown = conversation(Message("assistant", "I look."), Message("tool", text, tool_call_id="c"))

    assert kind_of(name, told) == "main"
    assert kind_of(name, told[1:]) == "main"
    assert kind_of(name, shown) == "main"
    assert kind_of(name, conversation(system=f"Help.\n{text}")) == "main"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("claude_code", {"x_claude_code_agent_id": "a1"}),
        ("codex", {"x_openai_subagent": "collab_spawn"}),
        ("opencode", {"x_parent_session_id": "ses_0"}),
    ],
)
def test_a_call_of_a_sub_agent_says_so_in_its_headers(name, headers):
    assert kind_of(name, **headers) == "subagent"


def test_a_sub_agent_of_qwen_code_has_the_rules_of_sub_agents_in_its_prompt():
    assert kind_of("qwen_code", conversation(system=RULES)) == "subagent"


def test_only_a_sub_agent_of_gemini_cli_has_the_tool_that_ends_it():
    end = ToolSpec("complete_task", "Ends.", {"type": "object"})

    assert kind_of("gemini_cli", tools=(RUN, end)) == "subagent"


def test_what_a_sub_agent_has_summarised_is_a_compaction_in_every_harness():
    summary = conversation(
        Message("assistant", "I look."), Message("user", ASKED_LAST["claude_code"])
    )
    told = json.dumps({"request_kind": "compaction"})

    assert kind_of("claude_code", summary, x_claude_code_agent_id="a1") == "compaction"
    assert kind_of("codex", x_openai_subagent="spawn", x_codex_turn_metadata=told) == "compaction"
    assert (
        kind_of("opencode", conversation(system=COMPACTING["opencode"]), x_parent_session_id="s")
        == "compaction"
    )


@pytest.mark.parametrize(("name", "text"), ASIDE.items())
def test_titles_and_memories_are_auxiliary(name, text):
    assert kind_of(name, conversation(system=text)) == "auxiliary"


@pytest.mark.parametrize("name", ["claude_code", "gemini_cli", "qwen_code"])
def test_a_question_without_tools_is_auxiliary(name):
    assert kind_of(name, tools=()) == "auxiliary"
