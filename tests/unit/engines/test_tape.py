"""A tape that is opened again: a torn end is cut off, and nothing that is whole."""

import asyncio
import os
import resource
import struct
import zlib

import numpy as np
import pytest

from polar.engines import SampleRequest, TapedEngine, read_tape
from polar.engines.scripted import ScriptedEngine
from polar.errors import EngineError, JournalError
from polar.types import Sampling

END_BYTES = 8 + len(b"end")
"""Length of the mark with which a process closes the tape."""


async def recorded(path, *prompts: int) -> None:
    """Record a request for each prompt."""
    engine = TapedEngine(ScriptedEngine(lambda prompt_ids: [1, 2, 3]), path)
    try:
        for number in prompts:
            request = SampleRequest(prompt_ids=[number], sampling=Sampling(max_tokens=3))
            async for _ in engine.sample(request):
                pass
    finally:
        await engine.aclose()


async def told_of(path):
    """Give session, attempt and call of each record, and whether its process closed the tape."""
    entries = await asyncio.to_thread(lambda: list(read_tape(path)))
    return [(each.session_id, each.attempt, each.call_id, each.closed) for each in entries]


async def asked(engine, number: int) -> None:
    request = SampleRequest([number], Sampling(max_tokens=3), f"s{number}", f"c{number}", attempt=1)
    async for _ in engine.sample(request):
        pass


async def records(path) -> int:
    return await asyncio.to_thread(lambda: len(list(read_tape(path))))


async def test_what_a_process_wrote_that_did_not_close_the_tape_is_told_apart(tmp_path):
    path = tmp_path / "engine.tape"
    await recorded(path, 1)
    killed, last = (TapedEngine(ScriptedEngine(lambda prompt_ids: [1]), path) for _ in range(2))
    await asked(killed, 2)
    await asked(killed, 3)
    assert [closed for *_, closed in await told_of(path)] == [True, False, False]
    await asked(last, 4)
    await last.aclose()
    assert await told_of(path) == [
        ("", 0, "", True),
        ("s2", 1, "c2", False),
        ("s3", 1, "c3", False),
        ("s4", 1, "c4", True),
    ]
    await killed.aclose()


async def test_a_tape_of_version_1_is_read_and_gone_on_with(tmp_path):
    path = tmp_path / "engine.tape"
    arrays = np.array([7], "<i4").tobytes() + np.array([-0.5], "<f4").tobytes() + bytes(4)
    payload = struct.pack("<32sII", b"p" * 32, 5, 1) + arrays
    frame = struct.pack("<II", len(payload), zlib.crc32(payload))
    path.write_bytes(b"polar tape 1\n" + frame + payload)
    assert await told_of(path) == [("", 0, "", True)]
    killed = TapedEngine(ScriptedEngine(lambda prompt_ids: [1]), path)
    await asked(killed, 2)
    assert await told_of(path) == [("", 0, "", True), ("s2", 1, "c2", False)]
    (first, _) = await asyncio.to_thread(lambda: list(read_tape(path)))
    assert first.token_ids.tolist() == [7]
    await killed.aclose()


@pytest.mark.parametrize("cut", [1, 7, 40])
async def test_the_torn_end_that_a_killed_process_leaves_is_cut_off(tmp_path, cut):
    path = tmp_path / "engine.tape"
    await recorded(path, 1, 2)
    os.truncate(path, path.stat().st_size - END_BYTES - cut)
    await recorded(path, 3)
    assert await records(path) == 2


async def test_a_tape_that_was_killed_within_its_first_bytes_is_begun_anew(tmp_path):
    path = tmp_path / "engine.tape"
    path.write_bytes(b"polar")
    await recorded(path, 1)
    assert await records(path) == 1


@pytest.mark.parametrize("place", [3, 60])
async def test_a_tape_that_is_damaged_before_its_end_is_left_as_it_is(tmp_path, place):
    path = tmp_path / "engine.tape"
    await recorded(path, 1, 2)
    damaged = bytearray(path.read_bytes())
    damaged[place] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(JournalError, match="damaged before its end"):
        await recorded(path, 3)
    assert path.read_bytes() == damaged


async def test_half_a_record_on_a_full_disk_does_not_stand_before_the_next_one(tmp_path):
    path = tmp_path / "engine.tape"
    await recorded(path, 1)
    engine = TapedEngine(ScriptedEngine(lambda prompt_ids: [1, 2, 3]), path)
    request = SampleRequest(prompt_ids=[2], sampling=Sampling(max_tokens=3))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 20, limits[1]))
    try:
        with pytest.raises(JournalError, match="disk is full"):
            async for _ in engine.sample(request):
                pass
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    async for _ in engine.sample(request):
        pass
    await engine.aclose()
    assert await records(path) == 2


async def test_what_is_no_id_of_a_token_is_refused_and_what_came_before_it_is_on_the_tape(tmp_path):
    path = tmp_path / "engine.tape"
    engine = TapedEngine(ScriptedEngine(lambda prompt_ids: [1, 2**31]), path)
    with pytest.raises(EngineError, match="no id of a token"):
        async for _ in engine.sample(SampleRequest(prompt_ids=[1], sampling=Sampling())):
            pass
    await engine.aclose()
    assert await records(path) == 1
