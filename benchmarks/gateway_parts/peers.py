"""The peers: what they are, and a virtual environment of its own for each.

Polar depends on none of them. `install` makes `FOLDER/NAME/bin/python` with the pinned version.
"""

import subprocess
import sys
from pathlib import Path

PEERS = {
    "rllm": "rllm-model-gateway==0.1.0",
    "openenv": "openenv==0.10.0",
    "litellm": "litellm[proxy]==1.92.2",
}


def python_of(folder: Path, name: str) -> Path:
    return folder / name / "bin" / "python"


def missing(folder: Path, name: str) -> str | None:
    """Say how to get a peer that is not installed."""
    if python_of(folder, name).exists():
        return None
    return f"{PEERS[name]} is not installed; get it with: python benchmarks/gateway.py --install"


def install(folder: Path) -> None:
    for name, requirement in PEERS.items():
        if missing(folder, name) is None:
            continue
        print(f"installing {requirement} into {folder / name}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", folder / name], check=True)
        pip = [python_of(folder, name), "-m", "pip", "install", "--quiet"]
        try:
            subprocess.run([*pip, "--disable-pip-version-check", requirement], check=True)
        except subprocess.CalledProcessError:
            python_of(folder, name).unlink()  # half an environment must not be taken for a whole
            raise
