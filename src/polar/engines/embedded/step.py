"""One pass through the model: rows of many sequences side by side, and the cache they attend to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from polar.engines.embedded.attention import attend_run, causal_bias, decode
from polar.engines.embedded.native import Decode

__all__ = ["KeyValueCache", "Run", "Step"]

_FIRST_CONTEXT = 1024


@dataclass(frozen=True, slots=True)
class Run:
    """Successive tokens of one sequence, computed in one step."""

    slot: int
    start: int
    """Position of the first token; all before it are in the cache."""
    token_ids: Sequence[int]

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.token_ids)


class KeyValueCache:
    """Keys and values of every slot, written in place; grows with the longest sequence.

    Args:
        layers: Number of layers.
        slots: Number of sequences.
        kv_heads: Key-value heads of a layer.
        max_context: Most tokens of a sequence.
        head_dim: Size of a head.
        decode: How rows of one token attend.
    """

    def __init__(
        self,
        *,
        layers: int,
        slots: int,
        kv_heads: int,
        max_context: int,
        head_dim: int,
        decode: Decode = decode,
    ) -> None:
        shape = (slots, kv_heads, min(max_context, _FIRST_CONTEXT), head_dim)
        self.keys = [torch.empty(shape) for _ in range(layers)]  # [slots, kv_heads, context, dim]
        self.values = [torch.empty(shape) for _ in range(layers)]
        self.decode = decode
        self.max_context = max_context

    def reserve(self, length: int) -> None:
        """Make room for sequences of this length."""
        context = self.keys[0].shape[2]
        if length <= context:
            return
        wanted = min(self.max_context, max(length, 2 * context))
        for tensors in (self.keys, self.values):
            for layer, old in enumerate(tensors):
                slots, kv_heads, _, head_dim = old.shape
                tensors[layer] = torch.empty(slots, kv_heads, wanted, head_dim)
                tensors[layer][:, :, :context] = old

    def copy(self, source: int, target: int, length: int) -> None:
        """Give a slot the first `length` positions of another."""
        for tensor in (*self.keys, *self.values):
            tensor[target, :, :length] = tensor[source, :, :length]


class Step:
    """The runs of one pass, flattened into rows.

    Args:
        runs: At most one a slot; those of one token are put first.
        cache: Holds everything before each run, and receives the runs themselves.
    """

    def __init__(self, runs: Sequence[Run], cache: KeyValueCache) -> None:
        self.runs = tuple(sorted(runs, key=lambda run: len(run.token_ids) > 1))
        self._cache = cache
        cache.reserve(max(run.end for run in self.runs))
        self._ones = [run for run in self.runs if len(run.token_ids) == 1]
        self._many = [run for run in self.runs if len(run.token_ids) > 1]
        self._one_slots = torch.tensor([run.slot for run in self._ones])
        self._one_lengths = torch.tensor([run.end for run in self._ones])
        self._biases = [causal_bias(run.start, len(run.token_ids)) for run in self._many]
        self.token_ids = torch.tensor([t for run in self.runs for t in run.token_ids])  # [rows]
        self.positions = torch.tensor(
            [position for run in self.runs for position in range(run.start, run.end)]
        )  # [rows]
        ends = torch.tensor([len(run.token_ids) for run in self.runs]).cumsum(0)
        self.last_rows = ends - 1  # [runs]

    @property
    def max_context(self) -> int:
        """Most tokens that a sequence can have."""
        return self._cache.max_context

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, *, scale: float
    ) -> Tensor:
        """Store the rows' keys and values and let each row attend to its sequence so far.

        Args:
            layer: Index of the layer.
            query: float32 [rows, kv_heads, group, head_dim].
            key: float32 [rows, kv_heads, head_dim].
            value: float32 [rows, kv_heads, head_dim].
            scale: Factor of the scores.

        Returns:
            float32 [rows, kv_heads * group * head_dim].
        """
        keys, values = self._cache.keys[layer], self._cache.values[layer]
        ones = len(self._ones)
        output = torch.empty_like(query)
        if ones:
            output[:ones] = self._cache.decode(
                query[:ones].contiguous(),
                key[:ones].contiguous(),
                value[:ones].contiguous(),
                keys,
                values,
                slots=self._one_slots,
                lengths=self._one_lengths,
                scale=scale,
            )
        row = ones
        for run, bias in zip(self._many, self._biases, strict=True):
            rows = slice(row, row + len(run.token_ids))
            keys[run.slot, :, run.start : run.end] = key[rows].transpose(0, 1)
            values[run.slot, :, run.start : run.end] = value[rows].transpose(0, 1)
            output[rows] = attend_run(
                query[rows],
                keys[run.slot, :, : run.end],
                values[run.slot, :, : run.end],
                bias,
                scale,
            )
            row = rows.stop
        return output.flatten(1)
