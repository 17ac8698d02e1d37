"""The gateway's benchmark measures all it claims to, and says what it could not measure."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from polar.rendering.tiny import tiny_tokenizer

pytestmark = pytest.mark.timeout(300)

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gateway.py"
SMALL = {
    "--prompt-tokens": 300,
    "--sampled-tokens": 20,
    "--clients": 2,
    "--turns": 3,
    "--seconds": 0.5,
    "--rounds": 1,
    "--token-ms": 1,
    "--session-turns": 60,
    "--memory-calls": 48,
}
SERVERS = ("direct", "polar")


def run(folder: Path, *more: str) -> tuple[str, list[dict]]:
    """Run the script and return its tables and its figures."""
    tiny_tokenizer().save_pretrained(folder / "model")
    options = SMALL | {"--model": folder / "model", "--output": folder / "out", "--peers": folder}
    words = [str(word) for pair in options.items() for word in pair]
    ran = subprocess.run(
        [sys.executable, SCRIPT, *words, *more], stdout=subprocess.PIPE, check=True, text=True
    )
    return ran.stdout, [json.loads(line) for line in (folder / "out").read_text().splitlines()]


def test_every_part_is_measured_and_an_absent_peer_is_named_with_how_to_get_it(tmp_path):
    tables, rows = run(tmp_path, "--servers", *SERVERS, "relay", "rllm")

    measured = {(row["what"], row["target"]) for row in rows}
    by_all = {(what, name) for what in ("latency", "stream", "session") for name in SERVERS}
    of_some = {("latency", "relay"), ("memory", "polar"), ("storage", "polar")}
    assert measured == by_all | of_some
    assert "NOT MEASURED: rllm: rllm-model-gateway==0.1.0 is not installed" in tables
    assert "--install" in tables
