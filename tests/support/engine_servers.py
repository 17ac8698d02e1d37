"""Where the servers of `make test-vllm` and `make test-llamacpp` are."""

import os

URL_ENV = "POLAR_TEST_VLLM_URL"
MODEL_ENV = "POLAR_TEST_VLLM_MODEL"
LONG_URL_ENV = "POLAR_TEST_VLLM_LONG_URL"
LONG_MODEL_ENV = "POLAR_TEST_VLLM_LONG_MODEL"
"""The same weights, declared to have a window that the longest prompts fit in."""
LLAMACPP_URL_ENV = "POLAR_TEST_LLAMACPP_URL"


def needed(name: str) -> str:
    """Read a variable that the make target sets."""
    value = os.environ.get(name)
    assert value, f"{name} is not set: run `make test-vllm` or `make test-llamacpp`"
    return value
