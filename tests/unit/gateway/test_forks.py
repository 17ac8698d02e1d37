"""Forks for a summary, and first calls of sub-agents, have that as their reason, and no others."""

import numpy as np
import pytest

from polar.gateway.forks import ForkReasons
from polar.rendering import Prepared
from polar.types import Call, CallId, Message, Sampling, SessionId

SUMMARY = "<analysis>\nLong thoughts.\n</analysis>\n<summary>\nWe wrote hello.txt.\n</summary>"
TASK = Message("user", "Create hello.txt.")
USED = (Message("system", "s"), Message("user", "So far:\nWe wrote hello.txt.\nGo on."))


def recorded(kind, text) -> Call:
    none = np.empty(0, np.int32)
    return Call(
        id=CallId("c"),
        session_id=SessionId("s"),
        attempt=0,
        index=0,
        parent_id=None,
        prompt_ids=none,
        sampled_ids=none,
        logprobs=np.empty(0, np.float32),
        weight_versions=none,
        messages=(),
        tools=(),
        sampling=Sampling(),
        reply=Message("assistant", text),
        finish_reason="stop",
        kind=kind,
    )


def after(*texts) -> ForkReasons:
    summaries = ForkReasons()
    for text in texts:
        summaries.add(recorded("compaction", text))
    return summaries


def reason(summaries, messages, *, found="new_conversation", kind="main") -> str | None:
    return summaries.explain(Prepared((1,), None, found), kind, messages).fork_reason


@pytest.mark.parametrize("found", ["new_conversation", "edited_message", "changed_tools"])
def test_a_conversation_that_goes_on_from_a_summary_forks_for_it(found):
    assert reason(after(SUMMARY), USED, found=found) == "compaction"


@pytest.mark.parametrize("found", ["new_conversation", "edited_message", "changed_tools"])
def test_a_request_for_a_summary_forks_for_it(found):
    assert reason(after(), (TASK,), found=found, kind="compaction") == "compaction"


@pytest.mark.parametrize("found", [None, "retry", "no_bridge", "unclosed_turn"])
def test_what_is_no_rewrite_keeps_its_reason(found):
    assert reason(after(SUMMARY), USED, found=found) == found
    assert reason(after(SUMMARY), USED, found=found, kind="compaction") == found


def test_a_conversation_without_the_summary_keeps_its_reason():
    assert reason(after(SUMMARY), (TASK,)) == "new_conversation"


def test_a_summary_explains_one_fork():
    summaries = after(SUMMARY)

    reasons = [reason(summaries, USED, found="edited_message") for _ in range(2)]

    assert reasons == ["compaction", "edited_message"]


def test_each_of_several_summaries_explains_its_own_fork():
    summaries = after("We wrote hello.txt.", "The errand is done.")
    later = (Message("user", "The errand is done."),)

    assert reason(summaries, later) == "compaction"
    assert reason(summaries, USED) == "compaction"


def test_only_compactions_bring_summaries():
    summaries = ForkReasons()
    summaries.add(recorded("auxiliary", SUMMARY))

    assert reason(summaries, USED) == "new_conversation"


@pytest.mark.parametrize("text", ["", "  \n", "<summary>\n</summary>"])
def test_an_empty_summary_explains_nothing(text):
    assert reason(after(text), USED) == "new_conversation"


@pytest.mark.parametrize("kind", ["subagent", "auxiliary"])
def test_what_begins_beside_the_work_is_a_new_conversation_however_alike(kind):
    assert reason(after(), (TASK,), found="edited_message", kind=kind) == "new_conversation"


@pytest.mark.parametrize("kind", ["subagent", "auxiliary"])
def test_what_goes_on_beside_the_work_and_changes_keeps_its_reason(kind):
    messages = (TASK, Message("assistant", "I looked."))

    assert reason(after(), messages, found="edited_message", kind=kind) == "edited_message"


def test_a_main_call_that_has_no_reply_any_more_keeps_its_reason():
    assert reason(after(), (TASK,), found="edited_message") == "edited_message"
