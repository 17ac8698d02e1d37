"""Scores from functions and commands: numbers, refusals, deadlines."""

import asyncio
import gc
import os
import sys
import threading

import numpy as np
import pytest

from polar.config import RunConfig, load_config, parse_config, write_config
from polar.errors import ConfigError, ScorerFailed
from polar.gateway import scorers
from polar.gateway.scorers import ScorerSpec
from polar.gateway.scorers.command import CommandScorer
from polar.gateway.scorers.function import FunctionScorer
from polar.types import Call, CallId, Message, Sampling, SessionId


def called(text="done"):
    return Call(
        id=CallId("c0"),
        session_id=SessionId("s1"),
        attempt=0,
        index=0,
        parent_id=None,
        prompt_ids=np.array([1, 2], np.int32),
        sampled_ids=np.array([5, 6, 7], np.int32),
        logprobs=np.zeros(3, np.float32),
        weight_versions=np.zeros(3, np.int32),
        messages=(Message("user", "hi"),),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", text),
        finish_reason="stop",
    )


CALL = called()


def by(function, *, timeout_s=20.0, most_hanging=2):
    return FunctionScorer(function, timeout_s=timeout_s, most_hanging=most_hanging)


def running(code: str, *, timeout_s=20.0):
    return CommandScorer((sys.executable, "-I", "-S", "-c", code), timeout_s=timeout_s)


@pytest.mark.parametrize(("value", "score"), [(1, 1.0), (0.25, 0.25), (True, 1.0), (None, None)])
async def test_a_function_gives_a_number_or_none(value, score):
    assert await by(lambda call: value).score(CALL) == score


async def test_a_function_is_given_the_call_in_a_thread_of_its_own():
    seen = []

    def look(call):
        seen.append((call, threading.current_thread()))
        return 0

    await by(look).score(CALL)
    ((call, thread),) = seen
    assert call is CALL
    assert thread.daemon
    assert thread is not threading.main_thread()


@pytest.mark.parametrize("value", ["1.0", [1], float("nan"), float("inf")])
async def test_what_is_no_finite_number_is_no_score(value):
    with pytest.raises(ScorerFailed, match=r"no number|not finite"):
        await by(lambda call: value).score(CALL)


@pytest.mark.parametrize("error", [KeyError("lost"), TimeoutError("mine"), SystemExit(3)])
async def test_a_function_that_raises_has_failed_with_its_own_error(error):
    def broken(call):
        raise error

    with pytest.raises(ScorerFailed, match=type(error).__name__):
        await by(broken).score(CALL)


async def test_a_function_that_hangs_is_left_behind_and_never_more_than_may_be():
    release = threading.Event()
    scorer = by(lambda call: release.wait(), timeout_s=0.02, most_hanging=2)
    for _ in range(2):
        with pytest.raises(ScorerFailed, match="took longer than"):
            await scorer.score(CALL)
    with pytest.raises(ScorerFailed, match="hangs in 2 threads"):
        await scorer.score(CALL)
    release.set()
    async with asyncio.timeout(20):
        while scorer._hanging:  # noqa: ASYNC110 - threads end without an event
            await asyncio.sleep(0.001)
    assert await by(lambda call: 1).score(CALL) == 1


async def test_an_error_after_the_deadline_bothers_nobody(caplog):
    release = threading.Event()

    def late(call):
        release.wait()
        raise ValueError("late")

    scorer = by(late, timeout_s=0.02)
    with pytest.raises(ScorerFailed, match="took longer"):
        await scorer.score(CALL)
    release.set()
    async with asyncio.timeout(20):
        while scorer._hanging:  # noqa: ASYNC110 - threads end without an event
            await asyncio.sleep(0.001)
    gc.collect()
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("printed", "score"),
    [("0.5", 0.5), ("null", None), ('{"score": 2}', 2.0), ('{"score": null}', None)],
)
async def test_a_command_prints_a_number_or_null(printed, score):
    assert await running(f"print({printed!r})").score(CALL) == score


async def test_a_command_reads_the_call_as_json():
    scorer = running(
        "import json, sys\n"
        "call = json.load(sys.stdin)\n"
        "assert call['version'] == 1\n"
        "print(call['sampled_tokens'] + 10 * call['prompt_tokens'])\n"
    )
    assert await scorer.score(CALL) == 23


async def test_a_command_need_not_read_its_input():
    assert await running("print(1)").score(called("x" * 1_000_000)) == 1


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("print('good')", "not JSON: 'good'"),
        ("pass", "not JSON: ''"),
        ("print('{}')", "without `score`"),
        ("print('[1]')", "list, which is no number"),
        ("import sys; sys.exit('broken here')", r"exit 1\): broken here"),
        ("print('1' * 10**7)", "not JSON|not finite"),
    ],
)
async def test_a_command_that_gives_no_number_has_failed(code, said):
    with pytest.raises(ScorerFailed, match=said):
        await running(code).score(CALL)


async def test_a_command_that_is_not_there_has_failed():
    with pytest.raises(ScorerFailed, match="cannot be started"):
        await CommandScorer(("/no/such/program",), timeout_s=5).score(CALL)


def spawning(pid_file, then: str) -> str:
    return (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(1000)'])\n"
        f"open({str(pid_file)!r}, 'w').write(str(child.pid))\n{then}\n"
    )


async def test_a_command_that_hangs_is_killed_with_its_children(tmp_path):
    scorer = running(spawning(tmp_path / "pid", "time.sleep(1000)"), timeout_s=1.0)
    with pytest.raises(ScorerFailed, match="took longer than 1 s"):
        await scorer.score(CALL)
    await gone(int((tmp_path / "pid").read_text()))


async def test_a_child_that_a_command_leaves_behind_is_killed_and_delays_nothing(tmp_path):
    scorer = running(spawning(tmp_path / "pid", "print(3, flush=True)"), timeout_s=50)
    assert await scorer.score(CALL) == 3
    await gone(int((tmp_path / "pid").read_text()))


async def gone(pid: int) -> None:
    async with asyncio.timeout(20):
        while running_still(pid):  # noqa: ASYNC110 - another process ends without an event
            await asyncio.sleep(0.005)


def running_still(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def test_the_config_names_a_function_a_command_or_a_package(tmp_path):
    (tmp_path / "mine.py").write_text("def length(call, *, by=1):\n    return by\n")
    spec = ScorerSpec(python=f"{tmp_path}/mine.py:length", settings={"by": 7})
    assert asyncio.run(scorers.make(spec).score(CALL)) == 7
    command = ScorerSpec(command=(sys.executable, "-c", "print(4)"))
    assert asyncio.run(scorers.make(command).score(CALL)) == 4
    with pytest.raises(ConfigError, match="no scorer `mine`"):
        scorers.make(ScorerSpec(name="mine"))


@pytest.mark.parametrize(
    ("scorer", "said"),
    [
        ({}, "exactly one"),
        ({"name": "a", "command": ["b"]}, "exactly one"),
        ({"command": []}, "at least 1"),
        ({"command": ["a"], "settings": {"b": 1}}, "as its arguments"),
        ({"python": "nothing"}, "MODULE:FUNCTION"),
        ({"command": ["a"], "timeout": 1}, "Did you mean `timeout_s`"),
    ],
)
def test_a_scorer_that_cannot_be_made_is_refused_when_the_config_is_read(scorer, said):
    with pytest.raises(ConfigError) as caught:
        parse_config({"gateway": {"scorer": scorer}}, RunConfig, where="x.yaml")
    assert said in str(caught.value)


def test_a_scorer_survives_the_round_trip_of_the_config(tmp_path):
    declared = {"command": ["score", "-x"], "timeout_s": 3}
    config = parse_config({"gateway": {"scorer": declared}}, RunConfig, where="x.yaml")
    write_config(tmp_path / "config.yaml", config)
    assert load_config(tmp_path / "config.yaml", [], RunConfig).gateway == config.gateway
