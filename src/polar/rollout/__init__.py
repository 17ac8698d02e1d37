"""Rollout: tasks become sessions, sessions pass the stages, groups of trajectories come out."""

from polar.rollout.expert import ExpertEngine
from polar.rollout.plan import Plan, SessionEvent
from polar.rollout.service import Rollout
from polar.rollout.settings import RolloutSettings

__all__ = ["ExpertEngine", "Plan", "Rollout", "RolloutSettings", "SessionEvent"]
