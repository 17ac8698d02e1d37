"""Serves the demo's model with vLLM's CPU build and runs the tests that need a server.

    python scripts/test_vllm.py VLLM_VENV [pytest arguments]

`make test-vllm` installs vLLM first. Two servers are started on free ports and killed at the end:
the model as it is, and the same weights with a declared window that the longest prompts fit in.
What a model says beyond the window it was trained for is of no use, and none is made of it.
"""

from __future__ import annotations

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from polar.config import environment
from polar.models import resolve

MODEL = "smollm2-135m"
WINDOW = 8192
LONG_WINDOW = 32768
READY_S = 600.0
OPTIONS = (
    *("--enforce-eager", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
    *("--max-num-seqs", "16"),
)


def main(venv: Path, arguments: list[str]) -> int:
    """Start the servers, run the tests, stop the servers; give the tests' exit status."""
    model = resolve(MODEL, cache=environment().cache)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as servers:
        long_model = _with_long_window(model, Path(folder) / f"{MODEL}-long")
        short = servers.enter_context(_server(venv, model, WINDOW))
        long = servers.enter_context(_server(venv, long_model, LONG_WINDOW))
        _wait(short)
        _wait(long)
        found = {
            "POLAR_TEST_VLLM_URL": short.url,
            "POLAR_TEST_VLLM_MODEL": str(model),
            "POLAR_TEST_VLLM_LONG_URL": long.url,
            "POLAR_TEST_VLLM_LONG_MODEL": str(long_model),
        }
        command = [sys.executable, "-m", "pytest", "-m", "vllm", *arguments]
        return subprocess.run(command, env=os.environ | found, check=False).returncode


@dataclass(frozen=True, slots=True)
class _Server:
    process: subprocess.Popen[bytes]
    url: str
    log: Path


def _with_long_window(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for path in model.iterdir():
        (folder / path.name).symlink_to(path)
    config = json.loads((model / "config.json").read_text())
    (folder / "config.json").unlink()
    (folder / "config.json").write_text(
        json.dumps(config | {"max_position_embeddings": LONG_WINDOW})
    )
    return folder


@contextmanager
def _server(venv: Path, model: Path, window: int) -> Iterator[_Server]:
    port = _free_port()
    log = venv / f"server-{window}.log"
    with log.open("w") as output:
        process = subprocess.Popen(
            [
                *(str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
                *("--model", str(model), "--port", str(port)),
                *("--max-model-len", str(window), "--dtype", _dtype(), *OPTIONS),
            ],
            env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_SERVER_DEV_MODE": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            yield _Server(process, f"http://127.0.0.1:{port}", log)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _dtype() -> str:
    """Choose float32 on processors that compute with bfloat16 through it: ten times as slow."""
    known = Path("/proc/cpuinfo")
    if platform.machine() != "x86_64" or not known.exists():
        return "auto"
    quick = any(name in known.read_text() for name in ("avx512_bf16", "amx_bf16"))
    return "auto" if quick else "float32"


def _wait(server: _Server) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.process.poll() is not None:
            sys.exit(f"vLLM ended with {server.process.returncode}; see {server.log}")
        try:
            if httpx.get(f"{server.url}/health", timeout=5.0).is_success:
                return
        except httpx.HTTPError:
            time.sleep(1.0)
    sys.exit(f"vLLM was not ready in {READY_S:.0f} s; see {server.log}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
