"""Where the vLLM server of `make test-vllm` is."""

import os

URL_ENV = "POLAR_TEST_VLLM_URL"
MODEL_ENV = "POLAR_TEST_VLLM_MODEL"


def needed(name: str) -> str:
    """Read a variable that `make test-vllm` sets."""
    value = os.environ.get(name)
    assert value, f"{name} is not set: run `make test-vllm`"
    return value
