"""Settings of the engines."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EmbeddedSettings", "VllmSettings"]

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


class VllmSettings(BaseModel):
    """A vLLM server, or several that serve the same model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    urls: tuple[str, ...] = ("http://127.0.0.1:8000",)
    """Addresses of the servers; a session stays at one of them."""
    model: str | None = None
    """Name the model is served under; absent: the first that the server lists."""
    api_key: str | None = None
    """Sent as a bearer token."""
    connect_timeout_s: Seconds = 10.0
    """Longest wait for a connection."""
    token_timeout_s: Seconds = 300.0
    """Longest silence of a running request."""
    update_timeout_s: Seconds = 600.0
    """Longest wait for a pause or a weight update."""
