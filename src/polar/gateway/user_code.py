"""Finds a user's function by the name that the config gives it."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from pydantic import AfterValidator

from polar.errors import ConfigError
from polar.tasks.problems import Refused

__all__ = ["FunctionName", "load_function"]


def _well_formed(name: str) -> str:
    module, _, function = name.rpartition(":")
    if not module or not function.isidentifier():
        raise Refused(
            f"`{name}` does not name a function",
            fix="Write MODULE:FUNCTION or FILE.py:FUNCTION.",
        )
    if not module.endswith(".py"):
        return name
    return f"{Path(module).expanduser().absolute()}:{function}"


FunctionName = Annotated[str, AfterValidator(_well_formed)]
"""`module:function`, or `file.py:function`; a path is absolute once read."""


def load_function(name: str) -> Callable[..., Any]:
    """Import a function of a user's module or file; runs the code in there.

    Raises:
        ConfigError: It cannot be imported, or is no function.
    """
    place, _, attribute = name.rpartition(":")
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else import_module(place)
        found: Callable[..., Any] = getattr(module, attribute)
    except Exception as error:
        raise ConfigError(
            f"the function cannot be imported: {error!r}",
            where=name,
            fix="Check that the module is installed or the file is there, and that it imports.",
        ) from error
    if not callable(found):
        raise ConfigError("what is named is no function", where=name, fix="Name a function.")
    return found


def _from_file(path: Path) -> ModuleType:
    spec = spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
