import pytest
import torch

from polar.cli.demo import demo_config
from polar.harnesses.settings import MiniSweAgentSettings
from polar.train.model import quick_dtype


def config_of(*overrides, harness="mini_swe_agent", tasks="shell"):
    return demo_config(
        harness=harness,
        tasks=tasks,
        seed=0,
        steps=1,
        minutes=1.0,
        model="smollm2-135m",
        engine="embedded",
        engine_url=None,
        overrides=list(overrides),
    )


@pytest.mark.parametrize("harness", ["mini_swe_agent", "pi"])
def test_a_trail_leaves_turns_for_three_commands_and_an_end(harness):
    config = config_of(harness=harness, tasks="trail")
    settings = config.harness.settings
    turns = (
        settings.step_limit
        if isinstance(settings, MiniSweAgentSettings)
        else config.rollout.max_calls
    )
    assert turns > 4
    assert config.tasks.family == "trail"
    assert config.loop.heldout_sessions <= config.tasks.heldout_count


def test_what_the_user_sets_wins_over_what_the_tasks_and_the_harness_want():
    config = config_of("loop.warm_start.sessions=8", harness="pi", tasks="trail")
    assert config.loop.warm_start.sessions == 8


def test_the_precision_is_the_one_that_this_processor_is_quick_in():
    assert config_of().train.dtype == quick_dtype(torch.device("cpu"))
    assert config_of("train.dtype=float32").train.dtype == "float32"
