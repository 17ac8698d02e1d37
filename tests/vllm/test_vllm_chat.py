"""A real vLLM server through its Chat Completions alone: ids as it tells them."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path

import openai
import pytest
import torch
from engine_servers import MODEL_ENV, URL_ENV, needed
from transformers import AutoModelForCausalLM

from polar.cli.harness_check import play
from polar.cli.install import install_harness
from polar.config import environment
from polar.config.families import settings_model
from polar.engines.openai import OpenAIEngine
from polar.engines.settings import OpenAISettings
from polar.gateway import Gateway, SessionPolicy
from polar.harnesses import load
from polar.rendering import load_renderer
from polar.runtimes import default_runtime
from polar.store import SqliteJournal, read_journal
from polar.trajectory import build, check
from polar.types import Session, SessionId, TaskId

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

TURNS = 4
TOOL = {
    "type": "function",
    "function": {
        "name": "look",
        "description": "Looks at a place.",
        "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
}


@pytest.fixture
async def engine():
    engine = OpenAIEngine(OpenAISettings(urls=(needed(URL_ENV),)))
    yield engine
    await engine.aclose()


async def talk(engine, tmp_path, **fields):
    """Hold a conversation of a few turns, and read what is on record of it."""
    renderer = await asyncio.to_thread(load_renderer, needed(MODEL_ENV))
    session = Session(SessionId("s"), TaskId("t"), "g", 0, "key-of-the-session")
    async with AsyncExitStack() as stack:
        journal = await stack.enter_async_context(SqliteJournal.open(tmp_path / "j.sqlite"))
        gateway = Gateway(engine, renderer, journal)
        address = await stack.enter_async_context(gateway.serve())
        await journal.open_session(session, phase="rollout", step=0)
        await gateway.open(session, SessionPolicy())
        client = await stack.enter_async_context(
            openai.AsyncOpenAI(base_url=f"{address.url}/s/{session.key}/v1", api_key=session.key)
        )
        messages = []
        for number in range(TURNS):
            messages.append({"role": "user", "content": f"Name an animal, number {number}."})
            reply = await client.chat.completions.create(
                model="m", messages=messages, max_tokens=40, seed=number, **fields
            )
            content = reply.choices[0].message.content
            messages.append({"role": "assistant", "content": content or ""})

    def read():
        with read_journal(tmp_path / "j.sqlite") as reader:
            return list(reader.calls(session.id))

    return await asyncio.to_thread(read)


@torch.no_grad()
def gap(model, call):
    """Mean distance between the recorded logprobs and the model's own."""
    ids = torch.tensor([[*call.prompt_ids.tolist(), *call.sampled_ids.tolist()]])
    logits = model(ids).logits[0].float()
    rows = torch.arange(len(call.prompt_ids) - 1, ids.shape[1] - 1)
    own = logits.log_softmax(-1)[rows, torch.tensor(call.sampled_ids.tolist())]
    return (own - torch.tensor(call.logprobs.tolist())).abs().mean().item()


@pytest.mark.parametrize("fields", [{}, {"tools": [TOOL]}], ids=["plain", "tools"])
async def test_what_the_server_told_is_what_the_model_sampled_and_turns_are_joined(
    engine, tmp_path, fields
):
    calls = await talk(engine, tmp_path, **fields)

    model = await asyncio.to_thread(
        lambda: AutoModelForCausalLM.from_pretrained(needed(MODEL_ENV), dtype=torch.float32)
    )
    assert [call.capture for call in calls] == ["recorded"] * TURNS
    assert max(gap(model.eval(), call) for call in calls) < 0.1  # the server has bfloat16
    joined = [after.parent_id == before.id for before, after in pairwise(calls)]
    reasons = [call.fork_reason for call in calls[1:]]
    assert reasons == [None if each else "server_rendering" for each in joined]
    assert any(joined)
    built = build(calls)
    check(calls, built)
    assert built.report.kept == built.report.sampled > 0


@pytest.mark.parametrize("name", ["claude_code", "codex", "mini_swe_agent", "pi"])
async def test_a_session_of_a_real_harness_ends_and_every_token_is_on_record(name, tmp_path):
    declared = settings_model("harness", name)
    given = {"cache": environment().cache, "context_window": 8192}
    settings = declared(**{key: given[key] for key in given if key in declared.model_fields})
    harness = load(name)(settings)
    await asyncio.to_thread(install_harness, harness)
    runtime = default_runtime().runtime
    model = (
        OpenAIEngine(OpenAISettings(urls=(needed(URL_ENV),))),
        await asyncio.to_thread(load_renderer, str(Path(needed(MODEL_ENV)))),
    )
    try:
        session = await play(harness, runtime, tmp_path, model=model, max_tokens=64, run_s=600.0)
    finally:
        await runtime.aclose()

    assert not session.result.timed_out, session.result
    assert {call.capture for call in session.calls} == {"recorded"}
    assert session.fidelity.sampled > 0
