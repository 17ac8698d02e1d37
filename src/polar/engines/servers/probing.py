"""What probes of servers have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from polar.errors import EngineError

__all__ = ["COOL", "follows_temperature", "reading_answers"]

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


@contextmanager
def reading_answers(kind: str, address: str) -> Iterator[None]:
    """Tell an answer of another form than expected from a defect.

    Args:
        kind: What the server should be: `vLLM`.
        address: Of the server.

    Raises:
        EngineError: An answer lacks what is looked for in it.
    """
    try:
        yield
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise EngineError(
            f"the server's answer is not of {kind}'s form: {error!r}",
            where=address,
            fix=f"Check that {kind} itself runs there, in a version that Polar knows.",
        ) from error
