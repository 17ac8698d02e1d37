"""Settings of the engines."""

from __future__ import annotations

import os
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from polar.errors import ConfigError

__all__ = [
    "EmbeddedSettings",
    "LlamaCppSettings",
    "OpenAISettings",
    "ServerSettings",
    "SglangSettings",
    "VllmSettings",
]

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0.0)]


class EmbeddedSettings(BaseModel):
    """The engine that samples from the trainer's own model, in its process."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the matrix products. `float32` agrees with the trainer to about 1e-5 in a
    logprob; `bfloat16` samples faster and agrees to a few 1e-2."""
    max_concurrency: Count = 16
    """Requests sampled at once, and conversations whose keys and values are kept."""
    max_context: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt and reply in tokens; absent: the model's own window."""
    prefill_tokens: Count = 1024
    """Most prompt tokens computed in one step; running replies wait that long at most."""
    chunk_tokens: Count = 8
    """Sampled tokens handed over together, after the first; more of them, less overhead."""
    threads: Count | None = None
    """Threads of a matrix product; absent: what the process uses."""


class ServerSettings(BaseModel):
    """A server, or several that serve the same model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: Annotated[tuple[str, ...], Field(min_length=1)]
    """Addresses of the servers; a session stays at one of them while it serves."""
    model: str | None = None
    """Name the model is served under; absent: the first that the server lists."""
    api_key: str | None = None
    """Sent as a bearer token."""
    api_key_env: str | None = None
    """The environment variable that holds it, in place of `api_key`: a key in a config is kept in
    every run folder."""
    connect_timeout_s: Seconds = 10.0
    """Longest wait for a connection."""
    token_timeout_s: Seconds = 300.0
    """Longest silence of a running request."""
    update_timeout_s: Seconds = 600.0
    """Longest wait for a pause or a weight update."""
    check_interval_s: Seconds = 5.0
    """Time between two checks of a server's health."""
    check_timeout_s: Seconds = 10.0
    """Longest wait for the answer to a check."""
    probe_timeout_s: Seconds = 120.0
    """Longest wait for the tokens that a server must sample before it serves (again)."""
    failed_checks: Count = 3
    """Checks in a row after which a server that does not answer is given up and its running calls
    go to another."""
    backoff_s: Seconds = 30.0
    """Longest time between two tries to reach a lost server; they begin at a tenth of a second."""
    lost_timeout_s: Seconds = 60.0
    """How long a call waits for a server to come back when none serves."""
    tries: Count = 4
    """How often a call is tried without a new token before it fails."""

    def key(self) -> str | None:
        """Give the key that servers ask for, if any.

        Raises:
            ConfigError: The environment has no such variable.
        """
        if self.api_key_env is None:
            return self.api_key
        if not (key := os.environ.get(self.api_key_env)):
            raise ConfigError(
                f"the environment variable {self.api_key_env} is not set",
                where="engine.settings.api_key_env",
                fix="Set it to the server's key, or name another one.",
            )
        return key


class VllmSettings(ServerSettings):
    """A vLLM server, or several that serve the same model."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)] = ("http://127.0.0.1:8000",)
    """Addresses of the servers; a session stays at one of them while it serves."""


class LlamaCppSettings(ServerSettings):
    """A llama.cpp server, or several that serve the same model."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)] = ("http://127.0.0.1:8080",)
    """Addresses of the servers; a session stays at one of them while it serves."""
    chunk_tokens: Count = 16
    """Most tokens sampled in one request; the first ones are fewer, so that a reply begins soon."""


class OpenAISettings(ServerSettings):
    """A server of OpenAI's Chat Completions, or several that serve the same model."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)] = ("http://127.0.0.1:8000",)
    """Addresses of the servers, without `/v1`."""
    max_context: Annotated[int, Field(ge=2)] | None = None
    """Longest prompt and reply in tokens; absent: as the server's list of models tells it."""
    text_only: bool = False
    """Whether a server that tells no token ids is taken, for sessions of which only the text is
    kept. Nothing of them can be trained on."""
    limit_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    """What the server calls the most tokens of a reply."""


class SglangSettings(ServerSettings):
    """An SGLang server, or several that serve the same model."""

    urls: Annotated[tuple[str, ...], Field(min_length=1)] = ("http://127.0.0.1:30000",)
    """Addresses of the servers; a session stays at one of them while it serves."""
    model: str | None = None
    """Path or name of the model that must be served; absent: whatever is served."""
