"""What presets say differently where somebody sits at the terminal."""

from __future__ import annotations

from polar.harnesses.base import LaunchRequest

__all__ = ["approval_mode", "first_prompt", "typed"]


def approval_mode(request: LaunchRequest, *, edits: str) -> tuple[str, ...]:
    """Say whom the Gemini family asks: nobody, somebody at the terminal, or nobody for edits only.

    Args:
        request: The session.
        edits: Its name for the mode in which files may be edited, and nothing else, without asking.
    """
    if not request.asks:
        return ("--yolo",)
    return () if request.interactive else ("--approval-mode", edits)


def first_prompt(request: LaunchRequest, flag: str) -> tuple[str, ...]:
    """Give the task to a program's own screen, as one word: it may begin with `-`."""
    if not request.interactive or request.instruction is None:
        return ()
    return (f"{flag}={request.instruction}",)


def typed(request: LaunchRequest) -> str | None:
    """Say what the program reads as input: the task, or whatever somebody types."""
    return None if request.interactive else request.instruction
