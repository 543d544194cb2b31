"""The fields of a request that every ``response`` repeats, in the form that the API gives them.

Typed clients check these members: each is there, also if the request did not have it, and tools and
formats have all members of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llama_py.dialects.fields import Fields, wrong_type
from llama_py.params import SamplingParams

__all__ = ["repeated_fields"]

#: Members of a tool and of a format that are always there, by type; what else was sent stays.
_TOOLS: Mapping[Any, Mapping[str, Any]] = {
    "function": {"description": None, "parameters": None, "strict": None},
    "custom": {"description": None, "format": {"type": "text"}},
}
_FORMATS: Mapping[Any, Mapping[str, Any]] = {
    "json_schema": {"name": "response", "description": None, "schema": {}, "strict": False},
}


def repeated_fields(
    fields: Fields, model: str, sampling: SamplingParams, effort: str | None
) -> dict[str, Any]:
    """Members of every ``response`` to a request.

    Args:
        model: the name that the response gives.
        sampling: what is sampled with, by the request or by default.
        effort: of the reasoning, or None.

    Raises:
        RequestError: one of them is of the wrong type.
    """
    metadata = fields.json("metadata")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise wrong_type("metadata", "an object", metadata)
    reasoning = fields.fields("reasoning")
    return {
        "background": False,
        "frequency_penalty": float(sampling.frequency_penalty),
        "instructions": fields.text("instructions"),
        "max_output_tokens": fields.integer("max_output_tokens", 1),
        "max_tool_calls": fields.integer("max_tool_calls", 0),
        "metadata": metadata or {},
        "model": model,
        "parallel_tool_calls": fields.flag("parallel_tool_calls") is not False,
        "presence_penalty": float(sampling.presence_penalty),
        "previous_response_id": fields.text("previous_response_id"),
        "prompt_cache_key": fields.text("prompt_cache_key"),
        "reasoning": {
            "effort": effort,
            "summary": None if reasoning is None else reasoning.text("summary"),
        },
        "safety_identifier": fields.text("safety_identifier"),
        "service_tier": "default",
        "store": fields.flag("store") is not False,
        "temperature": sampling.temperature,
        "text": _text(fields.json("text") or {}),
        "tool_choice": fields.json("tool_choice") or "auto",
        "tools": [_tool(tool) for tool in fields.json("tools") or []],
        "top_logprobs": fields.integer("top_logprobs", 0) or 0,
        "top_p": sampling.top_p,
        "truncation": fields.text("truncation") or "disabled",
        "user": fields.text("user"),
    }


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    kind = tool.get("type")
    if kind == "namespace":
        # A namespace within it was left out, and its members were not read.
        inner = [
            each if each.get("type") == "namespace" else _tool(each)
            for each in tool.get("tools") or []
        ]
        return {**tool, "tools": inner}
    return {**(_TOOLS.get(kind, {}) if isinstance(kind, str) else {}), **tool}


def _text(text: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: value for name, value in text.items() if value is not None}
    form = {"type": "text", **given.get("format", {})}
    known = {name: value for name, value in form.items() if value is not None}
    return {**given, "format": {**_FORMATS.get(form["type"], {}), **known}}
