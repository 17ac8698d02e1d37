"""From recorded calls to training data: the token tree, builders, the fidelity check, tables."""

from __future__ import annotations

from polar.trajectory.builders import BuilderName, BuildPolicy, Built, build
from polar.trajectory.credit import calls_in_order, credit, returns, reward_of
from polar.trajectory.fidelity import FidelityReport, TapeRecord, check, check_tape
from polar.trajectory.table import (
    SCHEMA,
    SCHEMA_VERSION,
    from_table,
    schema_version,
    to_table,
)
from polar.trajectory.tree import ROOT, Segment, TokenTree

__all__ = [
    "ROOT",
    "SCHEMA",
    "SCHEMA_VERSION",
    "BuildPolicy",
    "BuilderName",
    "Built",
    "FidelityReport",
    "Segment",
    "TapeRecord",
    "TokenTree",
    "build",
    "calls_in_order",
    "check",
    "check_tape",
    "credit",
    "from_table",
    "returns",
    "reward_of",
    "schema_version",
    "to_table",
]
