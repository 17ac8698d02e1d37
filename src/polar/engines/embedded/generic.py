"""The model's own forward pass over a step, for models that are not built like Llama."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from polar.engines.embedded.step import Step
from polar.errors import EngineError

__all__ = ["ATTENTION_NAME", "ModelPass"]

ATTENTION_NAME = "polar_engine"


class ModelPass:
    """Computes logits of a step by calling the model, whose attention is replaced by the step's.

    Args:
        model: A causal language model; its attention implementation becomes `polar_engine`.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        AttentionInterface.register(ATTENTION_NAME, _attend)
        model.set_attn_implementation(ATTENTION_NAME)
        self._model = model
        self._layers = model.config.get_text_config().num_hidden_layers

    def refresh(self) -> None:
        """Do nothing: the parameters are the model's own."""

    def __call__(self, step: Step) -> Tensor:
        """Compute the logits of each run's last token: float32 [runs, vocabulary].

        Raises:
            EngineError: A layer of the model mixes tokens by other means than attention.
        """
        layers_seen: list[int] = []
        output = self._model(
            input_ids=step.token_ids[None],
            position_ids=step.positions[None],
            use_cache=False,
            logits_to_keep=step.last_rows,
            step=step,
            layers_seen=layers_seen,
        )
        if len(layers_seen) != self._layers:
            raise EngineError(
                f"{self._layers - len(layers_seen)} of {self._layers} layers of the model do not "
                "use standard attention",
                fix="Serve this model with vLLM.",
            )
        logits: Tensor = output.logits[0].float()
        return logits


def _attend(  # noqa: PLR0913, PLR0917 - the signature is transformers'
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    *,
    step: Step,
    layers_seen: list[int],
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend over the step's cache; query [1, heads, rows, head_dim], key and value alike."""
    odd = [name for name in ("softcap", "s_aux") if kwargs.get(name) is not None]
    if (sliding_window or step.max_context) < step.max_context:
        odd.append("a sliding window")
    if odd:
        raise EngineError(
            f"the model's attention uses {' and '.join(odd)}, which the embedded engine lacks",
            fix="Serve this model with vLLM.",
        )
    index = module.layer_idx
    layers_seen.append(index)
    kv_heads, rows, head_dim = key.shape[1:]
    output = step.attend(
        index,
        query[0].transpose(0, 1).float().reshape(rows, kv_heads, -1, head_dim),
        key[0].transpose(0, 1).float(),
        value[0].transpose(0, 1).float(),
        scale=head_dim**-0.5 if scaling is None else scaling,
    )
    return output.to(query.dtype).view(1, rows, -1, head_dim), None
