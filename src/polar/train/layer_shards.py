"""Models whose layers several ranks hold in parts, through PyTorch's `fully_shard`.

A layer is put together when a pass reaches it, and taken apart when the pass has left it; its
gradient is added up over the ranks and each keeps its part. So all ranks must make the same passes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from polar.errors import ConfigError, RankLost, TrainingError
from polar.train.ranks import Ranks
from polar.train.support import decoder_layers

__all__ = ["LayerShards", "Shard", "check_pytorch", "twin"]

T = TypeVar("T")


class LayerShards:
    """A model in parts, and the passes that all ranks make through it together.

    Args:
        model: The same on every rank; its parameters are replaced by this rank's rows of them.
        ranks: Who holds the other parts.
        dtype: What is computed in. Parts keep their dtype, and gradients are summed in float32.

    Raises:
        TrainingError: The model's layers were not found.
    """

    def __init__(self, model: PreTrainedModel, ranks: Ranks, *, dtype: torch.dtype) -> None:
        self._ranks, self.dtype = ranks, dtype
        place = ranks.device or model.device
        divide = partial(
            fully_shard,
            mesh=init_device_mesh(place.type, (ranks.size,)),
            mp_policy=MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32),
        )
        for layer in decoder_layers(model, fix="Set train.shard to optimizer."):
            divide(layer)
        self._root = _Root(model)
        divide(self._root)
        assert isinstance(self._root, FSDPModule)
        # Or ranks whose trees go through different experts would add up different parameters.
        self._root.set_reduce_scatter_unused_params(True)

    def another(self, model: PreTrainedModel) -> LayerShards:
        """Divide another model in the same way."""
        return LayerShards(model, self._ranks, dtype=self.dtype)

    def forward(self, compute: Callable[[], T]) -> T:
        """Let `compute` go through the model, once and whole."""
        with self._unbroken():
            found: T = self._root(compute)
            if not torch.is_grad_enabled():
                # Nothing goes back, which is when it would forget the way and take itself apart.
                assert isinstance(self._root, FSDPModule)
                self._root.reset_iter_state()
        return found

    def backward(self, roots: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
        """Go back through the model from what `forward` has returned."""
        with self._unbroken():
            torch.autograd.backward(roots, gradients)

    @contextmanager
    def _unbroken(self) -> Iterator[None]:
        """Make one pass; who leaves it halfway leaves the other ranks waiting.

        Raises:
            RankLost: It broke off here, or on another rank.
        """
        if self._ranks.broken:
            raise _broken_off("an earlier one did")
        try:
            yield
        except TrainingError:
            raise  # the model is at fault, on every rank
        except Exception as error:
            self._ranks.broken = True
            why = str(error).partition("\n")[0]
            raise _broken_off(f"{type(error).__name__}: {why}") from error
        except BaseException:
            self._ranks.broken = True
            raise


@dataclass(slots=True)
class Shard:
    """The parameter of a rank that holds only some rows of it, for computing too."""

    parameter: Tensor
    """A DTensor, float32 where it is trained; its gradient is the mean over the ranks."""
    master: Tensor
    """float32 [rows of this rank, ...]; the memory of the parameter's own part."""
    ranks: Ranks
    shown: bool
    """Whether the user's model has such a parameter."""
    served: Tensor | None
    """That parameter, on rank 0."""

    @classmethod
    def of(
        cls, parameter: Tensor, served: Tensor | None, ranks: Ranks, *, shown: bool = True
    ) -> Shard:
        """Take what `LayerShards` has left in place of a parameter."""
        detached = parameter.detach()
        assert isinstance(detached, DTensor)
        master = detached.to_local().requires_grad_(parameter.requires_grad)
        return cls(parameter, master, ranks, shown, None if ranks.rank else served)

    @property
    def shape(self) -> torch.Size:
        """Of the whole parameter."""
        return self.parameter.shape

    def collect(self) -> None:
        """Do nothing: gradients add up in float32 in the parameter."""

    def finish(self) -> None:
        """Give the master its part of the sum over all ranks."""
        grad = self.parameter.grad
        if grad is None:
            self.master.grad = torch.zeros_like(self.master)
        else:
            assert isinstance(grad, DTensor)
            self.master.grad = grad.to_local() * self.ranks.size
        self.parameter.grad = None

    def clear(self) -> None:
        """Forget all gradients."""
        self.parameter.grad = self.master.grad = None

    def publish(self) -> None:
        """Copy the masters of all ranks to the user's model; the parameter has the change."""
        if self.shown:
            found = self.whole(self.master.detach())
            if self.served is not None:
                self.served.copy_(found)

    def whole(self, part: Tensor) -> Tensor:
        """Put the rows of all ranks together."""
        fewer = self._rows() - part.shape[0]
        flat = pad(part.reshape(-1), (0, fewer * self._row_size()))
        return self.ranks.whole(flat)[: self.shape.numel()].view(self.shape)

    def part(self, whole: Tensor) -> Tensor:
        """Take this rank's rows of a full tensor."""
        first = self.ranks.rank * self._rows()
        return whole[first : first + self._rows()].clone()

    def _rows(self) -> int:
        """How many the first rank has; only the last ranks have fewer."""
        return -(-self.shape[0] // self.ranks.size)

    def _row_size(self) -> int:
        return self.shape[1:].numel()


class _Root(nn.Module):
    """What is outside the layers (embedding, last norm, head), present while a pass lasts."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], T]) -> T:
        return compute()


def check_pytorch() -> None:
    """See before anything is divided that PyTorch can do all that it will be asked for.

    Raises:
        ConfigError: It is too old to be told that nothing goes back from a pass.
    """
    if not hasattr(FSDPModule, "reset_iter_state"):
        raise ConfigError(
            f"layers can be divided with PyTorch 2.13 or newer, and this is {torch.__version__}",
            where="train.shard",
            fix="Install a newer PyTorch, or set train.shard to optimizer.",
        )


def twin(model: PreTrainedModel, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Copy modules and configuration, and see the same memory where the dtype is the same.

    Parameters are new objects, for `fully_shard` moves those that it is given.
    """
    memo: dict[int, Tensor] = {}
    for parameter in model.parameters():
        seen = parameter.detach().to(dtype or parameter.dtype)
        memo[id(parameter)] = nn.Parameter(seen, requires_grad=parameter.requires_grad)
    memo |= {id(buffer): buffer.detach() for buffer in model.buffers()}
    return copy.deepcopy(model, memo)


def _broken_off(why: str) -> RankLost:
    return RankLost(
        f"a pass that all ranks make together broke off ({why})",
        fix="See above which rank ended first and why, then resume. If memory was short, lower "
        "train.max_tokens_per_batch.",
    )
