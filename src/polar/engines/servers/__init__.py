"""What engines on servers of their own share: connections, health, routing, moved calls."""

from polar.engines.servers.connection import Connection, ServerKind, event_data
from polar.engines.servers.following import KnownWeights, Lost, News
from polar.engines.servers.http_server import FixedServer, HttpServer
from polar.engines.servers.member import Replica, ReplicaStatus
from polar.engines.servers.probing import COOL, follows_temperature, reading_answers
from polar.engines.servers.replicated import ReplicatedEngine
from polar.engines.servers.routing import check_request, ended, rest_of
from polar.engines.servers.stamping import (
    Event,
    ServerWeights,
    Span,
    certain,
    read_events,
    stamped,
    weight_label,
)

__all__ = [
    "COOL",
    "Connection",
    "Event",
    "FixedServer",
    "HttpServer",
    "KnownWeights",
    "Lost",
    "News",
    "Replica",
    "ReplicaStatus",
    "ReplicatedEngine",
    "ServerKind",
    "ServerWeights",
    "Span",
    "certain",
    "check_request",
    "ended",
    "event_data",
    "follows_temperature",
    "read_events",
    "reading_answers",
    "rest_of",
    "stamped",
    "weight_label",
]
