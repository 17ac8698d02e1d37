"""The error tree: every error that Polar raises on purpose.

PolarError                what went wrong, where, and what to do about it
├── ConfigError           a setting, a task file or a flag is wrong            exit code 2
│   └── TaskFileError     a line of a task file cannot be read
├── SetupError            something this machine needs is missing              exit code 3
│   ├── HarnessMissing    a harness binary or package is not installed
│   └── ModelMissing      a model name or path leads to no usable model
├── EngineError           the inference engine failed or cannot be used        exit code 4
│   ├── EngineRefused     the engine lacks token ids or logprobs: not for training
│   ├── ServerLost        an engine's server does not answer or broke off; another may do the work
│   ├── ServerFailed      an engine's server answers that it failed; another may do the work
│   ├── StaleWeights      an engine's server samples from other weights than it should
│   └── ContextOverflow   prompt and max_tokens do not fit the context window
├── RuntimeFailed         a sandbox could not be started or run                exit code 5
├── JournalError          the journal could not be written or read (full disk) exit code 6
│   └── StaleAttempt      a newer attempt of the session has begun
├── GatewayError          the gateway could not start (a port in use)          exit code 7
│   ├── InterceptorFailed an interceptor broke on a request                    (HTTP 500)
│   └── ScorerFailed      a scorer broke on a call; never reaches a harness
├── BadRequest            a harness sent what the dialect does not support (HTTP 400)
│   ├── RequestTooLarge   a request is larger than the gateway takes           (HTTP 413)
│   ├── RequestTooSlow    a request did not arrive whole in time               (HTTP 408)
│   └── ReplyTooLarge     a reply grew larger than the gateway gives           (HTTP 400)
├── UnknownRoute          no dialect serves this method and path (HTTP 404)
│   └── NoWebSocket       a client asks for a WebSocket (HTTP 426 in OpenAI's formats)
├── Unauthorized          an unknown session key (HTTP 401)
├── FidelityError         a law of token fidelity does not hold                exit code 8
├── TrainingError         training cannot go on (no trainable token, NaN)      exit code 9
│   └── RankLost          one of the processes that train together is gone
└── SessionsBroken        session after session ends without a grade           exit code 10
"""

from __future__ import annotations

__all__ = [
    "BadRequest",
    "ConfigError",
    "ContextOverflow",
    "EngineError",
    "EngineRefused",
    "FidelityError",
    "GatewayError",
    "HarnessMissing",
    "InterceptorFailed",
    "JournalError",
    "ModelMissing",
    "NoWebSocket",
    "PolarError",
    "RankLost",
    "ReplyTooLarge",
    "RequestTooLarge",
    "RequestTooSlow",
    "RuntimeFailed",
    "ScorerFailed",
    "ServerFailed",
    "ServerLost",
    "SessionsBroken",
    "SetupError",
    "StaleAttempt",
    "StaleWeights",
    "TaskFileError",
    "TrainingError",
    "Unauthorized",
    "UnknownRoute",
]


class PolarError(Exception):
    """An error that a user can act on.

    Args:
        what: What went wrong, one sentence without a full stop.
        where: The file, line, key, address or session it happened at.
        fix: What to do about it, an imperative sentence.
    """

    exit_code: int = 1

    def __init__(self, what: str, *, where: str | None = None, fix: str | None = None) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        super().__init__(what)

    def __reduce__(self) -> tuple[object, ...]:
        """Let it be told to another process whatever its `__init__` takes."""
        return _again, (type(self), self.args), self.__dict__

    @property
    def finding(self) -> str:
        """What went wrong and where, without what to do about it."""
        return f"{self.what} (at {self.where})" if self.where else self.what

    def __str__(self) -> str:
        return f"{self.finding}. {self.fix}" if self.fix else self.finding


def _again(kind: type[PolarError], args: tuple[object, ...]) -> PolarError:
    """Make an error without its `__init__`; its parts are set afterwards."""
    error = kind.__new__(kind)
    error.args = args
    return error


class ConfigError(PolarError):
    """A setting, a task file or a flag is wrong."""

    exit_code = 2


class TaskFileError(ConfigError):
    """A line of a task file cannot be read."""


class SetupError(PolarError):
    """Something that this machine needs is missing."""

    exit_code = 3


class HarnessMissing(SetupError):
    """A harness binary or package is not installed."""


class ModelMissing(SetupError):
    """A model name or path leads to no usable model."""


class EngineError(PolarError):
    """The inference engine failed or cannot be used."""

    exit_code = 4


class EngineRefused(EngineError):
    """The engine lacks token ids or logprobs, so it cannot serve for training."""


class ServerLost(EngineError):
    """A server of an engine does not answer, or broke off; another may do the work."""


class ServerFailed(EngineError):
    """A server of an engine answers that it failed; another may do the work."""


class StaleWeights(EngineError):
    """A server of an engine samples from other weights than it should."""


class ContextOverflow(EngineError):
    """The prompt and the tokens asked for do not fit the context window."""

    def __init__(self, *, prompt_tokens: int, max_context: int) -> None:
        self.prompt_tokens = prompt_tokens
        self.max_context = max_context
        super().__init__(
            f"the prompt has {prompt_tokens} tokens, the model's context window {max_context}",
            fix="Shorten the conversation or use a model with a longer context.",
        )


class RuntimeFailed(PolarError):
    """A sandbox could not be started or run."""

    exit_code = 5


class JournalError(PolarError):
    """The journal could not be written or read."""

    exit_code = 6


class StaleAttempt(JournalError):
    """A newer attempt of the session has begun, so what this one reports no longer counts."""


class GatewayError(PolarError):
    """The gateway could not start or serve."""

    exit_code = 7


class InterceptorFailed(GatewayError):
    """An interceptor broke on a request, so the model was not asked."""


class ScorerFailed(GatewayError):
    """A scorer broke on a call, which therefore has no score."""


class BadRequest(PolarError):
    """A harness sent something that the dialect does not support."""


class RequestTooLarge(BadRequest):
    """A request body is larger than the gateway takes."""


class RequestTooSlow(BadRequest):
    """A request did not arrive whole in time."""


class ReplyTooLarge(BadRequest):
    """A reply grew larger than the gateway gives; asking again would end the same way."""


class UnknownRoute(PolarError):
    """No dialect serves this method and path."""


class NoWebSocket(UnknownRoute):
    """A client asks for a WebSocket; told so in its own way, it sends its request at once."""


class Unauthorized(PolarError):
    """A request carries no known session key."""


class FidelityError(PolarError):
    """A law of token fidelity does not hold: training data would not be what was sampled."""

    exit_code = 8


class TrainingError(PolarError):
    """Training cannot go on."""

    exit_code = 9


class RankLost(TrainingError):
    """One of the processes that train together is gone, or does not answer."""


class SessionsBroken(PolarError):
    """Session after session ends without a grade, so the run would only burn time."""

    exit_code = 10
