"""Which tokens' keys and values each slot of the cache holds, and where a prompt finds a prefix."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Placement", "Slot", "SlotTable", "common_prefix"]


@dataclass(slots=True)
class Slot:
    """One row of the key-value cache."""

    index: int
    tokens: list[int] = field(default_factory=list)
    """Tokens whose keys and values are in the cache, in order."""
    busy: bool = False
    affinity: str = ""
    last_used: int = 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a prompt goes: `length` tokens are already in `source`, to be copied if it differs."""

    slot: Slot
    source: Slot
    length: int


class SlotTable:
    """Slots that keep their tokens after a reply ends, for prompts that begin with them."""

    def __init__(self, count: int) -> None:
        self._slots = [Slot(index) for index in range(count)]
        self._clock = 0

    @property
    def free(self) -> int:
        """Number of slots that no request occupies."""
        return sum(not slot.busy for slot in self._slots)

    def place(self, prompt: list[int], affinity: str) -> Placement:
        """Occupy a free slot for a prompt.

        The slot that holds the longest prefix is taken over when that loses nothing another
        conversation may need; else the slot unused for longest is, and the caller copies the
        prefix there. At least one token of the prompt is left to compute: its logits are needed.
        """
        lengths = [common_prefix(slot.tokens, prompt) for slot in self._slots]
        best = self._slots[lengths.index(max(lengths))]
        length = min(max(lengths), len(prompt) - 1)
        own = affinity != "" and best.affinity == affinity
        if not best.busy and length > 0 and (own or length >= len(best.tokens) - 1):
            target = best
        else:
            target = min(
                (slot for slot in self._slots if not slot.busy), key=lambda slot: slot.last_used
            )
        self._occupy(target, affinity)
        target.tokens = prompt[:length]
        return Placement(target, best, length)

    def longest_prefix(self, prompt: list[int]) -> int:
        """Count the first tokens of a prompt that some slot holds."""
        return max(common_prefix(slot.tokens, prompt) for slot in self._slots)

    def release(self, slot: Slot) -> None:
        """Free a slot; what it holds stays for the next prompt."""
        self._clock += 1
        slot.busy = False
        slot.last_used = self._clock

    def forget(self) -> None:
        """Drop all that is known of the cache: the weights have changed."""
        for slot in self._slots:
            slot.tokens.clear()
            slot.affinity = ""

    def _occupy(self, slot: Slot, affinity: str) -> None:
        self._clock += 1
        slot.busy = True
        slot.affinity = affinity
        slot.last_used = self._clock


def common_prefix(left: list[int], right: list[int]) -> int:
    """Count the tokens that both begin with."""
    limit = min(len(left), len(right))
    if left[:limit] == right[:limit]:
        return limit
    low, high = 0, limit  # left[:low] == right[:low], left[:high] != right[:high]
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle
    return low
