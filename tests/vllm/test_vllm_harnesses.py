"""Real harnesses with a real model on a real vLLM server: whatever it says, the protocol holds."""

import asyncio

import pytest
from engine_servers import LONG_MODEL_ENV, LONG_URL_ENV, MODEL_ENV, URL_ENV, needed

from polar.cli.harness_check import play
from polar.cli.install import install_harness
from polar.config import environment
from polar.config.families import settings_model
from polar.engines import load as load_engine
from polar.engines.settings import VllmSettings
from polar.harnesses import load
from polar.rendering import load_renderer
from polar.runtimes import default_runtime

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

FITTING = (
    *("aider", "claude_agent_sdk", "claude_code", "codex"),
    *("mini_swe_agent", "openai_agents", "pi"),
)
TOO_LONG = ("gemini_cli", "qwen_code")
"""Their first prompt alone is longer than the 8,192 tokens that the small model can hold."""
TIGHT = "opencode"
"""Its first prompt leaves little or nothing of them, depending on the folder's name."""

SHORT = (URL_ENV, MODEL_ENV, 8192)
LONG = (LONG_URL_ENV, LONG_MODEL_ENV, 32768)


async def played(name, tmp_path, server):
    url, folder, window = server
    declared = settings_model("harness", name)
    given = {"cache": environment().cache, "context_window": window}
    settings = declared(**{key: given[key] for key in given if key in declared.model_fields})
    harness = load(name)(settings)
    await asyncio.to_thread(install_harness, harness)
    runtime = default_runtime().runtime
    engine = load_engine("vllm")(VllmSettings(urls=(needed(url),)))
    renderer = await asyncio.to_thread(load_renderer, needed(folder))
    try:
        model = (engine, renderer)
        return await play(harness, runtime, tmp_path, model=model, max_tokens=64, run_s=600.0)
    finally:
        await runtime.aclose()


@pytest.mark.parametrize(
    ("name", "server"),
    [*((name, SHORT) for name in FITTING), *((name, LONG) for name in (*TOO_LONG, TIGHT))],
)
async def test_a_session_ends_and_every_sampled_token_is_on_record(name, server, tmp_path):
    session = await played(name, tmp_path, server)

    assert not session.result.timed_out, session.result
    assert session.calls, session.result
    assert session.fidelity.sampled > 0
    main = [call for call in session.calls if call.kind in ("main", "subagent")]
    assert session.fidelity.kept == sum(len(call.sampled_ids) for call in main)
    assert all(len(call.logprobs) == len(call.sampled_ids) for call in session.calls)


@pytest.mark.parametrize("name", TOO_LONG)
async def test_a_prompt_that_the_model_cannot_hold_is_an_error_and_no_call(name, tmp_path):
    session = await played(name, tmp_path, SHORT)

    assert session.calls == ()
    assert session.result.exit_code != 0
