"""What engines on servers of their own share: connections, health, routing, moved calls."""

from polar.engines.servers.connection import Connection, ServerKind
from polar.engines.servers.member import Replica, ReplicaStatus
from polar.engines.servers.replicated import ReplicatedEngine
from polar.engines.servers.routing import check_request, rest_of

__all__ = [
    "Connection",
    "Replica",
    "ReplicaStatus",
    "ReplicatedEngine",
    "ServerKind",
    "check_request",
    "rest_of",
]
