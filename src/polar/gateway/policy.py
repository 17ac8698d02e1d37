"""What the gateway is told about a session, and what it tells about one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType

from polar.store.base import Scored, Unscored
from polar.types import Call, CallKind, Chat, CutOff, Sampling, TopK

__all__ = ["SessionPolicy", "SessionUsage", "UsageCounter"]

_WORK: frozenset[CallKind] = frozenset({"main", "subagent", "compaction"})
"""Kinds of calls without which a harness cannot go on with its work."""


def _always_main(chat: Chat, headers: Mapping[str, str]) -> CallKind:
    return "main"


@dataclass(frozen=True, slots=True)
class SessionPolicy:
    """How the calls of one session are sampled, limited and told apart."""

    temperature: float | None = None
    """Pinned temperature; absent: what the harness asks for."""
    top_p: float | None = None
    """Pinned nucleus; absent: what the harness asks for."""
    top_k: TopK | None = None
    """Pinned number of likeliest tokens; absent: what the harness asks for."""
    max_tokens: int | None = None
    """Most sampled tokens of a call, whatever the harness asks for."""
    unasked_max_tokens: int | None = None
    """Most sampled tokens of a call for which the harness sets no limit; absent: what the context
    window leaves."""
    max_calls: int | None = None
    """Most calls of the session; the next one is refused."""
    kind_of: Callable[[Chat, Mapping[str, str]], CallKind] = _always_main
    """Tells the kind of a call from the request and its headers (names in lower case)."""
    agent_header: str | None = None
    """Header, in lower case, in which each agent of the session has a value of its own: identical
    requests of two agents are two calls, those of one agent are a retry. Absent: nothing tells
    the agents apart, and identical requests at one time are a retry."""
    agent_tool: tuple[str, str] | None = None
    """The tool by which the model starts an agent, and its argument that is the agent's errand:
    as many identical openings as were started on an errand are calls of their own. Absent: no
    openings are expected."""
    whole_calls: bool = False
    """Whether a tool call is only given when all of it is sampled, in every format: for a harness
    that mends and runs a call that was cut."""

    def applied(self, wanted: Sampling, *, room: int) -> Sampling:
        """Put what is pinned and allowed in place of what a harness wants.

        Args:
            wanted: What it asks for.
            room: Tokens that the context window leaves.
        """
        top_k = None if self.top_k == "all" else self.top_k
        asked = self.unasked_max_tokens if wanted.max_tokens is None else wanted.max_tokens
        return replace(
            wanted,
            temperature=wanted.temperature if self.temperature is None else self.temperature,
            top_p=wanted.top_p if self.top_p is None else self.top_p,
            top_k=wanted.top_k if self.top_k is None else top_k,
            max_tokens=min(cap for cap in (room, asked, self.max_tokens) if cap is not None),
        )

    def has_cut(self, wanted: Sampling, call: Call) -> bool:
        """Tell whether a reply ended at the limit for harnesses that set none."""
        limit = self.unasked_max_tokens
        unasked = wanted.max_tokens is None and call.sampling.max_tokens == limit
        return unasked and limit is not None and call.finish_reason == "length"


@dataclass(frozen=True, slots=True)
class SessionUsage:
    """What a session used so far; true counts of calls that are on record."""

    calls: int = 0
    prompt_tokens: int = 0
    sampled_tokens: int = 0
    measured_tokens: int = 0
    """Sampled tokens whose logprob the engine had to ask for afterwards."""
    discarded_tokens: int = 0
    """Tokens that the engine sampled behind the ends of replies, and that nobody was given."""
    foreign_calls: int = 0
    """Calls that the harness did not make: the agent's own use of the address and key."""
    unfinished_calls: int = 0
    """Calls that the client abandoned or the engine broke off."""
    coalesced_requests: int = 0
    """Requests that were answered by an identical call already running."""
    refused_by_interceptors: int = 0
    """Requests that never became a call, because an interceptor refused them or broke."""
    scored_calls: int = 0
    """Calls that user code gave a score."""
    unscored_calls: int = 0
    """Calls that it gave none, because it broke or had none to give; the journal says why."""
    refused_for_length: int = 0
    """Requests that never became a call, because their prompt fills the context window."""
    longest_refused: int = 0
    """Tokens of the longest prompt of those: as many at least, where the engine makes prompts."""
    text_calls: int = 0
    """Calls of which only the text is known; they have no part in the tokens counted here."""
    refused_at_call_limit: int = 0
    """Requests that never became a call, because the session had made as many as it may."""
    cut_off: CutOff | None = None
    """The limit at which the work's last call was refused; absent: no call was, or it went on."""
    cut_unasked: int = 0
    """Calls whose reply ended at the limit that holds where the harness sets none."""
    forks: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))
    """Reason -> calls that extended no earlier call."""

    def counts(self) -> Mapping[str, int]:
        """Give what can be added up over sessions."""
        numbers = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in numbers if isinstance(value, int)}


class UsageCounter:
    """Counts the recorded calls of one session."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._forks: Counter[str] = Counter()
        self._cut_off: CutOff | None = None

    def add_begun(self, kind: CallKind) -> None:
        """See that a call of some kind has begun: after a refusal, the work goes on."""
        if kind in _WORK:
            self._cut_off = None

    def add_call(self, call: Call) -> None:
        """Count a call that is on record."""
        self._counts["calls"] += 1
        self._counts["prompt_tokens"] += len(call.prompt_ids)
        self._counts["sampled_tokens"] += len(call.sampled_ids)
        self._counts["text_calls"] += call.capture == "text"
        self._counts["measured_tokens"] += call.measured_tokens
        self._counts["discarded_tokens"] += call.discarded_tokens
        self._counts["foreign_calls"] += call.kind == "foreign"
        self._counts["unfinished_calls"] += call.finish_reason in ("abandoned", "error")
        if call.fork_reason is not None:
            self._forks[call.fork_reason] += 1

    def add_coalesced(self) -> None:
        """Count a request that joined a running call."""
        self._counts["coalesced_requests"] += 1

    def add_refused_by_interceptor(self) -> None:
        """Count a request that an interceptor stopped."""
        self._counts["refused_by_interceptors"] += 1

    def add_score(self, result: Scored | Unscored) -> None:
        """Count what became of the scoring of a call."""
        self._counts["scored_calls" if isinstance(result, Scored) else "unscored_calls"] += 1

    def add_cut_unasked(self) -> None:
        """Count a reply that ended at a limit which the harness did not set."""
        self._counts["cut_unasked"] += 1

    def add_refused_at_call_limit(self, kind: CallKind) -> None:
        """Count a request beyond the calls that the session may make."""
        self._counts["refused_at_call_limit"] += 1
        self._refuse(kind, "max_calls")

    def add_refused_for_length(self, kind: CallKind, prompt_tokens: int) -> None:
        """Count a request whose prompt fills the context window."""
        self._refuse(kind, "context")
        self._counts["refused_for_length"] += 1
        longest = max(self._counts["longest_refused"], prompt_tokens)
        self._counts["longest_refused"] = longest

    def usage(self) -> SessionUsage:
        """Take the counts as they are now."""
        forks = MappingProxyType(dict(self._forks))
        return SessionUsage(**self._counts, cut_off=self._cut_off, forks=forks)

    def _refuse(self, kind: CallKind, limit: CutOff) -> None:
        if kind in _WORK:
            self._cut_off = limit
