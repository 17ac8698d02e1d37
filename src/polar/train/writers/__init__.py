"""Where metrics go besides the run folder: a family, each imported when it is named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path

from polar.errors import SetupError
from polar.train.writers.base import MetricsWriter, numbers
from polar.train.writers.counted import CountedRows
from polar.train.writers.settings import MetricsSettings

__all__ = ["CountedRows", "MetricsSettings", "MetricsWriter", "numbers", "opened"]

_WRITERS: Mapping[str, str] = {
    "tensorboard": "polar.train.writers.tensorboard:TensorBoard",
    "trackio": "polar.train.writers.trackio:Trackio",
    "wandb": "polar.train.writers.wandb:WeightsAndBiases",
}


@contextmanager
def opened(settings: MetricsSettings, run_dir: Path) -> Iterator[Sequence[MetricsWriter]]:
    """Open the writers that are named, and close them however the run ends.

    Raises:
        SetupError: The package of one is not installed.
    """
    with ExitStack() as stack:
        writers: list[MetricsWriter] = []
        for name in settings.writers:
            writer = _open(name, settings, run_dir)
            stack.callback(writer.close)
            writers.append(writer)
        yield writers


def _open(name: str, settings: MetricsSettings, run_dir: Path) -> MetricsWriter:
    module, _, made = _WRITERS[name].partition(":")
    try:
        writer: MetricsWriter = getattr(import_module(module), made)(settings, run_dir)
    except ModuleNotFoundError as error:
        raise SetupError(
            f"the package {error.name} is not installed, and metrics.writers names {name}",
            where="metrics.writers",
            fix=f"Run `pip install 'polar-rl[{name}]'`, or leave it out.",
        ) from error
    return writer
