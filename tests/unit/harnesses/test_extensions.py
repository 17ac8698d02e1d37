"""MCP servers and skills: who can be given them, how they are told, and what is refused."""

import subprocess
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polar.config import RunConfig, load_config
from polar.config.families import settings_model
from polar.errors import ConfigError
from polar.harnesses import load
from polar.harnesses.base import LaunchRequest
from polar.harnesses.extensions import with_skills
from polar.harnesses.settings import CodexSettings
from polar.runtimes.base import Place

EXTENSIBLE = ("claude_agent_sdk", "claude_code", "codex", "gemini_cli", "opencode", "qwen_code")
OTHERS = ("aider", "mini_swe_agent", "pi", "shell")
REQUEST = LaunchRequest("Work.", "a-model", "the-key", Place("/work", "/home/x", "http://h:9"))
SERVER = {"command": "scales", "args": ["--unit", "kg"], "env": {"WEIGHT": "9"}}


def harness(name, tmp_path: Path, **settings):
    program = tmp_path / "program" / "program"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\n")
    paths = {"executable": program, "node": program, "cache": tmp_path}
    model = settings_model("harness", name)
    known = {key: path for key, path in paths.items() if key in model.model_fields}
    return load(name)(model(**known, **settings))


def skill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "SKILL.md").write_text("---\nname: s\ndescription: d\n---\n")
    return folder


def refusal(*overrides: str) -> str:
    with pytest.raises(ConfigError) as refused:
        load_config(None, overrides, RunConfig)
    return str(refused.value)


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_a_launch_tells_program_arguments_and_environment_of_a_server(name, tmp_path):
    launch = harness(name, tmp_path, mcp_servers={"my-scales": SERVER}).launch(REQUEST)

    told = "\n".join((*launch.files.values(), *launch.process.env.values()))
    assert all(word in told for word in ("my-scales", "scales", "--unit", "kg", "WEIGHT", "9"))


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_without_extensions_a_launch_begins_with_the_program(name, tmp_path):
    launch = harness(name, tmp_path).launch(REQUEST)

    assert launch.process.argv[0] == str(tmp_path / "program" / "program")
    assert "--mcp-config" not in launch.process.argv


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_what_servers_and_skills_need_is_shown_to_the_sandbox(name, tmp_path):
    (tmp_path / "data").mkdir()
    server = {**SERVER, "read_only": (tmp_path / "data",)}
    greet = skill(tmp_path / "greet")

    found = harness(name, tmp_path, mcp_servers={"scales": server}, skills=(greet,)).find()

    assert {tmp_path / "data", greet} < set(found.read_only)


@pytest.mark.parametrize("name", EXTENSIBLE)
def test_what_is_not_there_is_named_before_a_session_starts(name, tmp_path):
    server = {**SERVER, "read_only": (tmp_path / "data",)}
    (tmp_path / "empty").mkdir()

    with pytest.raises(ConfigError, match="data"):
        harness(name, tmp_path, mcp_servers={"scales": server}).find()
    with pytest.raises(ConfigError, match=r"SKILL\.md"):
        harness(name, tmp_path, skills=(tmp_path / "empty",)).find()


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("key", ["mcp_servers", "skills"])
def test_a_harness_that_knows_no_extensions_refuses_them_and_names_those_that_do(name, key):
    told = refusal(f"harness.name={name}", f"harness.settings.{key}=[]")

    assert f"`{key}`: this harness cannot be given" in told
    assert "claude_code, codex, gemini_cli, opencode, qwen_code" in told


def test_an_unknown_key_of_a_server_is_told_with_the_nearest_one():
    told = refusal("harness.name=codex", "harness.settings.mcp_servers.scales.comand=x")

    assert "comand" in told
    assert "Did you mean `command`?" in told


@pytest.mark.parametrize("name", ["", "a b", "a.b", "ä"])
def test_a_name_that_no_tool_can_begin_with_is_refused(name, tmp_path):
    with pytest.raises(ValueError, match="pattern"):
        harness("codex", tmp_path, mcp_servers={name: SERVER})


def test_folders_are_absolute_so_that_a_run_resumes_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    servers = {"scales": {**SERVER, "read_only": ("data",)}}

    settings = CodexSettings(skills=("greet",), mcp_servers=servers)

    assert settings.skills == (tmp_path / "greet",)
    assert settings.mcp_servers["scales"].read_only == (tmp_path / "data",)


def test_two_skills_of_one_name_are_refused(tmp_path):
    with pytest.raises(ValueError, match="two are named 'greet'"):
        harness("codex", tmp_path, skills=(tmp_path / "a" / "greet", tmp_path / "b" / "greet"))


@given(st.text(st.characters(exclude_categories=("Cs",)), max_size=20))
def test_codex_reads_every_text_as_it_was_set(text):
    server = {"command": text or "x", "args": [text, text], "env": {text: text}}
    preset = load("codex")(
        CodexSettings(executable=Path("/bin/sh"), mcp_servers={"scales": server})
    )

    config = tomllib.loads(preset.launch(REQUEST).files[".codex/config.toml"])

    assert config["mcp_servers"] == {"scales": server}


@pytest.mark.parametrize("subagents", [False, True])
def test_claude_code_has_the_tools_that_its_extensions_need(subagents, tmp_path):
    greet = skill(tmp_path / "greet")
    launch = harness("claude_code", tmp_path, skills=(greet,), subagents=subagents).launch(REQUEST)

    argv = launch.process.argv
    tools = argv[argv.index("--tools") + 1].split(",")
    assert "Skill" in tools
    assert ("Agent" in tools) == subagents


def test_skills_are_copied_into_the_harness_folder_and_the_program_starts(tmp_path):
    link = tmp_path / "lent"
    link.symlink_to(skill(tmp_path / "real"))
    odd = skill(tmp_path / 'od d "x" $HOME')
    (odd / "run.sh").write_text("#!/bin/sh\n")
    (odd / "run.sh").chmod(0o755)
    users, copied = tmp_path / "users", tmp_path / "own $HOME" / ".agent" / "skills"
    users.mkdir()
    settings = CodexSettings(skills=(link, odd))

    argv = with_skills(("/bin/echo", "a b", "--", "c"), settings, folder=str(copied))
    ran = subprocess.run(
        argv, env={"HOME": str(users), "PATH": "/usr/bin:/bin"}, capture_output=True, check=True
    )

    assert ran.stdout == b"a b -- c\n"
    assert not any(users.iterdir())
    assert sorted(path.name for path in copied.iterdir()) == sorted(("lent", odd.name))
    assert (copied / "lent" / "SKILL.md").is_file()
    assert (copied / odd.name / "run.sh").stat().st_mode & 0o111


def test_a_skill_that_cannot_be_copied_is_a_program_that_did_not_start(tmp_path):
    settings = CodexSettings(skills=(tmp_path / "gone",))
    argv = with_skills(("/bin/true",), settings, folder=str(tmp_path / "s"))

    ran = subprocess.run(argv, env={"PATH": "/usr/bin:/bin"}, check=False)

    assert ran.returncode == 126
