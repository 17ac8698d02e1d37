"""One open session: its calls in flight, its counts, its conversation."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from polar.dialects import Earlier
from polar.errors import (
    BadRequest,
    ContextOverflow,
    EngineError,
    InterceptorFailed,
    PolarError,
    Unauthorized,
)
from polar.gateway.agents import Agents, Asked
from polar.gateway.assembly import Assembled, Assembly
from polar.gateway.call import CallEnvironment, CallListeners, CallRequest, RunningCall
from polar.gateway.conversations import Conversations
from polar.gateway.forks import ForkReasons
from polar.gateway.interception import Intercepted, Interception
from polar.gateway.openings import opened, refuse_forced
from polar.gateway.policy import SessionPolicy, SessionUsage, UsageCounter
from polar.gateway.scoring import Scoring
from polar.rendering import SessionSplicer
from polar.rendering.base import Prepared, Renderer
from polar.types import Call, CallId, CallKind, Capture, Chat, IntArray, Sampling, Session

__all__ = ["OpenSession", "SessionEnvironment"]


@dataclass(frozen=True, slots=True)
class SessionEnvironment:
    """What all sessions need."""

    calls: CallEnvironment
    renderer: Renderer
    interception: Interception
    scoring: Scoring | None
    """Absent: calls are not scored."""
    models: tuple[str, ...]
    """Names of models that can be chosen; the first is the one that is trained."""
    max_context: int
    """Most tokens of prompt and reply together."""
    capture: Capture
    """How the tokens of calls are known."""
    disconnect_grace_s: float
    new_id: Callable[[], str]


class OpenSession:
    """Takes the requests of one session, in any number at a time."""

    def __init__(
        self, session: Session, policy: SessionPolicy, environment: SessionEnvironment
    ) -> None:
        self.session = session
        self._policy = policy
        self._environment = environment
        self._splicer = SessionSplicer(environment.renderer)
        self._conversations = Conversations()
        self._fork_reasons = ForkReasons()
        self._begun = 0
        self._agents = Agents(policy)
        self._joinable: dict[Asked, RunningCall] = {}
        self._running: set[RunningCall] = set()
        self._scoring: set[asyncio.Task[None]] = set()
        self._counter = UsageCounter()
        self._earlier: dict[str, Earlier[Any]] = {}

    def earlier(self, dialect: str) -> Earlier[Any]:
        """Find what was read of the requests in a dialect."""
        return self._earlier.setdefault(dialect, Earlier())

    def usage(self) -> SessionUsage:
        """Count what was used so far."""
        return self._counter.usage()

    def continued(self, chat: Chat) -> Chat:
        """Put the conversation that a request continues between its instructions and the rest.

        Raises:
            BadRequest: The response to continue is not known.
        """
        if chat.continues is None:
            return chat
        earlier = self._conversations.find(chat.continues)
        if earlier is None:
            raise BadRequest(
                f"the previous response '{chat.continues}' was not found",
                where="previous_response_id",
                fix="Name a finished response of this session that was stored, "
                "or send the whole conversation.",
            )
        start = int(chat.instructed)
        messages = (*chat.messages[:start], *earlier, *chat.messages[start:])
        return replace(chat, messages=messages)

    def calls(self, chat: Chat, headers: Mapping[str, str]) -> list[RunningCall]:
        """Begin a call for each reply that is wanted, or join what still runs of an identical one.

        Raises:
            BadRequest: The session has used up its calls, an interceptor refuses the request or
                chose a model that is not served, or the model's template cannot express the
                conversation.
            ContextOverflow: The prompt leaves no room for a token.
            InterceptorFailed: An interceptor broke.
        """
        asked = self._agents.asked(chat, headers, self._joinable)
        each = [replace(asked, choice=choice) for choice in range(chat.choices)]
        new = [choice for choice in each if choice not in self._joinable]
        if not new:
            self._counter.add_coalesced()
            return [self._joinable[choice] for choice in each]
        for choice, call in zip(new, self._begin(chat, headers, new), strict=True):
            self._joinable[choice] = call
            self._running.add(call)
        return [self._joinable[choice] for choice in each]

    def prompt_tokens(self, chat: Chat) -> int:
        """Count the tokens that a request's prompt would have: about, where the engine makes it.

        Raises:
            BadRequest: The model's template cannot express the conversation.
            InterceptorFailed: An interceptor broke.
        """
        seen = self._intercepted(chat).seen
        if self._environment.capture != "tokens":
            refuse_forced(seen)
            return len(self._environment.renderer.render(seen.messages, seen.tools))
        return len(self._prepared(seen).prompt_ids)

    def suspend_timeouts(self) -> None:
        """Stop the engine's clock for all calls."""
        for call in self._running:
            call.suspend_timeout()

    def restart_timeouts(self) -> None:
        """Give the engine its full time again for all calls."""
        for call in self._running:
            call.restart_timeout()

    async def aclose(self) -> None:
        """Abandon what runs and wait until it is on record, and all scores are."""
        running = tuple(self._running)
        for call in running:
            call.abandon(Unauthorized("the session has ended"))
        for call in running:
            await call.wait_recorded()
        if self._scoring:
            await asyncio.wait(self._scoring)

    def _begin(
        self, chat: Chat, headers: Mapping[str, str], new: Sequence[Asked]
    ) -> list[RunningCall]:
        """Begin calls of one prompt."""
        kind = self._kind(chat, headers)
        self._check_limit(kind, len(new))
        intercepted = self._intercepted(chat)
        seen, model = intercepted.seen, self._chosen(intercepted)
        prompt, sampling = self._prompt(seen, kind)
        first = CallRequest(
            id=self._new_call_id(),
            session=self.session,
            index=self._begun,
            chat=seen,
            kind=kind if model is None else _untrained(kind),
            prompt=prompt,
            sampling=_seeded(sampling, new[0]),
            asked=new[0],
            sent=intercepted.sent,
            model=model,
            capture=self._environment.capture,
        )
        siblings = [
            replace(
                first,
                id=self._new_call_id(),
                index=self._begun + number,
                prompt=_sibling(prompt),
                sampling=_seeded(sampling, asked),
                asked=asked,
            )
            for number, asked in enumerate(new[1:], start=1)
        ]
        requests = zip(new, (first, *siblings), strict=True)
        return [self._start(chat, asked, kind, request) for asked, request in requests]

    def _new_call_id(self) -> CallId:
        return CallId(f"call-{self._environment.new_id()}")

    def _start(self, chat: Chat, asked: Asked, kind: CallKind, request: CallRequest) -> RunningCall:
        environment, seen = self._environment, request.chat
        parser = environment.renderer.parser(
            seen.tools,
            new_tool_call_id=lambda: f"call_{environment.new_id()}",
            calls_flow=seen.calls_flow and not self._policy.whole_calls,
        )
        self._begun += 1
        self._counter.add_begun(kind)
        return RunningCall(
            request,
            Assembly(
                parser,
                seen.sampling.stop,
                most_tool_calls=None if seen.parallel_tool_calls else 1,
            ),
            environment.calls,
            CallListeners(
                on_recorded=partial(self._recorded, chat, asked),
                on_refused=partial(self._refused, kind),
                on_deserted=self._deserted,
                on_done=self._done,
            ),
        )

    def _kind(self, chat: Chat, headers: Mapping[str, str]) -> CallKind:
        kind = self._policy.kind_of(chat, headers)
        return "compaction" if chat.compacts is not None and kind != "foreign" else kind

    def _check_limit(self, kind: CallKind, more: int) -> None:
        limit = self._policy.max_calls
        if limit is not None and self._begun + more > limit:
            self._counter.add_refused_at_call_limit(kind)
            raise BadRequest(f"call limit reached: this session may make {limit} calls")

    def _intercepted(self, chat: Chat) -> Intercepted:
        try:
            return self._environment.interception.apply(chat)
        except (BadRequest, InterceptorFailed):
            self._counter.add_refused_by_interceptor()
            raise

    def _chosen(self, intercepted: Intercepted) -> str | None:
        """Name the model that an interceptor chose, where it is not the one that is trained."""
        chosen = None if intercepted.sent is None else intercepted.sent.chosen_model
        served = self._environment.models
        if chosen is None or chosen == served[0]:
            return None
        if chosen not in served:
            raise BadRequest(
                f"the engine does not serve the model '{chosen}' that an interceptor chose",
                fix=f"Choose one of: {', '.join(served)}.",
            )
        return chosen

    def _prompt(
        self, seen: Chat, kind: CallKind
    ) -> tuple[Prepared | Callable[[IntArray], Prepared], Sampling]:
        """Make the prompt, or leave it to an engine that makes it, and ends turns by itself."""
        environment = self._environment
        if environment.capture == "tokens":
            prepared = self._fork_reasons.explain(self._prepared(seen), kind, seen.messages)
            return prepared, self._sampling(seen.sampling, len(prepared.prompt_ids), kind)
        refuse_forced(seen)
        room = environment.max_context - 1
        applied = _takeable(self._policy.applied(seen.sampling, room=room))
        return partial(self._placed, seen, kind), applied

    def _prepared(self, seen: Chat) -> Prepared:
        return opened(self._splicer.prepare(seen), seen, self._environment.renderer)

    def _placed(self, seen: Chat, kind: CallKind, prompt_ids: IntArray) -> Prepared:
        """Say where a prompt hangs that the engine made; nowhere, if it told no ids."""
        if not len(prompt_ids):
            return Prepared(prompt_ids, None, None)
        placed = self._splicer.place(seen, prompt_ids)
        return self._fork_reasons.explain(placed, kind, seen.messages)

    def _sampling(self, wanted: Sampling, prompt_tokens: int, kind: CallKind) -> Sampling:
        """Pin and clamp what the harness wants."""
        room = self._environment.max_context - prompt_tokens
        if room < 1:
            self._counter.add_refused_for_length(kind, prompt_tokens)
            raise ContextOverflow(
                prompt_tokens=prompt_tokens, max_context=self._environment.max_context
            )
        applied = _takeable(self._policy.applied(wanted, room=room))
        return replace(applied, stop_token_ids=self._environment.renderer.stop_token_ids)

    def _recorded(self, chat: Chat, asked: Asked, call: Call, assembled: Assembled) -> None:
        """Let later calls extend this one; a copy that was cut is not what was sampled."""
        self._counter.add_call(call)
        if self._policy.has_cut(chat.sampling, call):
            self._counter.add_cut_unasked()
        if len(call.prompt_ids):
            whole = assembled.sampled is call.reply
            self._splicer.record(call if whole else replace(call, reply=assembled.sampled))
        self._fork_reasons.add(call)
        finished = call.finish_reason not in ("abandoned", "error")
        if finished:
            self._agents.sampled(asked, assembled.given)
        if finished and chat.stored:
            said = chat.messages[int(chat.instructed) :]
            self._conversations.add(call.id, (*said, assembled.given))
        self._score(call)

    def _refused(self, kind: CallKind, error: PolarError) -> None:
        """Count what an engine that makes the prompts would not begin."""
        if isinstance(error, ContextOverflow):
            self._counter.add_refused_for_length(kind, error.prompt_tokens)

    def _score(self, call: Call) -> None:
        """Have a call scored in a task of its own, which keeps no client waiting."""
        scoring = self._environment.scoring
        if scoring is not None and scoring.wants(call):
            task = asyncio.create_task(scoring.score(call, on_scored=self._counter.add_score))
            self._scoring.add(task)
            task.add_done_callback(self._scoring.discard)

    def _deserted(self, call: RunningCall) -> None:
        grace_s = self._environment.disconnect_grace_s
        if grace_s == 0:
            self._abandon_if_deserted(call)
        else:
            asyncio.get_running_loop().call_later(grace_s, self._abandon_if_deserted, call)

    def _abandon_if_deserted(self, call: RunningCall) -> None:
        if call.feed.deserted and call.abandon(EngineError("the client has left")):
            self._stop_joining(call)

    def _done(self, call: RunningCall) -> None:
        self._running.discard(call)
        self._stop_joining(call)

    def _stop_joining(self, call: RunningCall) -> None:
        for asked in [asked for asked, each in self._joinable.items() if each is call]:
            del self._joinable[asked]


def _takeable(sampling: Sampling) -> Sampling:
    """Ask for the likeliest token alone by its number: engines refuse a nucleus of nothing."""
    return replace(sampling, top_p=1.0, top_k=1) if sampling.top_p == 0 else sampling


def _sibling(
    prompt: Prepared | Callable[[IntArray], Prepared],
) -> Prepared | Callable[[IntArray], Prepared]:
    """Give the prompt of another reply to the same request."""
    return replace(prompt, fork_reason="sibling") if isinstance(prompt, Prepared) else prompt


def _seeded(sampling: Sampling, asked: Asked) -> Sampling:
    """Give each reply to a request a seed of its own, or all would be the same."""
    seed = sampling.seed
    return sampling if seed is None else replace(sampling, seed=seed + asked.choice)


def _untrained(kind: CallKind) -> CallKind:
    """Keep what another model sampled out of the training of this one."""
    return "auxiliary" if kind in ("main", "subagent") else kind
