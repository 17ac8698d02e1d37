"""The thread that samples: takes commands between steps, batches what runs, hands tokens over."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Literal, Protocol

import torch
from torch import Tensor

from polar.engines.base import Chunk
from polar.engines.embedded.sampling import Sampled, sample_rows
from polar.engines.embedded.slots import Slot, SlotTable, common_prefix
from polar.engines.embedded.step import KeyValueCache, Run, Step
from polar.engines.settings import EmbeddedSettings
from polar.errors import EngineError
from polar.types import Sampling

__all__ = ["Generation", "Pass", "Worker"]

_WORTH_WAITING = 64
"""Tokens of a prompt that are rather copied after another step than computed now."""


class Pass(Protocol):
    """A forward pass."""

    def __call__(self, step: Step) -> Tensor:
        """Compute the logits of each run's last token: float32 [runs, vocabulary]."""
        ...

    def refresh(self) -> None:
        """Take the parameters as they now are."""
        ...


@dataclass(slots=True, eq=False)
class Generation:
    """A request on its way: it waits, then its tokens are computed and new ones sampled."""

    sampling: Sampling
    affinity: str
    tokens: list[int]
    """Prompt and sampled tokens."""
    limit: int
    """Most tokens to sample."""
    emit: Callable[[Chunk | EngineError], None]
    """Hands something to the consumer; called in the worker's thread."""
    random: random.Random
    slot: Slot | None = None
    cached_tokens: int = 0
    sampled: int = 0
    pending: list[Sampled] = field(default_factory=list)
    """Sampled, not yet handed over."""

    @property
    def uncomputed(self) -> int:
        """Number of tokens whose keys and values are not in the cache."""
        return len(self.tokens) - (len(self.slot.tokens) if self.slot else 0)


class Worker:
    """Runs generations in a thread of its own.

    Args:
        forward: The model.
        cache: Its keys and values.
        slots: Who owns which part of the cache.
        settings: How much is done at once.
    """

    def __init__(
        self, forward: Pass, cache: KeyValueCache, slots: SlotTable, settings: EmbeddedSettings
    ) -> None:
        self._forward = forward
        self._cache = cache
        self._slots = slots
        self._settings = settings
        self._commands: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._paused = False
        self._version = 0
        self._ended: str | None = None
        self._thread = threading.Thread(target=self._run, name="polar-engine", daemon=True)
        self._thread.start()

    def submit(self, generation: Generation) -> None:
        """Queue a generation.

        Raises:
            EngineError: The thread has ended.
        """
        if self._ended is not None:
            raise EngineError(self._ended)
        self._commands.put(lambda: self._accept(generation))

    def cancel(self, generation: Generation) -> None:
        """End a generation before the next step, if it has not ended."""
        self._commands.put(lambda: self._remove(generation))

    def pause(self) -> Future[None]:
        """Stop before the next step; done when the thread is idle."""
        return self._call(lambda: self._set_paused(True))

    def resume(self) -> Future[None]:
        """Go on."""
        return self._call(lambda: self._set_paused(False))

    def load(self, version: int, change: Callable[[], None]) -> Future[None]:
        """Run `change`, take the parameters anew and forget what the old ones computed."""
        return self._call(lambda: self._load(version, change))

    def stop(self) -> Future[None]:
        """End every generation, and refuse new ones."""
        return self._call(lambda: self._end("the engine was closed"))

    def _call(self, action: Callable[[], None]) -> Future[None]:
        future: Future[None] = Future()

        def command() -> None:
            try:
                action()
            except Exception as error:
                future.set_exception(error)
            else:
                future.set_result(None)

        self._commands.put(command)
        return future

    def _run(self) -> None:
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        with torch.inference_mode():
            while True:
                self._obey()
                try:
                    self._step()
                except Exception as error:
                    self._end(f"the engine failed: {type(error).__name__}: {error}")

    def _obey(self) -> None:
        """Carry out all commands; wait for one while there is nothing to sample."""
        while True:
            idle = self._paused or not (self._waiting or self._running)
            try:
                command = self._commands.get(block=idle)
            except Empty:
                return
            command()

    def _accept(self, generation: Generation) -> None:
        if self._ended is None:
            self._waiting.append(generation)
        else:
            generation.emit(EngineError(self._ended))

    def _set_paused(self, paused: bool) -> None:
        self._paused = paused
        for generation in self._running:
            self._hand_over(generation)

    def _load(self, version: int, change: Callable[[], None]) -> None:
        """Change weights; what is running is computed again from its tokens."""
        if self._ended is not None:
            raise EngineError(self._ended)
        for generation in self._running:
            self._hand_over(generation)
        change()
        self._forward.refresh()
        self._version = version
        self._slots.forget()

    def _end(self, reason: str) -> None:
        self._ended = self._ended or reason
        for generation in (*self._running, *self._waiting):
            generation.emit(EngineError(reason))
        self._waiting.clear()
        self._running.clear()

    def _remove(self, generation: Generation) -> None:
        if generation in self._waiting:
            self._waiting.remove(generation)
        if generation in self._running:
            self._running.remove(generation)
            self._slots.release(_slot_of(generation))

    def _step(self) -> None:
        """Compute the next tokens of what runs, and sample where a sequence is complete."""
        self._admit()
        step = Step(self._plan(), self._cache)
        logits = self._forward(step)
        owners = {_slot_of(generation).index: generation for generation in self._running}
        rows, complete = [], []
        for row, run in enumerate(step.runs):
            generation = owners[run.slot]
            _slot_of(generation).tokens.extend(run.token_ids)
            if generation.uncomputed == 0:
                rows.append(row)
                complete.append(generation)
        if complete:
            self._sample(logits[rows], complete)

    def _admit(self) -> None:
        """Give slots to waiting generations, first come, first served."""
        while (
            self._waiting and self._slots.free and self._backlog() < self._settings.prefill_tokens
        ):
            generation = self._waiting[0]
            if self._gains_by_waiting(generation):
                return
            self._waiting.popleft()
            placement = self._slots.place(generation.tokens, generation.affinity)
            if placement.source is not placement.slot and placement.length:
                self._cache.copy(placement.source.index, placement.slot.index, placement.length)
            generation.slot = placement.slot
            generation.cached_tokens = placement.length
            self._running.append(generation)

    def _backlog(self) -> int:
        return sum(found.uncomputed for found in self._running if found.uncomputed > 1)

    def _gains_by_waiting(self, generation: Generation) -> bool:
        """Tell whether a longer prefix of the prompt is just being computed for another one."""
        ready = self._slots.longest_prefix(generation.tokens)
        return any(
            common_prefix(other.tokens, generation.tokens) - ready >= _WORTH_WAITING
            for other in self._running
            if other.uncomputed > 1
        )

    def _plan(self) -> list[Run]:
        """Choose what to compute: every reply's next token, and prompts in order of arrival."""
        runs = []
        budget = self._settings.prefill_tokens
        for generation in self._running:
            count = generation.uncomputed
            if count > 1:
                count = min(count, budget)
                budget -= count
            if count:
                slot = _slot_of(generation)
                start = len(slot.tokens)
                runs.append(Run(slot.index, start, generation.tokens[start : start + count]))
        return runs

    def _sample(self, logits: Tensor, generations: list[Generation]) -> None:
        """Sample one token for each row of logits [generations, vocabulary]."""
        found = sample_rows(
            logits,
            [generation.sampling for generation in generations],
            [generation.random.random() for generation in generations],
        )
        for generation, sampled in zip(generations, found, strict=True):
            generation.tokens.append(sampled.token_id)
            generation.pending.append(sampled)
            generation.sampled += 1
            if sampled.token_id in generation.sampling.stop_token_ids:
                self._finish(generation, "stop")
            elif generation.sampled == generation.limit:
                self._finish(generation, "length")
            elif (
                generation.sampled % self._settings.chunk_tokens == 1 % self._settings.chunk_tokens
            ):
                self._hand_over(generation)

    def _finish(self, generation: Generation, reason: Literal["stop", "length"]) -> None:
        self._running.remove(generation)
        self._slots.release(_slot_of(generation))
        self._hand_over(generation, reason)

    def _hand_over(
        self, generation: Generation, reason: Literal["stop", "length"] | None = None
    ) -> None:
        if not generation.pending:
            return
        first = generation.sampled == len(generation.pending)
        generation.emit(
            Chunk(
                token_ids=tuple(sampled.token_id for sampled in generation.pending),
                logprobs=tuple(sampled.logprob for sampled in generation.pending),
                weight_version=self._version,
                finish_reason=reason,
                cached_tokens=generation.cached_tokens if first else 0,
            )
        )
        generation.pending.clear()


def _slot_of(generation: Generation) -> Slot:
    assert generation.slot is not None, "a running generation has a slot"
    return generation.slot
