"""The kinds of exercises of the trail family: find a file in two steps, then do something to it.

Each is a kind of the shell family on a file whose place the instruction does not tell: a note
names a folder, and the folder holds one file. So a session has three commands, and each needs
what the one before it printed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from polar.tasks.shell_kinds import HELDOUT_KINDS, TRAIN_KINDS, Kind
from polar.tasks.shell_scene import Scene

__all__ = ["HELDOUT_TRAILS", "TRAIN_TRAILS"]

_SAYS = (
    "Read {c} with `cat`: it tells a folder. Look into that folder with `ls`: it has one file. ",
    "Use `cat` on {c} to learn the name of a folder, and `ls` to see the one file in it. ",
)


def _trails(kinds: Iterable[Kind]) -> tuple[Kind, ...]:
    return tuple(_trail_to(kind) for kind in kinds if _is_about_one_file(kind))


def _is_about_one_file(kind: Kind) -> bool:
    """Leave out what needs a second file or a folder that is there: the trail itself has both."""
    return "{a}" in kind.command and not any(word in kind.command for word in ("{c}", "{d}"))


def _trail_to(kind: Kind) -> Kind:
    return Kind(
        f"trail-{kind.name}",
        command=kind.command.replace("{a}", "{d}/{a}"),
        says=tuple(
            way + says.replace("{a}", "that file")
            for way, says in zip(_SAYS, kind.says, strict=True)
        ),
        lays=lambda s: {**kind.lays(_moved(s)), s.c: f"{s.d}\n"},
        checks=lambda s: kind.checks(_moved(s)),
        before=("cat {c}", "ls {d}"),
    )


def _moved(scene: Scene) -> Scene:
    return replace(scene, a=f"{scene.d}/{scene.a}")


TRAIN_TRAILS = _trails(TRAIN_KINDS)
HELDOUT_TRAILS = _trails(HELDOUT_KINDS)
