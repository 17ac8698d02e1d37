"""The words of the project as frozen values: tasks, chats, calls, traces, outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NewType

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BuildReport",
    "Call",
    "CallId",
    "CallKind",
    "Cancelled",
    "Capture",
    "Chat",
    "Completed",
    "CutOff",
    "Delta",
    "Ended",
    "EvaluatorSpec",
    "Failed",
    "FinishReason",
    "FloatArray",
    "Forced",
    "Grade",
    "Group",
    "IntArray",
    "Limits",
    "MaskArray",
    "Message",
    "Outcome",
    "ReasoningDelta",
    "Reply",
    "Role",
    "Sampling",
    "Sent",
    "Session",
    "SessionId",
    "Stage",
    "Task",
    "TaskId",
    "TextDelta",
    "TimedOut",
    "TokenIds",
    "ToolArgumentsDelta",
    "ToolCall",
    "ToolCallStart",
    "ToolSpec",
    "TopK",
    "Trace",
    "Trajectory",
    "Usage",
]

SessionId = NewType("SessionId", str)
TaskId = NewType("TaskId", str)
CallId = NewType("CallId", str)

TopK = int | Literal["all"]
"""How many of the likeliest tokens are sampled from; `all`: every one."""

IntArray = NDArray[np.int32]
FloatArray = NDArray[np.float32]
MaskArray = NDArray[np.bool_]
TokenIds = Sequence[int] | IntArray
"""Ids in a row; the gateway's own are int32 arrays, which nothing on their way copies to lists."""

Role = Literal["system", "user", "assistant", "tool"]
CallKind = Literal["main", "subagent", "auxiliary", "compaction", "foreign"]
FinishReason = Literal["stop", "length", "tool_calls", "abandoned", "error"]
Stage = Literal["preparing", "running", "grading", "building"]
CutOff = Literal["max_calls", "context"]
"""A limit at which the gateway refuses calls: their number, or what the context window holds."""
Capture = Literal["tokens", "recorded", "text"]
"""How a call's tokens are known. `tokens`: Polar made the prompt, and the engine took and gave ids.
`recorded`: the engine made the prompt, and told its ids and those that it sampled. `text`: it told
no ids, so the call has none, and nothing of it can be trained on or checked."""


def _empty() -> Mapping[str, Any]:
    return MappingProxyType({})


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A function that the harness offers to the model."""

    name: str
    description: str
    parameters: Mapping[str, Any]
    """JSON schema of the arguments."""
    freeform: bool = False
    """Whether the harness wants the text of the only argument, `input`, and not JSON."""
    namespace: str | None = None
    """Where the harness keeps the tool; its replies must name it beside the tool's own name."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as the model wrote it."""

    id: str
    name: str
    arguments: str
    """JSON text, byte for byte as sampled."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation, independent of the wire format."""

    role: Role
    content: str
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Which tool call this message answers (role `tool` only)."""
    name: str | None = None


@dataclass(frozen=True, slots=True)
class Sampling:
    """Sampling parameters as they are applied by the engine."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int | None = None
    max_tokens: int | None = None
    """Most tokens to sample; absent means: what the context window leaves."""
    stop: tuple[str, ...] = ()
    """Stop strings; the gateway applies them, engines need not."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the reply; the ending token itself is sampled and recorded."""
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class Forced:
    """A reply that must be the call of a tool."""

    name: str | None
    """Which tool; absent: any of those that are offered."""
    where: str
    """The field of the request that asks for it."""


@dataclass(frozen=True, slots=True)
class Chat:
    """One model request of a harness, independent of the wire format."""

    model: str
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    sampling: Sampling = field(default_factory=Sampling)
    stream: bool = False
    include_usage: bool = False
    """Whether a stream ends with a usage chunk."""
    parallel_tool_calls: bool = True
    """Whether one reply may call several tools; if not, it is cut before the second call."""
    choices: int = 1
    """How many replies are wanted, sampled apart from one prompt."""
    forced: Forced | None = None
    """What the reply must call; absent: whether it calls anything is the model's to say."""
    continues: str | None = None
    """Id of the earlier response whose conversation goes before these messages."""
    stored: bool = False
    """Whether a later request may continue from the response to this one."""
    instructed: bool = False
    """Whether the first message holds for this request alone, and is never continued."""
    told: Mapping[str, Any] = field(default_factory=_empty, compare=False)
    """Fields of the request that its response repeats as they are; they change nothing else."""
    compacts: Literal["reply", "conversation"] | None = None
    """What the reply, which is a summary of the conversation, is given as: by itself, or as the
    end of a conversation that is to replace this one. Absent: it is no summary."""
    calls_flow: bool = False
    """Whether a tool call may be given before all of it is sampled: its format's clients run a
    call when the reply is whole, and can be told that one was cut."""


@dataclass(frozen=True, slots=True)
class Usage:
    """True token counts of one call."""

    prompt_tokens: int
    sampled_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    """Of the sampled ones, those up to the end of the reasoning; 0 where that cannot be told."""

    @classmethod
    def of_choices(cls, each: Sequence[Usage]) -> Usage:
        """Add up what several replies to one prompt used: the prompt counts once."""
        return cls(
            prompt_tokens=each[0].prompt_tokens,
            sampled_tokens=sum(usage.sampled_tokens for usage in each),
            cached_tokens=each[0].cached_tokens,
            reasoning_tokens=sum(usage.reasoning_tokens for usage in each),
        )


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model answered, parsed from the sampled tokens."""

    message: Message
    finish_reason: FinishReason
    usage: Usage
    stop_string: str | None = None
    """The stop string before which the reply was cut, if one was found."""


@dataclass(frozen=True, slots=True)
class TextDelta:
    """Some more text of the reply's content."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Some more text of the reply's reasoning."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallStart:
    """A tool call begins; its arguments follow."""

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class ToolArgumentsDelta:
    """Some more JSON text of a tool call's arguments."""

    index: int
    text: str


Delta = TextDelta | ReasoningDelta | ToolCallStart | ToolArgumentsDelta


@dataclass(frozen=True, slots=True)
class Sent:
    """What the harness sent, where interceptors made the model see something else."""

    model: str
    """The model that the harness asked for."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    interceptors: tuple[str, ...]
    """Those that changed the request, in the order they were applied."""
    chosen_model: str | None = None
    """The model that an interceptor chose instead; absent: none did."""


@dataclass(frozen=True, slots=True)
class Call:
    """One model request with its reply, exactly as the engine saw and sampled it.

    `prompt_ids + sampled_ids` is what the engine's context held when it stopped.
    """

    id: CallId
    session_id: SessionId
    attempt: int
    index: int
    """Order of arrival within the attempt, from 0."""
    parent_id: CallId | None
    """The call whose prompt and sampled tokens this prompt extends exactly, if any."""
    prompt_ids: IntArray
    """int32 [prompt]"""
    sampled_ids: IntArray
    """int32 [sampled]; includes the end-of-turn token when it was sampled."""
    logprobs: FloatArray
    """float32 [sampled]; of the distribution actually sampled from (temperature, top_p applied)."""
    weight_versions: IntArray
    """int32 [sampled]; which weights sampled each token."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    sampling: Sampling
    reply: Message
    finish_reason: FinishReason
    kind: CallKind = "main"
    fork_reason: str | None = None
    """Why this call does not extend the conversation as it was; absent for roots and chains."""
    measured_tokens: int = 0
    """Sampled tokens whose logprob the engine was not told with them but asked for afterwards."""
    discarded_tokens: int = 0
    """Tokens that the engine sampled behind the last one of `sampled_ids`: nobody was given them,
    and no count of sampled tokens has them."""
    opening_tokens: int = 0
    """How many of the prompt's last tokens begin the reply: the harness had it begin with a call.
    They are context like the rest of the prompt."""
    started_at: float = 0.0
    """Unix seconds."""
    ended_at: float = 0.0
    """Unix seconds."""
    sent: Sent | None = None
    """What the harness sent; absent where it is what `messages` and `tools` say the model saw."""
    capture: Capture = "tokens"
    """How the tokens are known; a call of which only the `text` is has no tokens here."""


@dataclass(frozen=True, slots=True)
class EvaluatorSpec:
    """How a finished session becomes a reward."""

    name: str
    """A name of the evaluators family: `files`, `command`."""
    config: Mapping[str, Any] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class Limits:
    """Budgets of one session, in seconds, and its resource limits."""

    prepare_s: float = 60.0
    run_s: float = 300.0
    grade_s: float = 60.0
    max_calls: int = 200
    """Most model calls of a session; the next one is refused."""
    cpu_s: int = 300
    memory_mb: int = 4096
    processes: int = 256


@dataclass(frozen=True, slots=True)
class Task:
    """One problem: what to do, where, and how it is graded."""

    id: TaskId
    instruction: str
    evaluator: EvaluatorSpec
    files: Mapping[str, str] = field(default_factory=_empty)
    """Path relative to the work folder -> text content, laid out before the harness starts."""
    kind: str = "default"
    """Family of tasks this one belongs to, for splits and per-kind figures."""
    expert: tuple[str, ...] = ()
    """Shell commands that solve the task, one a turn; for a supervised warm start only."""
    limits: Limits = field(default_factory=Limits)


@dataclass(frozen=True, slots=True)
class Session:
    """One attempt at a task by a harness."""

    id: SessionId
    task_id: TaskId
    group_id: str
    attempt: int
    key: str = field(repr=False)
    """Unguessable; the only way in at the gateway. Never logged, and so not in the repr."""


@dataclass(frozen=True, slots=True)
class Grade:
    """What an evaluator found."""

    reward: float
    passed: bool
    details: Mapping[str, Any] = field(default_factory=_empty)


@dataclass(frozen=True, slots=True)
class Completed:
    """The harness ended and its work was graded."""

    grade: Grade
    exit_code: int
    cut_off: CutOff | None = None
    """The limit at which the gateway refused its last call; absent: it ended by itself."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The session broke: not the model's doing (sandbox, engine, grader)."""

    stage: Stage
    error: str


@dataclass(frozen=True, slots=True)
class TimedOut:
    """A stage used up its budget; the work is graded all the same when the harness was running."""

    stage: Stage
    grade: Grade | None = None


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The session was stopped on request."""

    reason: str


@dataclass(frozen=True, slots=True)
class Ended:
    """The harness ended, and nobody graded its work."""

    exit_code: int


Outcome = Completed | Failed | TimedOut | Cancelled | Ended


@dataclass(frozen=True, slots=True)
class Trace:
    """One root-to-leaf path of the token tree, flattened.

    All arrays have one entry per token; `logprobs` is 0 and `weight_versions` -1 where
    `loss_mask` is false.
    """

    token_ids: IntArray
    """int32 [seq]"""
    loss_mask: MaskArray
    """bool [seq]; true for tokens that were sampled and are trained in this trace."""
    logprobs: FloatArray
    """float32 [seq]"""
    weight_versions: IntArray
    """int32 [seq]"""
    call_ids: tuple[CallId, ...]
    """The calls whose sampled tokens this trace trains, in order."""
    divergences: int = 0
    """Calls whose context in this trace is not the prompt that the engine saw; only the
    `canonical` builder makes such traces."""
    call_tokens: tuple[int, ...] = ()
    """How many tokens each of these calls has in `loss_mask`, in order; empty: not known."""
    call_indices: tuple[int, ...] = ()
    """Where each of these calls stands in the order of arrival within the session; empty: not
    known."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """What became of every sampled token: `kept + sum(dropped.values()) == sampled`."""

    sampled: int
    kept: int
    dropped: Mapping[str, int]
    """Reason -> tokens."""
    forks: Mapping[str, int]
    """Reason -> forks."""
    per_request_tokens: int
    """Tokens that one training sequence a call would have cost."""
    trace_tokens: int
    """Tokens of all traces together."""
    tree_tokens: int
    """Unique tokens: nodes of the token tree."""
    divergences: int = 0
    """Trained calls whose context is not the prompt that the engine saw (`canonical` only)."""
    cut_replies: int = 0
    """Trained calls whose reply ended because it reached its token limit."""
    capture: Capture = "tokens"
    """How the session's tokens are known; where its calls differ, what is least sure."""
    text_calls: int = 0
    """Calls of which only the text is known; their tokens are in none of these numbers."""
    measured_tokens: int = 0
    """Of `sampled`, those whose logprob was asked for afterwards."""
    discarded_tokens: int = 0
    """Tokens that the engine sampled behind the ends of replies; `sampled` does not count them."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The traces of one session with its reward and provenance."""

    session_id: SessionId
    task_id: TaskId
    group_id: str
    traces: tuple[Trace, ...]
    reward: float
    outcome: Outcome
    report: BuildReport
    step_rewards: Mapping[CallId, float] = field(default_factory=lambda: MappingProxyType({}))
    """What user code found single calls worth, of those that are trained; a call without a score
    is not in it."""


@dataclass(frozen=True, slots=True)
class Group:
    """The trajectories of one task's sessions, over which advantages are computed."""

    id: str
    task: Task
    trajectories: tuple[Trajectory, ...]
