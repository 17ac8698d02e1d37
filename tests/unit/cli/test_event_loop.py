"""The garbage collector's settings of a command that serves."""

from __future__ import annotations

import gc

import pytest

from polar.cli.loop import keep_loaded


@pytest.fixture(autouse=True)
def _own_settings():
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


class _Cycle:
    def __init__(self) -> None:
        self.me = self


def test_what_is_loaded_is_passed_over_and_garbage_of_later_is_still_found() -> None:
    loaded = [[] for _ in range(100)]
    keep_loaded()
    assert gc.get_freeze_count() > len(loaded)
    assert not any(each is loaded for each in gc.get_objects())
    for _ in range(10):
        _Cycle()
    assert gc.collect() >= 10
