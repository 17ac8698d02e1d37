"""Find the renderer of a model."""

from __future__ import annotations

from polar.errors import ConfigError, ModelMissing
from polar.rendering.base import Renderer
from polar.rendering.family import FamilyRenderer
from polar.rendering.generic import GenericRenderer
from polar.rendering.tokenizer import load_tokenizer

__all__ = ["load_renderer"]


def load_renderer(model: str, *, family: str | None = None) -> Renderer:
    """Load a model's tokenizer and the renderer that fits it.

    Args:
        model: A folder in Hugging Face format, or a hub id. Ids that the `renderers` package
            knows get its renderer of their family, all else the model's own chat template.
        family: A family of the `renderers` package (`qwen3`, `glm-4.5`, ...), for a folder or
            a fine-tune whose template is still that of its family.

    Raises:
        ModelMissing: There is no tokenizer or no chat template.
        ConfigError: The family is unknown or the tokenizer is not of it.
    """
    from renderers.base import MODEL_RENDERER_MAP

    chosen = family or MODEL_RENDERER_MAP.get(model)
    tokenizer = load_tokenizer(model)
    if chosen is not None:
        try:
            return FamilyRenderer(tokenizer, chosen)
        except (ValueError, AssertionError) as error:
            raise ConfigError(
                f"the tokenizer cannot be rendered as the family {chosen!r}: {error}",
                where=model,
                fix="Leave the family out to use the model's chat template.",
            ) from error
    try:
        return GenericRenderer(tokenizer)
    except ModelMissing as error:
        raise ModelMissing(error.what, where=model, fix=error.fix) from error
