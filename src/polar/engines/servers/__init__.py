"""What engines on servers of their own share: connections, health, routing, moved calls."""

from polar.engines.servers.connection import Connection, ServerKind, rest_of_stream
from polar.engines.servers.member import Replica, ReplicaStatus
from polar.engines.servers.probing import follows_temperature
from polar.engines.servers.replicated import ReplicatedEngine
from polar.engines.servers.routing import check_request, ended, rest_of
from polar.engines.servers.stamping import (
    Event,
    ServerWeights,
    Span,
    certain,
    stamped,
    weight_label,
)

__all__ = [
    "Connection",
    "Event",
    "Replica",
    "ReplicaStatus",
    "ReplicatedEngine",
    "ServerKind",
    "ServerWeights",
    "Span",
    "certain",
    "check_request",
    "ended",
    "follows_temperature",
    "rest_of",
    "rest_of_stream",
    "stamped",
    "weight_label",
]
