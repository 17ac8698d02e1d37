"""Every real harness, unmodified, through the real gateway: two commands, an end, every token."""

import asyncio

import pytest
from harness_support import CACHE, install

from polar.cli.harness_check import checked, play
from polar.config.families import settings_model
from polar.runtimes import default_runtime

pytestmark = pytest.mark.timeout(900)

EXPECTED_FORKS = {
    "aider": (),
    "claude_agent_sdk": (),
    "claude_code": (),
    "codex": (),
    "gemini_cli": (),
    "mini_swe_agent": (),
    "openai_agents": (),
    "opencode": (),
    "pi": (),
    "qwen_code": (),
}
"""Preset -> why its calls do not extend one another, where its history is not what was sampled."""
LEAST_CALLS = {"aider": 1}
"""Preset -> calls of a session; the others take a turn for each command, and one to end."""


@pytest.mark.parametrize("name", EXPECTED_FORKS)
async def test_a_real_harness_works_and_every_sampled_token_is_on_record(name, tmp_path):
    harness = checked(name, settings_model("harness", name)(cache=CACHE))
    await asyncio.to_thread(install, harness)
    runtime = default_runtime().runtime
    try:
        played = await play(harness, runtime, tmp_path)
    finally:
        await runtime.aclose()

    assert played.wrote, played.result
    assert played.result.exit_code == 0, played.result
    assert [call.kind for call in played.calls] == ["main"] * len(played.calls)
    assert len(played.calls) >= LEAST_CALLS.get(name, 3)
    assert played.forks == EXPECTED_FORKS[name]
    assert played.fidelity.kept == played.fidelity.sampled > 0
    for before, call in zip(played.calls, played.calls[1:], strict=False):
        assert call.parent_id == before.id
