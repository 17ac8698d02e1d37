"""What is said: an opening of so many tokens, replies with their tokens, results of tools."""

from dataclasses import dataclass, replace
from typing import Literal

from gateway_parts.engine import RESULT_TOKENS
from gateway_parts.load import SALT, Turns
from polar.rendering import Renderer
from polar.types import Message

_WORDS = "the quick brown fox jumps over a lazy dog and 42 more lines of code in this file; "
_BLOCK = f"{_WORDS}see {SALT} for what comes before it; "
_SYSTEM_SHARE = 0.75
_REPLY = "The answer is in the file that I read before, so let me look at line {} once more. "


Openings = Literal["shared", "distinct"]
"""Whether conversations have their system prompt, three quarters of an opening, in common, as the
sessions of a harness have, or no stretch of text longer than two dozen words."""


@dataclass(frozen=True)
class Material:
    """Texts for conversations with one model's tokenizer."""

    renderer: Renderer
    sampled_tokens: int
    """Of a long reply; a short one has 16."""

    def turns(self, prompt_tokens: int, *, count: int, openings: Openings = "shared") -> Turns:
        """Turns whose prompts have so many tokens in the mean."""
        growth = count * (self.sampled_tokens + RESULT_TOKENS) // 2
        texts = self._opening(max(prompt_tokens - growth, 100), openings)
        reply = self._reply(self.sampled_tokens)[0]
        return Turns(*texts, reply, self._result(), count, self.sampled_tokens)

    def short_turns(self, prompt_tokens: int, *, count: int) -> Turns:
        """Turns that add little to the prompt, from so many tokens on."""
        texts = self._opening(prompt_tokens, "shared")
        return Turns(*texts, self._reply(16)[0], "ok", count, 16)

    def replies(self) -> list[tuple[str, list[int], list[str]]]:
        """What the engine needs of the replies: text, ids, and the text of each id."""
        return [self._reply(16), self._reply(self.sampled_tokens)]

    def _reply(self, tokens: int) -> tuple[str, list[int], list[str]]:
        """Take a reply of exactly so many tokens, the one that ends the turn included."""
        text = "".join(map(_REPLY.format, range(tokens)))
        ids = self._ids(text)[: tokens - 1]
        pieces = [self.renderer.decode([token_id]) for token_id in ids]
        stop = self.renderer.stop_token_ids[0]
        return self.renderer.decode(ids), [*ids, stop], [*pieces, ""]

    def _opening(self, tokens: int, openings: Openings) -> tuple[str, str]:
        """Write a system prompt and a first message of so many tokens together."""
        system_tokens = int(tokens * _SYSTEM_SHARE)
        system = self._long(_WORDS if openings == "shared" else _BLOCK, system_tokens)
        return system, f"[{tokens} tokens] " + self._long(_BLOCK, tokens - system_tokens)

    def _long(self, block: str, tokens: int) -> str:
        """Repeat a block to about so many tokens; the salt counts as what it is replaced by."""
        sample = block.replace(SALT, "0f1e2d3c00a1")
        return block * max(1, round(tokens / len(self._ids(sample))))

    def _result(self) -> str:
        return self.renderer.decode(self._ids("result of a tool, line by line; " * 20)[:24])

    def _ids(self, text: str) -> list[int]:
        """Ids of a text, without what the template puts around it."""
        whole = self.renderer.render([Message("user", text)], ())
        none = self.renderer.render([Message("user", "")], ())
        pairs = enumerate(zip(whole, none, strict=False))
        head = next(number for number, (ours, theirs) in pairs if ours != theirs)
        return whole[head : head + len(whole) - len(none)]


def streamed(turns: Turns) -> Turns:
    return replace(turns, stream=True)
