"""The config says which calls of a session train; what does not is dropped with its reason."""

import numpy as np
import pytest
from pydantic import ValidationError

from polar.rollout import RolloutSettings
from polar.rollout.building import Building
from polar.store import SqliteJournal
from polar.types import (
    Call,
    CallId,
    Completed,
    Grade,
    Message,
    Sampling,
    Session,
    SessionId,
    TaskId,
)

SESSION = Session(SessionId("s"), TaskId("t"), "g", 0, "a-key")


def call(index, prompt, sampled, **fields) -> Call:
    return Call(
        **{
            "id": CallId(f"c{index}"),
            "session_id": SESSION.id,
            "attempt": 0,
            "index": index,
            "parent_id": None,
            "prompt_ids": np.array(prompt, np.int32),
            "sampled_ids": np.array(sampled, np.int32),
            "logprobs": np.full(len(sampled), -1.0, np.float32),
            "weight_versions": np.zeros(len(sampled), np.int32),
            "messages": (Message("user", "go"),),
            "tools": (),
            "sampling": Sampling(),
            "reply": Message("assistant", "gone"),
            "finish_reason": "stop",
        }
        | fields
    )


CALLS = [
    call(0, [1, 2], [10]),
    call(1, [3], [11, 12], kind="subagent"),
    call(2, [4], [13], kind="auxiliary"),
    call(3, [5], [14], kind="compaction"),
    call(4, [6], [15], kind="foreign"),
    call(5, [7], [16, 17], finish_reason="abandoned"),
    call(6, [8], [18], finish_reason="error"),
]


async def built(tmp_path, **settings):
    """Trained tokens of a recorded session with a call of every kind, and what was dropped."""
    async with SqliteJournal.open(tmp_path / "journal.sqlite") as journal:
        await journal.open_session(SESSION, phase="train", step=1)
        for each in CALLS:
            await journal.add_call(each)
        building = Building(journal, RolloutSettings(**settings))
        found = await building.build(SESSION, Completed(Grade(1.0, True), 0))
    tokens = [int(t) for trace in found.traces for t in trace.token_ids[trace.loss_mask]]
    return sorted(tokens), dict(found.report.dropped)


async def test_the_agent_and_its_sub_agents_train_by_default_and_the_rest_is_counted(tmp_path):
    tokens, dropped = await built(tmp_path)
    assert tokens == [10, 11, 12]
    assert dropped == {
        "kind_auxiliary": 1,
        "kind_compaction": 1,
        "kind_foreign": 1,
        "abandoned": 2,
        "error": 1,
    }


async def test_kinds_that_are_named_train_and_those_that_are_not_do_not(tmp_path):
    tokens, dropped = await built(tmp_path, train_kinds=["main", "auxiliary", "compaction"])
    assert tokens == [10, 13, 14]
    assert dropped == {"kind_subagent": 2, "kind_foreign": 1, "abandoned": 2, "error": 1}


async def test_a_reply_whose_client_left_trains_where_that_is_asked_for(tmp_path):
    tokens, dropped = await built(tmp_path, train_abandoned=True)
    assert tokens == [10, 11, 12, 16, 17]
    assert "abandoned" not in dropped
    assert dropped["error"] == 1


def test_calls_of_the_agents_own_shell_cannot_be_trained_on():
    with pytest.raises(ValidationError, match="train_kinds"):
        RolloutSettings(train_kinds=["main", "foreign"])
    with pytest.raises(ValidationError, match="train_kinds"):
        RolloutSettings(train_kinds=[])
