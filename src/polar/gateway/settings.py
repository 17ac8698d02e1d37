"""Settings of the gateway."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from polar.errors import ConfigError
from polar.gateway import interceptors
from polar.gateway.connections import ConnectionLimits, Cut
from polar.gateway.scorers.settings import ScorerSpec
from polar.gateway.user_code import FunctionName
from polar.tasks.problems import Refused, problems_in

__all__ = ["ControlSettings", "GatewaySettings", "InterceptorSpec", "ScorerSpec"]


def _absolute(path: Path) -> Path:
    return path.expanduser().absolute()


class InterceptorSpec(BaseModel):
    """What makes the model see something else than the harness sent: a `name`, or `python`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = None
    """A name of the interceptors family."""
    python: FunctionName | None = None
    """`module:function` or `file.py:function` of your own: takes a `Chat`, returns one."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """The interceptor's own settings; for a function, its keyword arguments."""

    @model_validator(mode="after")
    def _known(self) -> Self:
        """Refuse what cannot be made, when the config is read."""
        if (self.name is None) == (self.python is None):
            raise Refused("an interceptor has `name` or `python`", fix="Give one of the two.")
        if self.name is not None:
            self._check_settings(self.name)
        return self

    def _check_settings(self, name: str) -> None:
        try:
            model = interceptors.settings_model(name)
        except ConfigError as error:
            raise Refused(error.what, fix=error.fix or "Choose another.") from error
        try:
            model.model_validate(self.settings)
        except ValidationError as error:
            first, *_ = problems = problems_in(error, model)
            what = "; ".join(problem.what for problem in problems)
            raise Refused(f"settings of {name}: {what}", fix=first.fix) from error


class ControlSettings(BaseModel):
    """The control API: on a port of its own, with a token of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    token_file: Annotated[Path, AfterValidator(_absolute)]
    """File with the token, readable by its owner alone; made if it is not there."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = Field(default=0, ge=0, le=65535)
    """Port to listen on; 0 chooses a free one."""


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
    max_reply_mb: float = Field(default=16.0, gt=0)
    """Largest reply: UTF-8 bytes of text, reasoning and tool arguments, however it is delivered.
    At this size sampling stops, and the call goes on record as abandoned."""
    max_response_mb: float = Field(default=256.0, gt=0)
    """Largest answer as it is sent, with all that the wire format adds; a stream is broken off
    there with an error, and its call abandoned."""
    max_head_kb: float = Field(default=128.0, gt=0)
    """Largest head of a request: method, path and headers."""
    head_timeout_s: float = Field(default=60.0, gt=0)
    """Longest time for the head of a request to arrive whole; then the connection is cut."""
    body_timeout_s: float = Field(default=120.0, gt=0)
    """Longest time for the body of a request to arrive whole; then it is answered with 408."""
    read_timeout_s: float = Field(default=120.0, gt=0)
    """Longest time for a client to take what waits for it; then the connection is cut, and the
    call goes on record as abandoned if it still ran."""
    interceptors: tuple[InterceptorSpec, ...] = ()
    """What rewrites requests before the model sees them, in this order; both sides go on record."""
    scorer: ScorerSpec | None = None
    """What scores calls once they are on record; absent: nothing does."""
    control: ControlSettings | None = None
    """Where sessions can be opened from outside, and the gateway be watched; absent: nowhere."""
    workers: int = Field(default=0, ge=0, le=256)
    """Processes that serve sessions, each on a port of its own; 0: the run's own process does. One
    process follows about 5,000 streamed tokens a second. Needs an engine on servers. `polar run`
    has one session, which its own process serves in any case."""

    def connection_limits(self, on_cut: Callable[[Cut], None]) -> ConnectionLimits:
        """Say what clients may take of time and room.

        Args:
            on_cut: Told of every connection that is cut.
        """
        return ConnectionLimits(
            head_timeout_s=self.head_timeout_s,
            body_timeout_s=self.body_timeout_s,
            read_timeout_s=self.read_timeout_s,
            max_head_bytes=int(self.max_head_kb * 1024),
            on_cut=on_cut,
        )
