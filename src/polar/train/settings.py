"""What a user can set about learning."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = ["Algorithm", "KlSettings", "LoraSettings", "OverlongSettings", "TrainSettings"]

Algorithm = Literal["grpo", "dr_grpo", "rloo", "reinforce_pp", "reinforce_pp_baseline"]
Fraction = Annotated[float, Field(ge=0.0, lt=1.0)]
Positive = Annotated[float, Field(gt=0.0)]


class LoraSettings(BaseModel):
    """A low-rank adapter in place of full fine-tuning."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    rank: Annotated[int, Field(ge=1)] = 16
    """Rank of each adapter."""
    alpha: Annotated[float, Field(gt=0.0)] = 32.0
    """The adapter's product is scaled by `alpha / rank`."""
    target_modules: Annotated[tuple[str, ...], Field(strict=False, min_length=1)] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Last names of the linear layers that get an adapter."""


class KlSettings(BaseModel):
    """A pull back to the reference: the model that the run was started with, before any training.

    Of a low-rank adapter it is the model without the adapter, and costs no memory; otherwise a
    frozen copy. One more forward pass either way.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    coefficient: Positive
    """What a nat of divergence costs."""
    within: Literal["loss", "reward"] = "loss"
    """`loss`: the k3 estimate of each trained token is added to the loss. `reward`: the log ratio
    of all trained tokens of a session is subtracted from its reward; groups without spread are
    left out before that, and with `reinforce_pp` the step if it has none."""


class OverlongSettings(BaseModel):
    """A reward that falls with length before the limit is reached (DAPO's soft punishment)."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    max_tokens: Annotated[int, Field(ge=1)]
    """Sampled tokens of a session from which on the whole penalty is due."""
    buffer_tokens: Annotated[int, Field(ge=1)]
    """Tokens before that over which it rises from nothing."""
    penalty: Positive = 1.0
    """What is subtracted from the reward in the end."""


class TrainSettings(BaseModel):
    """How the policy learns from groups of sessions."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = "auto"
    """Where the model is trained: `cpu`, `cuda`, or `cuda:1` for the second GPU. `auto` takes the
    first GPU that PyTorch sees, and the CPU without one, or where the embedded engine samples from
    the same model."""
    algorithm: Algorithm = "grpo"
    """How rewards become advantages: `grpo` (mean and deviation of the group), `dr_grpo` (mean
    only), `rloo` (mean of the other sessions), `reinforce_pp` (mean and deviation of all sessions
    of the step), `reinforce_pp_baseline` (mean of the group, deviation of all)."""
    credit: Literal["outcome", "steps"] = "outcome"
    """What the tokens of a call learn from: `outcome`: the reward of their session. `steps`: the
    call's own score (`gateway.scorer`), those of the calls after it, and the session's reward."""
    discount: Annotated[float, Field(ge=0.0, le=1.0)] = 1.0
    """What a reward counts one call later; for `credit: steps`."""
    failed_sessions: Literal["baseline", "exclude"] = "exclude"
    """Sessions that broke through no doing of the model: with reward 0 in the group's baseline,
    or left out of it. They are never trained on."""
    truncated_sessions: Literal["train", "baseline", "exclude"] = "train"
    """Sessions that were cut off: out of time, a reply at its token limit, or a trace that is too
    long. Trained on like others; in the group's baseline only; or left out."""
    overlong: OverlongSettings | None = None
    """Subtract from the reward of sessions that come near a length; absent: do not."""
    ratio: Literal["token", "sequence"] = "token"
    """What the policy ratio is of, and is clipped for: each token, or the trace that the token is
    trained in (GSPO: the geometric mean over its trained tokens, with far narrower bounds)."""
    normalizer: Literal["token_mean", "session_mean", "constant"] = "token_mean"
    """What the loss of an optimizer step is divided by: its trained tokens; each session's trained
    tokens and the number of sessions; or sessions times `normalizer_tokens`."""
    normalizer_tokens: Annotated[int, Field(ge=1)] = 1024
    """Tokens a session counts for when `normalizer` is `constant`."""
    clip_low: Fraction = 0.2
    """The policy ratio is clipped below at `1 - clip_low`."""
    clip_high: Annotated[float, Field(ge=0.0)] = 0.28
    """The policy ratio is clipped above at `1 + clip_high`."""
    recompute: bool = True
    """Take the old logprobs from the trainer's own forward pass, and correct the engine's
    deviation; otherwise the engine's are the old logprobs, and there is nothing to correct."""
    correction: Literal["none", "tis", "icepop"] = "tis"
    """How the engine's deviation is corrected: each token is weighed by the ratio of the trainer's
    to the engine's probability, at most `tis_cap`; or weighed so within `icepop_band`, and left out
    beyond it."""
    tis_cap: Positive = 2.0
    """Cap of the importance weight for `tis`."""
    icepop_band: Annotated[tuple[Positive, Positive], Field(strict=False)] = (0.5, 5.0)
    """Least and largest importance weight for `icepop`; tokens beyond are masked and counted."""
    kl: KlSettings | None = None
    """A pull back to the reference model; absent: none."""
    entropy_coef: Annotated[float, Field(ge=0.0)] = 0.0
    """What a nat of entropy of the policy earns in the loss."""
    temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """The sampling temperature of the rollouts; logits are divided by it."""
    top_p: float = 1.0
    """The nucleus of the rollouts; only 1.0 can be trained on."""
    top_k: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    """How many of the likeliest tokens the rollouts are sampled from; only `all` can be trained
    on."""
    lr: Annotated[float, Field(gt=0.0)] = 2e-6
    """Learning rate after warm-up."""
    betas: Annotated[tuple[Fraction, Fraction], Field(strict=False)] = (0.9, 0.98)
    """AdamW's decay rates."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """AdamW's decoupled weight decay."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] = 1.0
    """The gradient of an optimizer step is scaled down to this norm."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Optimizer steps over which the learning rate rises linearly."""
    epochs_per_step: Annotated[int, Field(ge=1)] = 1
    """Passes over the groups of a step."""
    minibatches_per_step: Annotated[int, Field(ge=1)] = 1
    """Optimizer steps that the groups of a step are divided among, in each pass."""
    max_tokens_per_batch: Annotated[int, Field(ge=1)] = 2048
    """Of how many unique tokens the layers hold all that the backward pass needs: those from the
    beginning of a session to the piece at hand. Pieces that lie further on are computed with
    gradient checkpointing. With `shard: layers`: most unique tokens of a tree; a longer trace makes
    a tree of its own, with gradient checkpointing."""
    max_tokens_per_piece: Annotated[int, Field(ge=1)] = 512
    """About how many unique tokens of a tree go through forward and backward at once. Memory holds
    what the layers keep for one piece and for the path to it, and that path's keys and values with
    their gradients."""
    max_trace_tokens: Annotated[int, Field(ge=1)] = 16384
    """Longer traces are dropped and counted."""
    logits_per_chunk: Annotated[int, Field(ge=1)] = 256
    """Positions whose logits are in memory at once."""
    gradient_checkpointing: bool = False
    """Compute each layer again in the backward pass, for less memory and a third more time."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """What is computed in; the optimizer's weights are float32 either way."""
    train_embeddings: bool = True
    """Whether the input embedding and the output head are trained too."""
    frozen_layers: Annotated[int, Field(ge=0)] = 0
    """Lowest layers that are not trained, nor computed in the backward pass. Needs
    `train_embeddings: false`, for the input embedding lies below them."""
    lora: LoraSettings | None = None
    """Train a low-rank adapter, merged into the weights after each step; absent: all weights."""
    shard: Literal["optimizer", "layers"] = "optimizer"
    """What several ranks divide among them: `optimizer`: its state and the float32 weights; each
    rank computes with the whole model. `layers`: everything, for models that do not fit one GPU; a
    layer is put together when a pass reaches it, all ranks make as many passes as the one with
    most trees, and a tree of up to `max_tokens_per_batch` is one pass, without smaller pieces. Of
    no effect in a single process."""
    seed: int = 0
    """Seed of everything random in training."""

    @model_validator(mode="after")
    def _trained_layers_are_consistent(self) -> Self:
        if self.frozen_layers and self.train_embeddings:
            raise ValueError("frozen_layers needs train_embeddings: false")
        if self.lora is not None and self.frozen_layers:
            raise ValueError("frozen_layers applies to full fine-tuning only, not to lora")
        return self

    @model_validator(mode="after")
    def _corrections_are_consistent(self) -> Self:
        if self.correction == "icepop" and not self.recompute:
            raise ValueError("correction: icepop needs recompute: true")
        if self.icepop_band[0] >= self.icepop_band[1]:
            raise ValueError("the lower bound of icepop_band is not below the upper")
        if self.overlong is not None and self.overlong.buffer_tokens > self.overlong.max_tokens:
            raise ValueError("overlong.buffer_tokens is larger than overlong.max_tokens")
        return self

    @model_validator(mode="after")
    def _discount_has_an_effect(self) -> Self:
        if self.discount != 1.0 and self.credit == "outcome":
            raise ValueError("discount needs credit: steps, for an outcome has no steps")
        return self

    @property
    def regularised(self) -> bool:
        """Whether tokens without an advantage have a gradient all the same."""
        return self.entropy_coef > 0.0 or (self.kl is not None and self.kl.within == "loss")
