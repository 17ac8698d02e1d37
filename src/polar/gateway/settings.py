"""Settings of the gateway."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["GatewaySettings"]


class GatewaySettings(BaseModel):
    """How the gateway serves harnesses."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    keepalive_s: float = Field(default=10.0, gt=0)
    """A stream that has nothing to say for so long gets a native no-op event."""
    engine_timeout_s: float = Field(default=300.0, gt=0)
    """Longest silence of the engine within a call; pauses do not count."""
    pause_timeout_s: float = Field(default=1800.0, gt=0)
    """Longest time that a new call waits for a pause to end."""
    disconnect_grace_s: float = Field(default=0.0, ge=0)
    """How long a call without a client goes on, for a retry to take it over."""
    retry_after_s: int = Field(default=2, ge=0)
    """What a client is told to wait when the engine fails."""
    max_request_mb: float = Field(default=64.0, gt=0)
    """Largest request body."""
