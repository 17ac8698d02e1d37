"""Google generateContent, streaming and not, with token counts."""

from polar.dialects.google_generate.dialect import GoogleGenerate

__all__ = ["GoogleGenerate"]
