"""Reads generateContent, streamGenerateContent and countTokens requests."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from polar.dialects.earlier import Earlier
from polar.dialects.fields import Fields, parse_object, refuse
from polar.dialects.google_generate.contents import Said, read_contents, read_instruction
from polar.dialects.google_generate.spelling import child, spelled, whole_number
from polar.dialects.google_generate.tools import read_tools
from polar.types import Chat, Sampling

__all__ = ["parse_chat"]

_COUNTED = "generateContentRequest"
_MOST_CANDIDATES = 8
"""As many as Google gives."""

_READ = frozenset({"contents", "generationConfig", "systemInstruction", "toolConfig", "tools"})
_WITHOUT_EFFECT = frozenset({"labels", "model", "safetySettings", "serviceTier", "store"})
"""Accounting, filters that Polar has not, and the model, which the path names."""

_SAMPLING = frozenset(
    {"candidateCount", "maxOutputTokens", "seed", "stopSequences", "temperature", "topK", "topP"}
)
_SAMPLING_WITHOUT_EFFECT = frozenset({"mediaResolution", "thinkingConfig"})
"""Whether and how long the model thinks is its own; media are refused where they are."""

_SAMPLING_ONLY: dict[str, tuple[Any, ...]] = {
    "audioTimestamp": (False,),
    "enableEnhancedCivicAnswers": (False,),
    "frequencyPenalty": (0,),
    "presencePenalty": (0,),
    "responseLogprobs": (False,),
    "responseMimeType": ("text/plain",),
    "responseModalities": (["TEXT"], []),
}


def parse_chat(body: bytes, params: Mapping[str, str], earlier: Earlier[Said]) -> Chat:
    """Read a request, but for what an earlier one had.

    Args:
        body: The request's body.
        params: The model and the method that the path names.
        earlier: What was read of the session's requests.

    Raises:
        BadRequest: Not valid, or asks for something unsupported; names the field.
    """
    model, method = params.get("model"), params.get("method")
    request = spelled(parse_object(body))
    if method == "countTokens":
        request = _counted(request)
    request.refuse_others(_READ, without_effect=_WITHOUT_EFFECT)
    if not model:
        raise refuse("the path names no model", where="model")
    streams = method == "streamGenerateContent"
    tools, forced = read_tools(request)
    config = child(request, "generationConfig")
    wanted = None if config is None else whole_number(config, "candidateCount", least=1)
    if wanted is not None and wanted > _MOST_CANDIDATES:
        raise refuse(
            f"expected at most {_MOST_CANDIDATES}", where="generationConfig.candidateCount"
        )
    return Chat(
        model=model,
        messages=(*read_instruction(request), *read_contents(request, earlier)),
        tools=tools,
        sampling=_sampling(config),
        stream=streams,
        include_usage=streams,
        choices=wanted or 1,
        forced=forced,
    )


def _counted(request: Fields) -> Fields:
    """Find the request whose tokens are counted: the body itself, or a whole one inside it."""
    inner = child(request, _COUNTED)
    if inner is None:
        return request
    request.refuse_others({_COUNTED}, without_effect={"model"})
    return inner


def _sampling(config: Fields | None) -> Sampling:
    if config is None:
        return Sampling()
    config.refuse_others(_SAMPLING, without_effect=_SAMPLING_WITHOUT_EFFECT, only=_SAMPLING_ONLY)
    temperature = config.number("temperature", least=0, most=2)
    top_p = config.number("topP", least=0, most=1)
    return Sampling(
        temperature=1.0 if temperature is None else temperature,
        top_p=1.0 if top_p is None else top_p,
        top_k=whole_number(config, "topK", least=1),
        max_tokens=whole_number(config, "maxOutputTokens", least=1),
        stop=config.strings("stopSequences"),
        seed=whole_number(config, "seed"),
    )
