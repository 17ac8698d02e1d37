"""OpenAI Chat Completions, streaming and not."""

from polar.dialects.openai_chat.dialect import OpenAIChat

__all__ = ["OpenAIChat"]
