"""Where the vLLM servers of `make test-vllm` are."""

import os

URL_ENV = "POLAR_TEST_VLLM_URL"
MODEL_ENV = "POLAR_TEST_VLLM_MODEL"
LONG_URL_ENV = "POLAR_TEST_VLLM_LONG_URL"
LONG_MODEL_ENV = "POLAR_TEST_VLLM_LONG_MODEL"
"""The same weights, declared to have a window that the longest prompts fit in."""


def needed(name: str) -> str:
    """Read a variable that `make test-vllm` sets."""
    value = os.environ.get(name)
    assert value, f"{name} is not set: run `make test-vllm`"
    return value
