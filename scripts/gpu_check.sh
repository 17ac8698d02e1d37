#!/bin/sh
# Checks training on a GPU in under five minutes; `--dry-run` goes through it in small on the CPU.
set -eu
cd "$(dirname "$0")/.."
if [ -z "${PYTHON:-}" ]; then
    PYTHON=python3
    [ -x .venv/bin/python ] && PYTHON=.venv/bin/python
fi
exec "$PYTHON" scripts/gpu_check.py "$@"
