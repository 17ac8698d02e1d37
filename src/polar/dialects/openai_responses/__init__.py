"""OpenAI Responses, streaming and not, with the tools and items that Codex uses."""

from polar.dialects.openai_responses.dialect import OpenAIResponses

__all__ = ["OpenAIResponses"]
