"""Gets a model from the hub, without hanging where the hub cannot be reached."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from polar.errors import ModelMissing

__all__ = ["from_hub", "hub_reachable"]

_REACH_S = 3.0
_PATTERNS = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.model")


def hub_reachable(timeout_s: float = _REACH_S) -> bool:
    """Ask whether the hub answers, in bounded time even where the name look-up hangs."""
    answered = threading.Event()

    def ask() -> None:
        import httpx
        from huggingface_hub import constants

        try:
            httpx.head(constants.ENDPOINT, timeout=timeout_s)
        except (httpx.HTTPError, OSError):
            return
        answered.set()

    asking = threading.Thread(target=ask, daemon=True, name="hub-reachable")
    asking.start()
    asking.join(timeout_s)
    return answered.is_set()


def from_hub(hub_id: str, *, progress: Callable[[str], None]) -> Path:
    """Take a model from the local hub cache, else download it (an interrupted download goes on).

    Raises:
        ModelMissing: It is not in the cache, and the hub cannot be reached or has no such model.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(hub_id, allow_patterns=list(_PATTERNS), local_files_only=True)
        )
    except LocalEntryNotFoundError:
        pass
    if not hub_reachable():
        raise ModelMissing(
            "the model is not in the local hub cache, and the hub cannot be reached",
            where=hub_id,
            fix="Connect to the network, or name a local folder in Hugging Face format.",
        )
    progress(f"downloading {hub_id} from the hub")
    try:
        return Path(snapshot_download(hub_id, allow_patterns=list(_PATTERNS)))
    except (HfHubHTTPError, LocalEntryNotFoundError) as error:
        raise ModelMissing(
            f"the hub did not give the model: {str(error).splitlines()[0]}",
            where=hub_id,
            fix="Check the id; a private model needs a token (`hf auth login`).",
        ) from error
