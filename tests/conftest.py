"""What every test gets: guards against blocking and stray signals, and time."""

import os
import signal
from collections.abc import Iterator

import pytest
from blockbuster import BlockBuster, blockbuster_ctx
from hypothesis import settings

MOST_WORKERS = 4
"""Each loads torch, and some tests start processes of their own."""

MOMENTARY = ("os.stat", "os.access", "os.readlink")
"""Metadata of local files: microseconds."""

SYNCHRONOUS = {
    "polar/plugins.py": {"_offered"},
    "polar/gateway/user_code.py": {"load_function"},
    "polar/runtimes/__init__.py": {"default_runtime"},
    "polar/tasks/format.py": {"read_tasks"},
    "polar/tasks/paths.py": {"lay_out"},
    "polar/store/reader.py": {"read_journal", "sessions", "find", "calls", "scores", "unscored"},
}
"""Synchronous by contract: for commands, and for set-up before anything is served."""

# Property tests are not timed: a busy machine must not fail them.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Use the cores that this process may use, which need not be all of the machine's."""
    return min(len(os.sched_getaffinity(0)), MOST_WORKERS)


@pytest.fixture(autouse=True)
def no_blocking_calls() -> Iterator[BlockBuster]:
    """Fail a test in which code of Polar blocks the event loop it runs in."""
    with blockbuster_ctx("polar") as guard:
        for name in MOMENTARY:
            guard.functions[name].deactivate()
        for watched in guard.functions.values():
            for file, functions in SYNCHRONOUS.items():
                watched.can_block_in(file, functions)
        yield guard


@pytest.fixture(autouse=True)
def signals_as_they_were() -> Iterator[None]:
    """Put back the handlers that a command run in this process takes for itself."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
