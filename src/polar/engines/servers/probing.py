"""What the logprobs that a server tells are of."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["COOL", "follows_temperature"]

COOL = 0.5
"""The temperature to compare with temperature 1."""


def follows_temperature(warm: Mapping[int, float], cool: Mapping[int, float]) -> bool:
    """Tell whether halving the temperature doubled the distances between logprobs.

    Args:
        warm: Logprobs of likely tokens at temperature 1.
        cool: The same at `COOL`.
    """
    common = sorted(warm.keys() & cool.keys(), key=lambda token: warm[token])
    if len(common) < 2:
        return False
    far = warm[common[-1]] - warm[common[0]]
    return far > 0.0 and (cool[common[-1]] - cool[common[0]]) / far > (1.0 + 1.0 / COOL) / 2
