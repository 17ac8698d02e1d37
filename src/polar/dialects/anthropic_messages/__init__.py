"""Anthropic Messages, streaming and not."""

from polar.dialects.anthropic_messages.dialect import AnthropicMessages

__all__ = ["AnthropicMessages"]
