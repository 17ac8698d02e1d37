"""Check training on a GPU: FlexAttention, the gradient tests, and a tree with a long prompt.

    scripts/gpu_check.sh                 a random model of 0.5B, 8 replies to a prompt of 16,000
    scripts/gpu_check.sh --size 4b
    scripts/gpu_check.sh --dry-run       all of it in small, on the CPU

Prints a line for each check and exits with 1 if one failed, with 2 if there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

ROOT = Path(__file__).parents[1]
TESTS = ["test_gradients.py", "test_flex.py", "test_pieces.py", "test_recurrent.py"]
HEAD = 64  # of the random models of 0.5B; what matters is that it is a usual one


def flex(device: str) -> bool:
    """Try FlexAttention, forward and backward."""
    from polar.train.kernels import flex_obstacle

    obstacle = flex_obstacle(torch.device(device), HEAD)
    say(f"FlexAttention: {obstacle or 'works, forward and backward'}")
    return obstacle is None


def gradient_tests(device: str, few: bool) -> bool:
    """Run the tests that compare trees with separate sequences."""
    paths = [str(ROOT / "tests/unit/train" / name) for name in TESTS]
    chosen = ["-k", "merged and llama or ancestors"] if few else []
    command = [sys.executable, "-m", "pytest", "-q", "--no-header", "--timeout=200"]
    return run([*command, *chosen, *paths], POLAR_TEST_DEVICE=device)


def tree(*arguments: str) -> bool:
    """Run the tree benchmark; in float32 it fails by itself if gradients differ."""
    script = str(ROOT / "benchmarks/tree.py")
    return run([sys.executable, script, *arguments, "--threads", "1"])


def run(command: list[str], **environment: str) -> bool:
    """Run a command from the repository's root and show what it prints."""
    return not subprocess.call(command, cwd=ROOT, env=os.environ | environment)


def say(text: str) -> None:
    """Print at once, between what commands print."""
    print(text, flush=True)


def checks(options: argparse.Namespace) -> list[bool]:
    """Do everything, whether or not something before it failed."""
    if options.dry_run:
        small = ("--random", "tiny", "--prompt", "300", "--reply", "20", "--repeat", "1")
        flex("cpu")
        return [gradient_tests("cpu", few=True), tree(*small)]
    size = ("--random", options.size, "--device", "cuda", "--piece", "4096", "--repeat", "2")
    exact = ("--random", "0.5b", *size[2:])
    return [
        flex("cuda"),
        gradient_tests("cuda", few=False),
        tree(*exact, "--prompt", "4000"),
        tree(*size, "--prompt", "16000", "--dtype", "bfloat16"),
    ]


def main() -> int:
    """Parse the arguments, check, and sum up."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="0.5b", choices=["0.5b", "1.5b", "4b"])
    parser.add_argument("--dry-run", action="store_true", help="small, on the CPU")
    options = parser.parse_args()
    if not (options.dry_run or torch.cuda.is_available()):
        say("no GPU that PyTorch can use; `--dry-run` goes through the checks on the CPU")
        return 2
    where = "CPU (dry run)" if options.dry_run else torch.cuda.get_device_name()
    say(f"{where}, torch {torch.__version__}")
    started = time.monotonic()
    results = checks(options)
    failed = results.count(False)
    verdict = "all passed" if not failed else f"{failed} of {len(results)} failed"
    say(f"{verdict} in {time.monotonic() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
