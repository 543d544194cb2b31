"""The response object of Open Responses and the events of its streams, as types.

Written from the published specification (https://www.openresponses.org): what a member must be, and
that it must be there. Further members are allowed.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, TypeAdapter

__all__ = ["EVENTS", "Response"]

Status = Literal["in_progress", "completed", "incomplete"]


class OutputText(BaseModel):
    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class Refusal(BaseModel):
    type: Literal["refusal"]
    refusal: str


class Message(BaseModel):
    type: Literal["message"]
    id: str
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[Annotated[OutputText | Refusal, Field(discriminator="type")]]


class FunctionCall(BaseModel):
    type: Literal["function_call"]
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class ReasoningItem(BaseModel):
    type: Literal["reasoning"]
    id: str
    summary: list[Any]


Item = Annotated[Message | FunctionCall | ReasoningItem, Field(discriminator="type")]


class FunctionTool(BaseModel):
    type: Literal["function"]
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ToolChoice(BaseModel):
    type: Literal["function"]
    name: str


class TextFormat(BaseModel):
    type: Literal["text", "json_object"]


class JsonSchemaFormat(BaseModel):
    type: Literal["json_schema"]
    name: str
    description: str | None
    strict: bool


class TextField(BaseModel):
    format: Annotated[TextFormat | JsonSchemaFormat, Field(discriminator="type")]


class Reasoning(BaseModel):
    effort: str | None
    summary: str | None


class InputDetails(BaseModel):
    cached_tokens: int


class OutputDetails(BaseModel):
    reasoning_tokens: int


class Usage(BaseModel):
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_tokens_details: InputDetails
    output_tokens_details: OutputDetails


class IncompleteDetails(BaseModel):
    reason: str


class Error(BaseModel):
    code: str
    message: str


class Response(BaseModel):
    """A whole response; everything here must be there, null or not."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: str
    incomplete_details: IncompleteDetails | None
    model: str
    previous_response_id: str | None
    instructions: str | None
    output: list[Item]
    error: Error | None
    tools: list[FunctionTool]
    tool_choice: Literal["none", "auto", "required"] | ToolChoice
    truncation: Literal["auto", "disabled"]
    parallel_tool_calls: bool
    text: TextField
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    temperature: float
    reasoning: Reasoning | None
    usage: Usage | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    store: bool
    background: bool
    service_tier: str
    metadata: Any
    safety_identifier: str | None
    prompt_cache_key: str | None


# ---- events ------------------------------------------------------------------------------------


class _Event(BaseModel):
    sequence_number: int


class WithResponse(_Event):
    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.failed",
        "response.incomplete",
    ]
    response: Response


class WithItem(_Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: Item


class _InItem(_Event):
    item_id: str
    output_index: int


class WithPart(_InItem):
    type: Literal["response.content_part.added", "response.content_part.done"]
    content_index: int
    part: Annotated[OutputText | Refusal, Field(discriminator="type")]


class TextDelta(_InItem):
    type: Literal["response.output_text.delta"]
    content_index: int
    delta: str
    logprobs: list[Any]


class TextDone(_InItem):
    type: Literal["response.output_text.done"]
    content_index: int
    text: str
    logprobs: list[Any]


class ArgumentsDelta(_InItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDone(_InItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


#: Reads one event of a stream.
EVENTS: TypeAdapter[Any] = TypeAdapter(
    Annotated[
        WithResponse | WithItem | WithPart | TextDelta | TextDone | ArgumentsDelta | ArgumentsDone,
        Field(discriminator="type"),
    ]
)
