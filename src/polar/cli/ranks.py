"""Training in several processes that torchrun has started."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from polar.config import RunConfig
from polar.config.environment import Environment
from polar.errors import ConfigError, PolarError

if TYPE_CHECKING:
    from polar.train.torch_ranks import TorchRanks

__all__ = ["alone", "joined", "told_once", "work_for_rank_0"]

_PATIENCE_S = 30.0
"""How long a rank waits to be ended after rank 0 has told what all have found."""


@contextmanager
def told_once(environment: Environment) -> Iterator[None]:
    """Let rank 0 alone tell what every rank finds wrong; the others end as it does, in silence.

    torchrun ends all others when the first has failed, so they wait for that. A rank that nobody
    ends is the only one that found it, and tells.
    """
    try:
        yield
    except PolarError as error:
        if environment.rank and _ended_within(_PATIENCE_S):
            sys.exit(error.exit_code)
        raise


def _ended_within(seconds: float) -> bool:
    try:
        threading.Event().wait(seconds)
    except KeyboardInterrupt:  # what every request to end is made
        return True
    return False


def alone(environment: Environment, command: str) -> None:
    """Refuse torchrun for a command that runs in one process.

    Raises:
        ConfigError: There are several.
    """
    if environment.ranks == 1:
        return
    with told_once(environment):
        raise ConfigError(
            f"`{command}` runs in one process, and torchrun has started {environment.ranks}",
            fix="Start it without torchrun; `polar train` is what several ranks can do.",
        )


@contextmanager
def joined(environment: Environment, model_dir: Path) -> Iterator[TorchRanks | None]:
    """Join the other ranks as rank 0, tell them the model, and in the end that it is over.

    Yields:
        The ranks; None in a process that trains alone.

    Raises:
        RankLost: The ranks do not find each other.
        ConfigError: There are fewer GPUs than ranks.
    """
    if environment.ranks == 1:
        yield None
        return
    from polar.train.learner import End
    from polar.train.torch_ranks import TorchRanks

    ranks = TorchRanks(environment.local_rank)
    try:
        ranks.tell([model_dir] * ranks.size)
        yield ranks
    finally:
        if not ranks.broken:
            ranks.tell([End()] * ranks.size)
        ranks.close()


def work_for_rank_0(config: RunConfig, environment: Environment) -> None:
    """Do a rank's share of every step until rank 0 says that the training is over.

    What is asked of the whole run, to stop for instance, is up to rank 0.

    Raises:
        RankLost: Rank 0 or another rank is gone.
    """
    from polar.train.learner import Learner, follow
    from polar.train.model import load_model
    from polar.train.torch_ranks import TorchRanks

    ranks = TorchRanks(environment.local_rank)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    model_dir = ranks.hear()
    if isinstance(model_dir, Path):
        follow(Learner(load_model(model_dir), config.train, ranks))
    ranks.close()
