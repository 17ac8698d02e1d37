"""The model boundary: harnesses call it in their own wire format, every token goes on record."""

from polar.gateway.boundary import Figures, ModelBoundary
from polar.gateway.control import serve_control
from polar.gateway.gateway import Gateway
from polar.gateway.policy import SessionPolicy, SessionUsage
from polar.gateway.server import Address
from polar.gateway.settings import GatewaySettings

__all__ = [
    "Address",
    "Figures",
    "Gateway",
    "GatewaySettings",
    "ModelBoundary",
    "SessionPolicy",
    "SessionUsage",
    "serve_control",
]
