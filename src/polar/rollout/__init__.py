"""Rollout: tasks become sessions, sessions pass the stages, groups of trajectories come out."""

from polar.rollout.expert import ExpertEngine
from polar.rollout.service import Plan, Rollout, SessionEvent
from polar.rollout.settings import RolloutSettings

__all__ = ["ExpertEngine", "Plan", "Rollout", "RolloutSettings", "SessionEvent"]
