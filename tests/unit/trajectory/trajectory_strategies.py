"""Random sessions: chains, forks anywhere, retries, siblings, unfinished and auxiliary calls."""

import numpy as np
from hypothesis import strategies as st

from polar.types import Call, CallId, Message, Sampling, SessionId

KINDS = ("main", "main", "main", "subagent", "auxiliary", "foreign", "compaction")


def ids(values):
    return np.array(values, dtype=np.int32)


def make_call(index, prompt, sampled, *, parent=None, **fields):
    """A call whose logprobs and weight versions tell every token of the session apart."""
    count = len(sampled)
    defaults = {
        "id": CallId(f"c{index}"),
        "session_id": SessionId("s1"),
        "attempt": 0,
        "index": index,
        "parent_id": None if parent is None else CallId(f"c{parent}"),
        "prompt_ids": ids(prompt),
        "sampled_ids": ids(sampled),
        "logprobs": np.array([-(index + 1) - i / 64 for i in range(count)], dtype=np.float32),
        "weight_versions": np.full(count, index, dtype=np.int32),
        "messages": (),
        "tools": (),
        "sampling": Sampling(),
        "reply": Message("assistant", ""),
        "finish_reason": "stop",
    }
    return Call(**(defaults | fields))


tokens = st.lists(st.integers(0, 2), max_size=4)


@st.composite
def sessions(draw, max_calls=7, abandoned=True, kinds=KINDS):
    """Few different tokens, so that equal runs, and with them every kind of fork, are common."""
    calls = []
    for index in range(draw(st.integers(1, max_calls))):
        earlier = draw(st.sampled_from(calls)) if calls and draw(st.booleans()) else None
        parent = None
        if earlier is None:
            prompt = [9, *draw(tokens)]
        else:
            seen = [*earlier.prompt_ids.tolist(), *earlier.sampled_ids.tolist()]
            match draw(st.sampled_from(["extend", "extend", "retry", "fork"])):
                case "extend":
                    prompt, parent = [*seen, *draw(tokens)], earlier.index
                case "retry":
                    prompt = earlier.prompt_ids.tolist()
                case _:
                    prompt = [*seen[: draw(st.integers(1, len(seen)))], *draw(tokens)]
        hint = draw(st.sampled_from(["true", "absent", "wrong"]))
        if hint == "absent":
            parent = None
        elif hint == "wrong" and calls:
            parent = draw(st.sampled_from(calls)).index
        endings = ["stop", "length", "abandoned", "error"] if abandoned else ["stop"]
        finish = draw(st.sampled_from(endings))
        calls.append(
            make_call(
                index,
                prompt,
                draw(tokens),
                parent=parent,
                finish_reason=finish,
                kind=draw(st.sampled_from(kinds)),
                discarded_tokens=draw(st.integers(0, 2)),
            )
        )
    return calls
