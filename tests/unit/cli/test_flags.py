"""Flags that stand for settings: an error is at the flag, and a value is what was given."""

import pytest

from polar.cli.flags import overrides_of
from polar.config import RunConfig, load_config
from polar.errors import ConfigError


def flags(*, harness=None, model=None, engine="vllm", engine_url=None):
    return overrides_of(harness=harness, model=model, engine=engine, engine_url=engine_url)


@pytest.mark.parametrize(
    ("given", "where"),
    [
        ({"harness": "nothing"}, "--harness nothing"),
        ({"engine": "nothing", "engine_url": ["http://a:1"]}, "--engine nothing"),
        ({"engine": "embedded", "engine_url": ["http://a:1"]}, "--engine-url http://a:1"),
    ],
)
def test_an_error_of_a_flag_is_at_the_flag(given, where):
    with pytest.raises(ConfigError) as refused:
        load_config(None, flags(**given), RunConfig)

    assert refused.value.where == where


def test_a_flag_is_taken_as_it_is_given_and_not_read_as_yaml():
    config = load_config(None, flags(model="2026", engine_url=["http://[::1]:1"]), RunConfig)

    assert config.model == "2026"
    assert config.engine.settings.model_dump()["urls"] == ("http://[::1]:1",)
