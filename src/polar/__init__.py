"""Polar: reinforcement learning for any agent harness, at the model API boundary."""

__version__ = "0.1.0"
