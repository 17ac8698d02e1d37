"""An engine in the trainer's process: its parameters are the model's own."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from polar.engines.base import Capabilities, Chunk, SampleRequest
from polar.engines.embedded.attention import decode
from polar.engines.embedded.choosing import choose_pass
from polar.engines.embedded.native import compile_decode
from polar.engines.embedded.slots import SlotTable
from polar.engines.embedded.step import KeyValueCache
from polar.engines.embedded.weights import load_folder
from polar.engines.embedded.worker import Generation, Worker
from polar.engines.settings import EmbeddedSettings
from polar.errors import ContextOverflow, EngineError
from polar.types import Sampling

__all__ = ["EmbeddedEngine"]


class EmbeddedEngine:
    """Samples from a transformers model that lives in this process.

    Requests are batched from step to step. A finished request's keys and values stay until their
    slot is needed, so that the next turn of a conversation computes its new tokens only, and the
    sessions of a group compute their common prompt once.

    Pause it before the parameters are changed, and call `load_weights` before it is resumed.

    Args:
        model: A causal language model on the CPU. It is put into evaluation mode.
        settings: Precision and limits.

    Raises:
        EngineError: The model's layers are not of a kind that can be served here.
    """

    def __init__(self, model: PreTrainedModel, settings: EmbeddedSettings | None = None) -> None:
        self.settings = settings or EmbeddedSettings()
        self._model = model.eval()
        text = model.config.get_text_config()
        self._vocabulary = text.vocab_size
        window = text.max_position_embeddings
        self.max_context: int = min(window, self.settings.max_context or window)
        head_dim = _head_dim(text)
        kernel = compile_decode(head_dim, text.num_attention_heads // text.num_key_value_heads)
        cache = KeyValueCache(
            layers=text.num_hidden_layers,
            slots=self.settings.max_concurrency,
            kv_heads=text.num_key_value_heads,
            max_context=self.max_context,
            head_dim=head_dim,
            decode=kernel or decode,
        )
        self._kernel = "native" if kernel else "torch"
        self._pass = choose_pass(model, cache, self.settings)
        self._worker = Worker(
            self._pass.forward, cache, SlotTable(self.settings.max_concurrency), self.settings
        )

    async def sample(self, request: SampleRequest) -> AsyncIterator[Chunk]:
        """Stream a continuation of `prompt_ids`; closing the iterator cancels the generation.

        Raises:
            ContextOverflow: The prompt leaves no room for one token.
            EngineError: The prompt cannot be sampled from, or the engine failed.
        """
        arrived: asyncio.Queue[Chunk | EngineError] = asyncio.Queue()
        loop = asyncio.get_running_loop()
        generation = Generation(
            sampling=request.sampling,
            affinity=request.affinity,
            tokens=self._checked_prompt(request),
            limit=self._limit(request),
            emit=lambda item: _deliver(loop, arrived, item),
            random=random.Random(request.sampling.seed),
        )
        self._worker.submit(generation)
        try:
            while True:
                item = await arrived.get()
                if isinstance(item, EngineError):
                    raise item
                yield item
                if item.finish_reason is not None:
                    return
        finally:
            self._worker.cancel(generation)

    async def probe(self) -> Capabilities:
        """Sample one token, and tell what the engine is.

        Raises:
            EngineError: The model fails, or its logprobs are not numbers.
        """
        request = SampleRequest(prompt_ids=(0,), sampling=Sampling(max_tokens=1))
        async for chunk in self.sample(request):
            if not all(logprob <= 0.0 for logprob in chunk.logprobs):
                raise EngineError(
                    f"the model's first logprob is {chunk.logprobs[0]}",
                    fix="Check that the weights contain no NaN.",
                )
        return Capabilities(
            model=self._model.config.name_or_path,
            max_context=self.max_context,
            token_ids=True,
            logprobs=True,
            weight_updates=True,
            detail=f"embedded, {self._pass.name} pass, {self._kernel} attention, "
            f"{self.settings.dtype}, "
            f"torch {torch.__version__}, {torch.get_num_threads()} threads",
        )

    async def pause(self) -> None:
        """Stop sampling at a token boundary; on return the thread is idle."""
        await asyncio.wrap_future(self._worker.pause())

    async def resume(self) -> None:
        """Go on sampling."""
        await asyncio.wrap_future(self._worker.resume())

    async def load_weights(self, version: int, path: Path | None) -> None:
        """Serve the parameters as they now are, or read them from a folder first.

        Replies that were interrupted go on under the new weights: what they have so far is
        computed again.

        Raises:
            EngineError: The engine has ended.
            ModelMissing: The folder holds no such weights.
        """
        model = self._model

        def change() -> None:
            if path is not None:
                load_folder(model, path)

        await asyncio.wrap_future(self._worker.load(version, change))

    async def aclose(self) -> None:
        """Stop; open streams end with `EngineError`."""
        await asyncio.wrap_future(self._worker.stop())

    def _checked_prompt(self, request: SampleRequest) -> list[int]:
        prompt = [int(token_id) for token_id in request.prompt_ids]
        if not prompt:
            raise EngineError("the prompt is empty")
        if len(prompt) >= self.max_context:
            raise ContextOverflow(prompt_tokens=len(prompt), max_context=self.max_context)
        if min(prompt) < 0 or max(prompt) >= self._vocabulary:
            raise EngineError(
                f"the prompt has token ids outside the model's {self._vocabulary}",
                fix="Check that gateway and engine use the same tokenizer.",
            )
        return prompt

    def _limit(self, request: SampleRequest) -> int:
        room = self.max_context - len(request.prompt_ids)
        wanted = request.sampling.max_tokens
        if wanted is not None and wanted < 1:
            raise EngineError(f"max_tokens is {wanted}", fix="Ask for one token or more.")
        return room if wanted is None else min(room, wanted)


def _head_dim(text: PreTrainedConfig) -> int:
    declared: int | None = getattr(text, "head_dim", None)  # absent from many configurations
    derived: int = text.hidden_size // text.num_attention_heads
    return declared or derived


def _deliver(
    loop: asyncio.AbstractEventLoop,
    queue: asyncio.Queue[Chunk | EngineError],
    item: Chunk | EngineError,
) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(queue.put_nowait, item)
