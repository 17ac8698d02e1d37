"""Agents on real SDKs: the examples' ways to speak, and programs of the user's own."""

import pytest
from scripted_sessions import ROOMY, Account, is_chain, made, played, run, say, use

from polar.types import Message

pytestmark = pytest.mark.timeout(600)

OWN_OPENAI = '''
import json, os, sys
from pathlib import Path
from agents import Agent, Runner, function_tool
from beside import NAME

told = json.loads(Path(sys.argv[1]).read_text())

@function_tool
def greet(word: str) -> str:
    """Write a word into the file."""
    Path(NAME).write_text(word + "\\n")
    return "written"

agent = Agent(name="own", instructions=sys.argv[2], tools=[greet])
print(Runner.run_sync(agent, os.environ["POLAR_INSTRUCTION"]).final_output, told["model"])
'''
OWN_CLAUDE = """
import asyncio, json, os, sys
from pathlib import Path
from claude_agent_sdk import ClaudeAgentOptions, create_sdk_mcp_server, query, tool
from beside import NAME

told = json.loads(Path(sys.argv[1]).read_text())

@tool("greet", "Write a word into the file.", {"word": str})
async def greet(arguments):
    Path(NAME).write_text(arguments["word"] + "\\n")
    return {"content": [{"type": "text", "text": "written"}]}

async def main():
    options = ClaudeAgentOptions(
        model=told["model"],
        system_prompt=sys.argv[2],
        tools=[],
        mcp_servers={"own": create_sdk_mcp_server("own", tools=[greet])},
        allowed_tools=["mcp__own__greet"],
    )
    async for message in query(prompt=os.environ["POLAR_INSTRUCTION"], options=options):
        pass

asyncio.run(main())
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "session").mkdir()
    return tmp_path / "session"


@pytest.mark.parametrize(
    ("name", "program", "tool", "settings"),
    [
        ("openai_agents", OWN_OPENAI, "greet", {}),
        ("claude_agent_sdk", OWN_CLAUDE, "mcp__own__greet", {"context_window": ROOMY}),
    ],
)
async def test_a_program_of_the_users_own_runs_in_its_sdks_environment(
    name, program, tool, settings, tmp_path, folder
):
    (tmp_path / "own").mkdir()
    script = tmp_path / "own" / "agent.py"
    script.write_text(program)
    (tmp_path / "own" / "beside.py").write_text("NAME = 'hello.txt'\n")
    harness = made(name, script=script, extra_args=("Be kind.",), **settings)
    replies = [use(tool, word="hello"), say("Done.")]

    session = await played(harness, folder, lambda turn: replies[turn.replies])

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    assert Account(session.calls).kinds() == ["main"] * 2
    assert is_chain(session.calls)
    assert "Be kind." in session.calls[0].messages[0].content
    assert session.fidelity.kept == session.fidelity.sampled > 0


async def test_the_example_on_openais_sdk_speaks_chat_completions_too(folder):
    harness = made("openai_agents", api="chat")
    replies = [run(harness, "echo hello > hello.txt"), run(harness, "cat hello.txt"), say("Done.")]

    session = await played(harness, folder, lambda turn: replies[turn.replies])

    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    assert is_chain(session.calls)
    assert session.calls[2].messages[-1].content == "exit code 0\nhello\n"


async def test_the_example_ends_well_at_its_limit_of_turns(folder):
    harness = made("openai_agents", max_turns=2)

    session = await played(harness, folder, lambda turn: run(harness, f"echo {turn.replies}"))

    assert len(session.calls) == 2
    assert harness.ended_well(session.result), session.result


async def test_a_call_of_an_agents_own_command_is_foreign(folder):
    harness = made("openai_agents")
    ask = (
        "curl -s -o /dev/null -H 'content-type: application/json' "
        '-H "authorization: Bearer $OPENAI_API_KEY" '
        """-d '{"model": "m", "messages": [{"role": "user", "content": "x"}]}' """
        "$OPENAI_BASE_URL/chat/completions"
    )

    def script(turn) -> Message:
        replies = [run(harness, ask), run(harness, "echo hello > hello.txt"), say("Done.")]
        return replies[turn.replies] if turn.offers("run_command") else say("x")

    session = await played(harness, folder, script)

    assert session.wrote, session.result
    assert Account(session.calls).kinds() == ["main", "foreign", "main", "main"]
