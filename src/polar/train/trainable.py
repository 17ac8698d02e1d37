"""One trained parameter in its forms: computed with, optimised in float32, and sampled from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from polar.train.ranks import Ranks

__all__ = ["Divided", "Trainable", "Whole"]


class Trainable(Protocol):
    """A parameter and the float32 master that the optimizer changes."""

    master: Tensor

    @property
    def shape(self) -> torch.Size:
        """The parameter's."""
        ...

    def collect(self) -> None:
        """Add the gradient of the computation to the sum in float32, and clear it."""
        ...

    def finish(self) -> None:
        """Give the master the sum over all that was collected, on all ranks."""
        ...

    def clear(self) -> None:
        """Forget all gradients."""
        ...

    def publish(self) -> None:
        """Copy the master to where it is computed with and sampled from."""
        ...

    def whole(self, part: Tensor) -> Tensor:
        """Make the full tensor, in the parameter's shape, from what each rank has of it."""
        ...

    def part(self, whole: Tensor) -> Tensor:
        """Take this rank's part, in the master's shape, of a full tensor."""
        ...


@dataclass(slots=True)
class Whole:
    """The parameter of a process that trains alone; the same tensor wherever dtypes allow."""

    working: nn.Parameter
    """In the dtype of the computation; gets the gradient of each batch."""
    master: Tensor
    """float32; what the optimizer changes."""
    served: Tensor
    """The parameter of the user's model."""

    @property
    def shape(self) -> torch.Size:
        """The parameter's."""
        return self.working.shape

    def collect(self) -> None:
        """Add the working gradient to the master's and clear it."""
        if self.working is self.master or self.working.grad is None:
            return
        if self.master.grad is None:
            self.master.grad = self.working.grad.to(self.master.dtype)
        else:
            self.master.grad.add_(self.working.grad)
        self.working.grad = None

    def finish(self) -> None:
        """Do nothing: the sum is the master's gradient."""

    def clear(self) -> None:
        """Forget all gradients."""
        self.working.grad = self.master.grad = None

    def publish(self) -> None:
        """Copy the master to the working model and to the user's."""
        for target in (self.working, self.served):
            if target is not self.master:
                target.copy_(self.master)

    def whole(self, part: Tensor) -> Tensor:
        """Return the tensor."""
        return part

    def part(self, whole: Tensor) -> Tensor:
        """Return the tensor."""
        return whole


@dataclass(slots=True)
class Divided:
    """The parameter of a rank: computed with as a whole, optimised in parts of equal size."""

    working: nn.Parameter
    """In the dtype of the computation; gets the gradient of each batch."""
    master: Tensor
    """float32 [part]; this rank's part of the flattened parameter, with zeros behind the last."""
    served: Tensor
    """The parameter of the user's model on rank 0; on the others the working one."""
    ranks: Ranks
    _sum: Tensor | None = field(default=None, init=False)
    """float32; of the collected gradients, where the working one is narrower."""

    @property
    def shape(self) -> torch.Size:
        """The parameter's."""
        return self.working.shape

    @classmethod
    def of(cls, working: nn.Parameter, given: nn.Parameter, ranks: Ranks) -> Divided:
        """Divide a parameter, of which every rank holds the same values."""
        flat = _padded(given.detach().to(working.device, torch.float32), ranks.size)
        master = flat.chunk(ranks.size)[ranks.rank].clone().requires_grad_(True)
        return cls(working, master, working if ranks.rank else given, ranks)

    def collect(self) -> None:
        """Add the working gradient to the sum, unless it is in float32 and adds up by itself."""
        grad = self.working.grad
        if grad is None or grad.dtype == torch.float32:
            return
        self._sum = grad.float() if self._sum is None else self._sum.add_(grad)
        self.working.grad = None

    def finish(self) -> None:
        """Add the sums of all ranks up, and keep what belongs to this rank's master."""
        found = self.working.grad if self._sum is None else self._sum
        if found is None:  # another rank may have one
            found = torch.zeros_like(self.working, dtype=torch.float32)
        self.working.grad = self._sum = None
        self.master.grad = self.ranks.scattered(_padded(found, self.ranks.size))

    def clear(self) -> None:
        """Forget all gradients."""
        self.working.grad = self.master.grad = self._sum = None

    def publish(self) -> None:
        """Put the masters together and copy them to the working model and to the user's."""
        found = self.whole(self.master.detach())
        self.working.copy_(found)
        if self.served is not self.working:
            self.served.copy_(found)

    def whole(self, part: Tensor) -> Tensor:
        """Put the parts of all ranks together."""
        flat = self.ranks.whole(part)
        return flat[: self.shape.numel()].view(self.shape)

    def part(self, whole: Tensor) -> Tensor:
        """Take this rank's part of a full tensor."""
        flat = _padded(whole, self.ranks.size)
        return flat.chunk(self.ranks.size)[self.ranks.rank]


def _padded(whole: Tensor, parts: int) -> Tensor:
    """Flatten, with zeros at the end so that the parts are of one size."""
    return pad(whole.reshape(-1), (0, -whole.numel() % parts))
