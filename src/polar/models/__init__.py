"""Models: from a name, a folder or a hub id to a folder in Hugging Face format."""

from polar.models.manifest import check_folder
from polar.models.resolving import names, resolve

__all__ = ["check_folder", "names", "resolve"]
