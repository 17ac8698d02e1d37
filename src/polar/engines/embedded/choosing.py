"""Choose how a model's logits are computed: the lean way if it gives the same ones."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from polar.engines.embedded.fused import FusedPass
from polar.engines.embedded.generic import ModelPass
from polar.engines.embedded.step import KeyValueCache, Run, Step
from polar.engines.embedded.worker import Pass
from polar.engines.settings import EmbeddedSettings
from polar.errors import EngineError

__all__ = ["ChosenPass", "choose_pass"]

_TRIAL_ENDS = (16, 23, 24)
"""A prompt, its continuation and one more token: every way a run attends."""
_TOLERANCES = {torch.float32: 1e-3}
_ROUGH_TOLERANCE = 0.2
"""Largest difference of a logprob, for models in float32 and in lower precision."""


@dataclass(frozen=True, slots=True)
class ChosenPass:
    """A forward pass with its name for people."""

    forward: Pass
    name: str


def choose_pass(
    model: PreTrainedModel, cache: KeyValueCache, settings: EmbeddedSettings
) -> ChosenPass:
    """Try the lean pass against the model's own logits, and take it if they agree.

    Raises:
        EngineError: Not even the model's own layers give its logits over the engine's cache.
    """
    dtype = torch.float32 if settings.dtype == "float32" else torch.bfloat16
    with torch.inference_mode():
        expected = _own_logprobs(model)
        fused = _try_fused(model, cache.max_context)
        if fused is not None and _agree(fused, cache, expected, model.dtype):
            return ChosenPass(fused if dtype == torch.float32 else FusedPass(model, dtype), "fused")
        own = ModelPass(model)
        if _agree(own, cache, expected, model.dtype):
            return ChosenPass(own, "model")
    raise EngineError(
        "the model gives other logits over the engine's cache than by itself",
        where=type(model).__name__,
        fix="Serve this model with vLLM.",
    )


def _try_fused(model: PreTrainedModel, max_context: int) -> FusedPass | None:
    try:
        forward = FusedPass(model, torch.float32)
    except AttributeError:  # the model lacks a part that Llama has
        return None
    return None if forward.window and forward.window < max_context else forward


def _own_logprobs(model: PreTrainedModel) -> Tensor:
    """Give the model's logprobs behind each end: [ends, vocabulary]."""
    tokens = torch.tensor([_trial_tokens(model.config.get_text_config().vocab_size)])
    logits: Tensor = model(tokens, use_cache=False).logits[0].float()
    return logits[[end - 1 for end in _TRIAL_ENDS]].log_softmax(dim=-1)


def _agree(forward: Pass, cache: KeyValueCache, expected: Tensor, dtype: torch.dtype) -> bool:
    """Compare a pass with the model's logprobs, over the first slot of the cache."""
    tokens = _trial_tokens(expected.shape[-1])
    starts = (0, *_TRIAL_ENDS)
    found = [
        forward(Step([Run(0, start, tokens[start:end])], cache))
        for start, end in zip(starts, _TRIAL_ENDS, strict=False)
    ]
    tolerance = _TOLERANCES.get(dtype, _ROUGH_TOLERANCE)
    return torch.allclose(torch.cat(found).log_softmax(dim=-1), expected, atol=tolerance, rtol=0.0)


def _trial_tokens(vocabulary: int) -> list[int]:
    return [(index * 7919) % vocabulary for index in range(_TRIAL_ENDS[-1])]
