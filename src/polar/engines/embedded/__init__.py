"""The engine that samples from a transformers model in this process, sharing its parameters."""

from polar.engines.embedded.engine import EmbeddedEngine
from polar.engines.settings import EmbeddedSettings

__all__ = ["EmbeddedEngine", "EmbeddedSettings"]
