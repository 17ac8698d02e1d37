"""The declared rules by which presets tell the kinds of their calls apart."""

import pytest

from polar.config.families import settings_model
from polar.harnesses import load
from polar.types import Chat, Message, ToolSpec

OWN = {
    "claude_code": {"x-claude-code-session-id": "s"},
    "codex": {"session-id": "s"},
    "gemini_cli": {"user-agent": "GeminiCLI/0.61.0/some-model (linux; x64)"},
    "opencode": {"x-session-affinity": "ses_1"},
    "qwen_code": {"x-stainless-lang": "js"},
}
TOOLS = (ToolSpec("run", "Runs a command.", {"type": "object"}),)


def kind_of(name, *, system="s", user="u", tools=TOOLS, **headers):
    harness = load(name)(settings_model("harness", name)())
    chat = Chat("m", (Message("system", system), Message("user", user)), tools=tools)
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    return harness.kind_of(chat, OWN[name] | named)


@pytest.mark.parametrize("name", OWN)
def test_a_call_with_tools_and_a_plain_prompt_is_a_main_one(name):
    assert kind_of(name) == "main"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen_code", {"system": "You are the component that summarizes a conversation when"}),
        ("opencode", {"system": "You are an anchored context summarization agent"}),
        ("claude_code", {"user": "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools."}),
        ("codex", {"user": "You are performing a CONTEXT CHECKPOINT COMPACTION. Write"}),
    ],
)
def test_a_summary_of_the_history_is_a_compaction(name, text):
    assert kind_of(name, **text) == "compaction"


@pytest.mark.parametrize(
    ("name", "headers"),
    [
        ("claude_code", {"x_claude_code_agent_id": "a1"}),
        ("codex", {"x_openai_subagent": "collab_spawn"}),
    ],
)
def test_a_call_of_a_sub_agent_says_so_in_its_headers(name, headers):
    assert kind_of(name, **headers) == "subagent"


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("opencode", {"system": "You are a title generator. You output ONLY a thread title."}),
        ("qwen_code", {"system": "You are the managed memory extraction subagent for"}),
        ("claude_code", {"tools": ()}),
        ("gemini_cli", {"tools": ()}),
    ],
)
def test_titles_memories_and_questions_without_tools_are_auxiliary(name, fields):
    assert kind_of(name, **fields) == "auxiliary"
