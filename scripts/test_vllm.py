"""Serves the demo's model with vLLM's CPU build and runs the tests that need a server.

    python scripts/test_vllm.py VLLM_VENV [pytest arguments]

`make test-vllm` installs vLLM first. The server is started on a free port and killed at the end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

from polar.config import environment
from polar.models import resolve

MODEL = "smollm2-135m"
READY_S = 600.0
OPTIONS = (
    *("--enforce-eager", "--enable-scale-out", "--logprobs-mode", "processed_logprobs"),
    *("--max-model-len", "8192", "--max-num-seqs", "16"),
)


def main(venv: Path, arguments: list[str]) -> int:
    """Start the server, run the tests, stop the server; give the tests' exit status."""
    model = resolve(MODEL, cache=environment().cache)
    port = _free_port()
    log = venv / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                *(str(venv / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
                *("--model", str(model), "--port", str(port), *OPTIONS),
            ],
            env=os.environ | {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_SERVER_DEV_MODE": "1"},
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(server, url, log)
            return subprocess.run(
                [sys.executable, "-m", "pytest", "-m", "vllm", *arguments],
                env=os.environ | {"POLAR_TEST_VLLM_URL": url, "POLAR_TEST_VLLM_MODEL": str(model)},
                check=False,
            ).returncode
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"vLLM ended with {server.returncode}; see {log}")
        try:
            if httpx.get(f"{url}/health", timeout=5.0).is_success:
                return
        except httpx.HTTPError:
            time.sleep(1.0)
    sys.exit(f"vLLM was not ready in {READY_S:.0f} s; see {log}")


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
