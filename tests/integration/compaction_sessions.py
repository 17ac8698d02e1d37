"""Sessions of real harnesses whose history becomes full before their work is done."""

from dataclasses import dataclass
from pathlib import Path

from scripted_sessions import Turn, made, played, run, say

from polar.cli.harness_check import PlayedSession
from polar.types import Message

KNOWN = "The folder was looked at, and hello.txt is still to be written."
TWICE = ("compaction", "compaction")
"""Forks of a session in which the request for a summary and the use of it are histories anew."""


@dataclass(frozen=True)
class Way:
    """How the history of a harness becomes full, and how its summary is asked for."""

    harness: str
    asks: str
    window: int
    """Tokens that the harness believes the model to hold."""
    chars: int
    """What each command prints: random, so that hardly two characters are a token."""
    tag: str = "summary"
    """What the summary is wrapped in."""
    same: int = 0
    """How many of the first commands are the same: Gemini CLI summarises what was said before
    something that a user says, as which it says that the agent is in a loop."""
    forks: tuple[str, ...] = TWICE


WAYS = {
    "claude_agent_sdk": Way("claude_agent_sdk", "CRITICAL: Respond with TEXT ONLY", 60_000, 25_000),
    "claude_code": Way("claude_code", "CRITICAL: Respond with TEXT ONLY", 60_000, 25_000),
    "codex": Way("codex", "CONTEXT CHECKPOINT COMPACTION", 40_000, 25_000),
    "gemini_cli": Way(
        *("gemini_cli", "distilling chat history", 150_000, 25_000),
        tag="state_snapshot",
        same=5,
        forks=("edited_message", "compaction", "compaction", "compaction"),
    ),
    "opencode": Way("opencode", "context summarization agent", 40_000, 15_000),
    "qwen_code": Way(
        *("qwen_code", "the component that summarizes", 120_000, 8_000),
        tag="state_snapshot",
        forks=("compaction", "edited_message"),
    ),
    "qwen_code, which asks again in another way": Way(
        *("qwen_code", "the component that summarizes", 120_000, 8_000),
        forks=(*TWICE, "edited_message"),
    ),
}
"""Qwen Code's first request for a summary extends the history that it is about, and in the second
turn after one Qwen Code puts its list of skills before the summary, which forks once more.

It extends it only while there is room for the request itself: some 12,000 tokens lie between a
history that is full and one that is too full. Its terminal now and then loses the end of what a
command printed: steps are of any length up to that, which has to be less than the room."""


async def play_full(way: Way, folder: Path) -> PlayedSession:
    """Play a session in which commands print much, a summary is made, and a file is written."""
    harness = made(way.harness, context_window=way.window)
    after: list[Message] = []

    def script(turn: Turn) -> Message:
        if way.asks in turn.prompt:
            return say(f"<{way.tag}>\n{KNOWN}\n</{way.tag}>")
        if KNOWN in turn.prompt:
            after.append(say("Done.") if after else run(harness, "echo hello > hello.txt"))
            return after[-1]
        varied = "" if turn.replies < way.same else f" # {turn.replies}"
        return run(harness, f"base64 -w0 /dev/urandom | head -c {way.chars}{varied}")

    return await played(harness, folder, script)
