"""Real harnesses with a real model on a real vLLM server: whatever it says, the protocol holds."""

import asyncio

import pytest
from vllm_server import MODEL_ENV, URL_ENV, needed

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

FITTING = ("claude_code", "codex", "mini_swe_agent", "pi")
TOO_LONG = ("gemini_cli", "opencode", "qwen_code")
"""Their first prompt alone is longer than the 8,192 tokens that the small model can hold."""


async def played(name, tmp_path):
    declared = settings_model("harness", name)
    given = {"cache": environment().cache, "context_window": 8192}
    settings = declared(**{key: given[key] for key in given if key in declared.model_fields})
    harness = load(name)(settings)
    await asyncio.to_thread(install_harness, harness)
    runtime = default_runtime().runtime
    engine = load_engine("vllm")(VllmSettings(urls=(needed(URL_ENV),)))
    renderer = await asyncio.to_thread(load_renderer, needed(MODEL_ENV))
    try:
        return await play(harness, runtime, tmp_path, model=(engine, renderer), max_tokens=64)
    finally:
        await runtime.aclose()


@pytest.mark.parametrize("name", FITTING)
async def test_a_session_ends_and_every_sampled_token_is_on_record(name, tmp_path):
    session = await played(name, tmp_path)

    assert not session.result.timed_out, session.result
    assert session.calls, session.result
    assert session.fidelity.sampled > 0
    main = [call for call in session.calls if call.kind in ("main", "subagent")]
    assert session.fidelity.kept == sum(len(call.sampled_ids) for call in main)
    assert all(len(call.logprobs) == len(call.sampled_ids) for call in session.calls)


@pytest.mark.parametrize("name", TOO_LONG)
async def test_a_prompt_that_the_model_cannot_hold_is_an_error_and_no_call(name, tmp_path):
    session = await played(name, tmp_path)

    assert session.calls == ()
    assert session.result.exit_code != 0
