"""The SGLang engine against the server's wire form, in both forms of its streams."""

import asyncio
from contextlib import aclosing, asynccontextmanager

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sglang_wire import EOS, WINDOW, likely, logprob, sglang_wire

from polar.engines import SampleRequest
from polar.engines.settings import SglangSettings
from polar.engines.sglang import SglangEngine
from polar.engines.sglang_wire import Reader
from polar.errors import EngineError, EngineRefused, ServerFailed, ServerLost, StaleWeights
from polar.types import Sampling

PROMPT = (15, 16, 17)

both_forms = pytest.mark.parametrize("incremental", [False, True], ids=["cumulative", "new"])


@asynccontextmanager
async def engine_at(*urls, **settings):
    engine = SglangEngine(SglangSettings(urls=urls, **settings))
    try:
        yield engine
    finally:
        await engine.aclose()


async def whole(engine, sampling, prompt=PROMPT, model=None):
    async with aclosing(engine.sample(SampleRequest(prompt, sampling, model=model))) as chunks:
        return [chunk async for chunk in chunks]


def pairs(chunks):
    return [pair for c in chunks for pair in zip(c.token_ids, c.logprobs, strict=True)]


def check_reply(chunks, temperature, count):
    """Every token must follow from those before it, and have the logprob that it had there."""
    context = list(PROMPT)
    for token, told in pairs(chunks):
        assert token in (likely(context), EOS)
        assert told == pytest.approx(logprob(token, context, temperature))
        context.append(token)
    assert len(context) == len(PROMPT) + count


@both_forms
@pytest.mark.parametrize("temperature", [1.0, 0.5])
async def test_every_token_is_told_once_with_the_logprob_it_was_sampled_at(
    incremental, temperature
):
    async with sglang_wire(incremental=incremental) as (url, _), engine_at(url) as engine:
        chunks = await whole(engine, Sampling(temperature=temperature, max_tokens=21))
    check_reply(chunks, temperature, 21)
    assert chunks[-1].finish_reason == "length"
    assert [chunk.cached_tokens for chunk in chunks] == [2, *[0] * (len(chunks) - 1)]


@both_forms
async def test_a_reply_that_the_server_ends_at_a_foreign_end_token_is_gone_on_with(incremental):
    async with sglang_wire(incremental=incremental) as (url, wire), engine_at(url) as engine:
        wire.eos_after = 5
        chunks = await whole(engine, Sampling(max_tokens=21, stop_token_ids=(3,)))
    assert EOS in [token for token, _ in pairs(chunks)]
    check_reply(chunks, 1.0, 21)
    assert [c.finish_reason for c in chunks if c.finish_reason] == ["length"]


@both_forms
async def test_a_stream_that_is_cut_off_is_an_error_and_never_an_ending(incremental):
    async with (
        sglang_wire(incremental=incremental) as (url, wire),
        engine_at(url, tries=1) as engine,
    ):
        await engine.probe()
        wire.cut_after = 4
        with pytest.raises(ServerLost):
            await whole(engine, Sampling(max_tokens=21))


@both_forms
async def test_an_aborted_request_is_an_error_and_its_last_token_is_not_told_again(incremental):
    seen = []

    async def follow(engine):
        async for chunk in engine.sample(SampleRequest(PROMPT, Sampling(max_tokens=21))):
            seen.append(chunk)

    async with (
        sglang_wire(incremental=incremental) as (url, wire),
        engine_at(url, tries=1) as engine,
    ):
        await engine.probe()
        wire.abort_after = 4
        with pytest.raises(ServerFailed, match="Aborted by a pause"):
            await follow(engine)
    check_reply(seen, 1.0, 4)


@both_forms
async def test_a_call_goes_on_at_another_server_when_its_own_breaks_off(incremental):
    async with (
        sglang_wire(incremental=incremental) as (one, first),
        sglang_wire(incremental=not incremental) as (two, second),
        engine_at(one, two) as engine,
    ):
        await engine.probe()
        first.cut_after = 4
        replies = [await whole(engine, Sampling(max_tokens=21)) for _ in range(2)]
        assert sum(status.moved for status in engine.status()) > 0
    for chunks in replies:
        check_reply(chunks, 1.0, 21)
    assert any(len(asked["input_ids"]) == len(PROMPT) + 4 for asked in second.asked)


@both_forms
async def test_a_reply_across_an_update_says_which_weights_sampled_which_token(
    incremental, tmp_path
):
    (tmp_path / "model.safetensors").touch()
    async with sglang_wire(incremental=incremental) as (url, wire), engine_at(url) as engine:
        seen = []
        async with aclosing(engine.sample(SampleRequest(PROMPT, Sampling(max_tokens=60)))) as ch:
            seen.append(await anext(ch))
            await engine.pause()
            await engine.load_weights(4, tmp_path)
            await engine.resume()
            seen += [chunk async for chunk in ch]
        found = await engine.probe()
    check_reply(seen, 1.0, 60)
    versions = [chunk.weight_version for chunk in seen for _ in chunk.token_ids]
    assert versions == sorted(versions)
    assert set(versions) == {0, 4}
    assert wire.told[0] == ("pause_generation", {"mode": "retract"})
    assert found.model == "/models/two", "its name changed with its weights"


async def test_a_server_that_does_not_take_weights_is_not_used(tmp_path):
    (tmp_path / "model.safetensors").touch()
    async with (
        sglang_wire() as (one, bad),
        sglang_wire() as (two, _),
        engine_at(one, two) as engine,
    ):
        await engine.probe()
        bad.update_fails = True
        await engine.pause()
        await engine.load_weights(2, tmp_path)
        await engine.resume()
        serving = {status.address: status.serving for status in engine.status()}
        chunks = await whole(engine, Sampling(max_tokens=8))
    assert serving == {one: False, two: True}
    assert {chunk.weight_version for chunk in chunks} == {2}


async def test_a_server_that_forgot_its_weights_is_given_them_before_it_serves(tmp_path):
    (tmp_path / "model.safetensors").touch()
    async with sglang_wire() as (url, wire), engine_at(url) as engine:
        await engine.probe()
        await engine.pause()
        await engine.load_weights(2, tmp_path)
        await engine.resume()
        wire.restart()
        with pytest.raises(StaleWeights):
            await whole(engine, Sampling(max_tokens=8))
        chunks = await whole(engine, Sampling(max_tokens=8))
    assert wire.label == "polar-2"
    check_reply(chunks, 1.0, 8)
    assert {chunk.weight_version for chunk in chunks} == {2}


async def test_weights_that_somebody_else_loaded_are_noticed_at_the_end_of_the_reply():
    async with sglang_wire() as (url, wire), engine_at(url, tries=1) as engine:
        await engine.probe()
        wire.label = "theirs"
        with pytest.raises(EngineError, match="unknown weights 'theirs'"):
            await whole(engine, Sampling(max_tokens=2))


@pytest.mark.parametrize("filtered", [{"top_p": 0.9}, {"top_k": 5}])
async def test_a_filter_that_the_logprobs_would_not_show_is_refused(filtered):
    async with sglang_wire() as (url, _), engine_at(url) as engine:
        with pytest.raises(EngineRefused, match="before top-p and top-k"):
            await whole(engine, Sampling(max_tokens=4, **filtered))


async def test_logprobs_from_before_temperature_serve_at_temperature_one_only():
    async with sglang_wire(original=True) as (url, _), engine_at(url) as engine:
        assert "temperature 1 only" in (await engine.probe()).detail
        check_reply(await whole(engine, Sampling(max_tokens=4)), 1.0, 4)
        with pytest.raises(EngineRefused, match="SGLANG_RETURN_ORIGINAL_LOGPROB"):
            await whole(engine, Sampling(temperature=0.5, max_tokens=4))


async def test_a_server_without_spans_of_versions_takes_no_weights():
    async with sglang_wire() as (url, wire), engine_at(url) as engine:
        wire.spans = False
        assert not (await engine.probe()).weight_updates
        check_reply(await whole(engine, Sampling(max_tokens=4)), 1.0, 4)


async def test_every_request_says_all_that_changes_the_distribution():
    async with sglang_wire() as (url, wire), engine_at(url) as engine:
        await whole(engine, Sampling(temperature=0.7, max_tokens=3, seed=3), model="tuned")
    asked = wire.asked[-1]
    expected = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "min_p": 0.0, "sampling_seed": 3}
    assert expected.items() <= asked["sampling_params"].items()
    assert asked["sampling_params"]["ignore_eos"]
    assert asked["lora_path"] == "tuned"
    assert asked["return_logprob"]


async def test_the_window_is_what_the_server_has_memory_for():
    async with sglang_wire() as (url, _), engine_at(url) as engine:
        assert (await engine.probe()).max_context == WINDOW


async def test_another_model_than_the_wanted_one_is_refused():
    async with sglang_wire() as (url, _), engine_at(url, model="/models/three") as engine:
        with pytest.raises(EngineError, match="does not serve a model '/models/three'"):
            await engine.probe()


async def test_leaving_a_stream_does_not_disturb_the_next():
    async with sglang_wire() as (url, _), engine_at(url) as engine:
        async with aclosing(engine.sample(SampleRequest(PROMPT, Sampling(max_tokens=60)))) as ch:
            await anext(ch)
        await asyncio.sleep(0)
        check_reply(await whole(engine, Sampling(max_tokens=6)), 1.0, 6)


def line(ids, told, total, reason=None):
    meta = {"finish_reason": reason, "completion_tokens": total, "output_token_logprobs": told}
    return b"data: " + orjson.dumps({"output_ids": ids, "meta_info": meta})


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=8),
    incremental=st.booleans(),
)
def test_both_forms_of_a_stream_tell_the_same_tokens_however_they_are_cut(sizes, incremental):
    ids = list(range(sum(sizes)))
    told = [[-float(token), token, None] for token in ids]
    reader, read, end = Reader(), [], 0
    for size in sizes:
        start, end = (end if incremental else 0), end + size
        read.append(reader.read(line(ids[start:end], told[start:end], end)))
    assert [token for event in read for token in event.token_ids] == ids
    assert [value for event in read for value in event.logprobs] == [-float(t) for t in ids]


def test_a_token_lost_between_two_events_is_an_error():
    reader = Reader()
    reader.read(line([5], [[-1.0, 5, None]], 1))
    with pytest.raises(ServerFailed, match="some are lost"):
        reader.read(line([7], [[-1.0, 7, None]], 3))


def test_logprobs_of_other_tokens_are_an_error():
    with pytest.raises(ServerFailed, match="of other tokens"):
        Reader().read(line([5], [[-1.0, 6, None]], 1))


def test_a_refusal_within_a_stream_is_told_from_a_failure():
    refusal = orjson.dumps({"error": {"message": "too long", "code": 400}})
    with pytest.raises(EngineError, match="refuses the request: too long") as caught:
        Reader().read(b"data: " + refusal)
    assert not isinstance(caught.value, ServerFailed)
    with pytest.raises(ServerFailed):
        Reader().read(b'data: {"error": {"message": "busy", "code": 503}}')


def test_an_answer_without_logprobs_is_refused():
    with pytest.raises(EngineRefused):
        Reader().read(b'data: {"output_ids": [1], "meta_info": {"finish_reason": null}}')


def test_a_torn_line_is_a_lost_server():
    with pytest.raises(ServerLost):
        Reader().read(b'data: {"output_ids": [1], "me')
