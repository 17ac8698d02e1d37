"""Configuration: composes the settings of all parts; the only reader of the environment."""

from polar.config.environment import Environment, environment
from polar.config.families import work_settings
from polar.config.loading import load_config, parse_config, write_config
from polar.config.overrides import Override, Overrides, parse_override
from polar.config.run import (
    EngineSection,
    HarnessSection,
    RunConfig,
    RuntimeSection,
    TasksSection,
)
from polar.config.sft import SftConfig

__all__ = [
    "EngineSection",
    "Environment",
    "HarnessSection",
    "Override",
    "Overrides",
    "RunConfig",
    "RuntimeSection",
    "SftConfig",
    "TasksSection",
    "environment",
    "load_config",
    "parse_config",
    "parse_override",
    "work_settings",
    "write_config",
]
