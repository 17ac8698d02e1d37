"""What is said: an opening of so many tokens, replies with their tokens, results of tools."""

from dataclasses import dataclass, replace

from gateway_parts.engine import RESULT_TOKENS
from gateway_parts.load import Turns
from polar.rendering import Renderer
from polar.types import Message

_WORDS = "the quick brown fox jumps over a lazy dog and 42 more lines of code in this file; "
_REPLY = "The answer is in the file that I read before, so let me look at line {} once more. "


@dataclass(frozen=True)
class Material:
    """Texts for conversations with one model's tokenizer."""

    renderer: Renderer
    sampled_tokens: int
    """Of a long reply; a short one has 16."""

    def turns(self, prompt_tokens: int, *, count: int) -> Turns:
        """Turns whose prompts have so many tokens in the mean."""
        growth = count * (self.sampled_tokens + RESULT_TOKENS) // 2
        reply = self._reply(self.sampled_tokens)
        opening = self._opening(max(prompt_tokens - growth, 100))
        return Turns(opening, reply[0], self._result(), count, self.sampled_tokens)

    def short_turns(self, prompt_tokens: int, *, count: int) -> Turns:
        """Turns that add little to the prompt, from so many tokens on."""
        reply = self._reply(16)
        return Turns(self._opening(prompt_tokens), reply[0], "ok", count, 16)

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

    def _opening(self, tokens: int) -> str:
        marked = f"[{tokens} tokens] "
        return marked + self.renderer.decode(self._ids(_WORDS * (1 + tokens // 8))[:tokens])

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
