"""Real harnesses are given MCP servers and skills, and the model uses them."""

import re
import sys
from pathlib import Path

import pytest
from scripted_sessions import (
    ROOMY,
    Account,
    Script,
    Turn,
    is_chain,
    made,
    played,
    run,
    say,
    use,
)

from polar.cli.harness_check import PlayedSession
from polar.types import Message

pytestmark = pytest.mark.timeout(600)

SERVER = '''
"""A tool server of one tool: newline-delimited JSON-RPC on stdin and stdout."""
import json, os, sys

TOOL = {
    "name": "weigh",
    "description": "Weighs a thing.",
    "inputSchema": {
        "type": "object",
        "properties": {"thing": {"type": "string"}},
        "required": ["thing"],
    },
}

def answer(method, params):
    if method == "initialize":
        info = {"name": "scales", "version": "1"}
        version = params["protocolVersion"]
        return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [TOOL]}
    if method == "tools/call":
        said = f"{params['arguments']['thing']} weighs {os.environ['WEIGHT']} {sys.argv[1]}"
        return {"content": [{"type": "text", "text": said}]}
    return {}

for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        result = answer(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
'''
SKILL = """---
name: greet
description: Says how greetings are written in this team.
---

Run `greet.sh` of this folder.
"""
FOLDERS = {
    "claude_agent_sdk": ".claude/skills",
    "claude_code": ".claude/skills",
    "codex": ".codex/skills",
    "gemini_cli": ".gemini/skills",
    "opencode": ".config/opencode/skills",
    "qwen_code": ".qwen/skills",
}
"""Preset -> where it looks for skills, in the home."""


@pytest.fixture
def server(tmp_path) -> dict:
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "server.py").write_text(SERVER)
    return {
        "command": str(Path(sys.executable).resolve()),
        "args": (str(folder / "server.py"), 'pounds "of" ä'),
        "env": {"WEIGHT": "nine"},
        "read_only": (folder, Path(sys.base_prefix)),
    }


@pytest.fixture
def skill(tmp_path) -> Path:
    folder = tmp_path / "greet"
    folder.mkdir()
    (folder / "SKILL.md").write_text(SKILL)
    (folder / "greet.sh").write_text("#!/bin/sh\necho hello\n")
    (folder / "greet.sh").chmod(0o755)
    return folder


@pytest.fixture
def session_folder(tmp_path) -> Path:
    (tmp_path / "session").mkdir()
    return tmp_path / "session"


@pytest.mark.parametrize("name", FOLDERS)
async def test_the_model_calls_a_tool_of_a_server_is_told_of_a_skill_and_runs_what_is_in_it(
    name, server, skill, session_folder
):
    harness = made(name, context_window=ROOMY, mcp_servers={"scales": server}, skills=(skill,))
    greet = run(harness, f'"$HOME"/{FOLDERS[name]}/greet/greet.sh > hello.txt')

    session = await played(harness, session_folder, weighing(greet))

    assert_weighed(session)
    told = f"{session.calls[0].messages} {session.calls[0].tools}"
    assert "Says how greetings are written in this team." in told


async def test_the_model_calls_a_tool_of_a_server_through_a_library_that_knows_no_skills(
    server, session_folder
):
    harness = made("openai_agents", mcp_servers={"scales": server})
    hello = run(harness, "echo hello > hello.txt")

    assert_weighed(await played(harness, session_folder, weighing(hello)))


def weighing(after: Message) -> Script:
    """Call the server's tool, whatever it is named here, then do something, then end."""

    def script(turn: Turn) -> Message:
        (offered,) = set(re.findall(r'"name": "([^"]*weigh)"', turn.prompt))
        return [use(offered, thing="a feather"), after, say("Done.")][turn.replies]

    return script


def assert_weighed(session: PlayedSession) -> None:
    """The tool was offered once and answered, the command ran, and every token is on record."""
    assert session.result.exit_code == 0, session.result
    assert session.wrote, session.result
    account = Account(session.calls)
    assert account.kinds() == ["main"] * 3
    assert is_chain(account.by_kind["main"])
    assert 'a feather weighs nine pounds "of" ä' in session.calls[1].messages[-1].content
    assert session.fidelity.kept == session.fidelity.sampled > 0
