"""Training begins only on an engine that can be given what is learned."""

import pytest

from polar.cli.compose import _check_updates
from polar.engines.base import Capabilities
from polar.engines.scripted import ScriptedEngine
from polar.errors import ConfigError


class FixedEngine(ScriptedEngine):
    async def probe(self) -> Capabilities:
        return Capabilities("m", 10, True, True, weight_updates=False, detail="llama.cpp at x")


async def test_an_engine_that_takes_no_weights_is_refused_before_anything_runs():
    with pytest.raises(ConfigError, match=r"llamacpp cannot take new weights \(llama.cpp at x\)"):
        await _check_updates(FixedEngine([]), "llamacpp")


async def test_an_engine_that_takes_weights_is_let_through():
    await _check_updates(ScriptedEngine([]), "scripted")
