"""The objects of requests and replies, with llama-cpp-python's names."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

JsonType = int | str | bool | list[Any] | dict[str, Any] | None


class CompletionUsage(TypedDict):
    """The number of tokens of a request."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: NotRequired[dict[str, int]]


class EmbeddingUsage(TypedDict):
    """The number of tokens of embedded texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(TypedDict):
    """A vector; without pooling, one for each token."""

    index: int
    object: Literal["embedding"]
    embedding: list[float] | list[list[float]]


class CreateEmbeddingResponse(TypedDict):
    """The vectors of texts."""

    object: Literal["list"]
    model: str
    data: list[Embedding]
    usage: EmbeddingUsage


class CompletionLogprobs(TypedDict):
    """Lists with an entry for each token."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class CompletionChoice(TypedDict):
    """A text."""

    text: str
    index: int
    logprobs: CompletionLogprobs | None
    finish_reason: Literal["stop", "length"] | None


class CreateCompletionResponse(TypedDict):
    """The reply to a completion, or a chunk of one."""

    id: str
    object: Literal["text_completion"]
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: NotRequired[CompletionUsage]
    system_fingerprint: NotRequired[str]
    seed: NotRequired[int]
    timings: NotRequired[dict[str, Any]]


class ChatCompletionMessageToolCallFunction(TypedDict):
    """A function, and its arguments as JSON."""

    name: str
    arguments: str


class ChatCompletionMessageToolCall(TypedDict):
    """A call of a function."""

    id: str
    type: Literal["function"]
    function: ChatCompletionMessageToolCallFunction


class ChatCompletionResponseMessage(TypedDict):
    """An answer."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCall]]
    function_call: NotRequired[ChatCompletionMessageToolCallFunction]


class ChatCompletionTopLogprobToken(TypedDict):
    """A token that could have been chosen."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatCompletionLogprobToken(ChatCompletionTopLogprobToken):
    """A token, and the likeliest in its place."""

    top_logprobs: list[ChatCompletionTopLogprobToken]


class ChatCompletionLogprobs(TypedDict):
    """The tokens of an answer."""

    content: list[ChatCompletionLogprobToken] | None


class ChatCompletionResponseChoice(TypedDict):
    """An answer, and why it ended."""

    index: int
    message: ChatCompletionResponseMessage
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionResponse(TypedDict):
    """The reply to a conversation."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    choices: list[ChatCompletionResponseChoice]
    usage: CompletionUsage
    system_fingerprint: NotRequired[str]
    seed: NotRequired[int]
    timings: NotRequired[dict[str, Any]]


class ChatCompletionMessageToolCallChunk(TypedDict):
    """A part of a call."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: dict[str, str]


class ChatCompletionStreamResponseDelta(TypedDict, total=False):
    """What a chunk adds to an answer."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: str
    tool_calls: list[ChatCompletionMessageToolCallChunk]
    function_call: ChatCompletionMessageToolCallFunction


class ChatCompletionStreamResponseChoice(TypedDict):
    """What a chunk adds, and why the answer ended."""

    index: int
    delta: ChatCompletionStreamResponseDelta
    logprobs: ChatCompletionLogprobs | None
    finish_reason: str | None


class CreateChatCompletionStreamResponse(TypedDict):
    """A chunk of an answer."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    choices: list[ChatCompletionStreamResponseChoice]
    usage: NotRequired[CompletionUsage]


class ChatCompletionFunction(TypedDict):
    """A function that the model may call."""

    name: str
    description: NotRequired[str]
    parameters: dict[str, JsonType]


class ChatCompletionTool(TypedDict):
    """A tool that the model may use."""

    type: Literal["function"]
    function: ChatCompletionFunction


class ChatCompletionRequestResponseFormat(TypedDict):
    """What an answer has to be: `text`, `json_object` or `json_schema`."""

    type: str
    schema: NotRequired[JsonType]
    json_schema: NotRequired[dict[str, JsonType]]


class ChatCompletionRequestMessageContentPartText(TypedDict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class ChatCompletionRequestSystemMessage(TypedDict):
    """Instructions."""

    role: Literal["system"]
    content: str | None


class ChatCompletionRequestUserMessage(TypedDict):
    """A message of the user."""

    role: Literal["user"]
    content: str | list[ChatCompletionRequestMessageContentPartText] | None


class ChatCompletionRequestAssistantMessage(TypedDict):
    """An earlier answer."""

    role: Literal["assistant"]
    content: NotRequired[str | None]
    tool_calls: NotRequired[list[ChatCompletionMessageToolCall]]
    function_call: NotRequired[ChatCompletionMessageToolCallFunction]


class ChatCompletionRequestToolMessage(TypedDict):
    """The result of a call."""

    role: Literal["tool"]
    content: str | None
    tool_call_id: str


class ChatCompletionRequestFunctionMessage(TypedDict):
    """The result of a call, in the former form."""

    role: Literal["function"]
    content: str | None
    name: str


ChatCompletionRequestMessage = (
    ChatCompletionRequestSystemMessage
    | ChatCompletionRequestUserMessage
    | ChatCompletionRequestAssistantMessage
    | ChatCompletionRequestToolMessage
    | ChatCompletionRequestFunctionMessage
)
ChatCompletionMessageToolCalls = list[ChatCompletionMessageToolCall]
ChatCompletionToolChoiceOption = str | dict[str, Any]

CreateCompletionStreamResponse = CreateCompletionResponse
Completion = CreateCompletionResponse
CompletionChunk = CreateCompletionResponse
ChatCompletion = CreateChatCompletionResponse
ChatCompletionChunk = CreateChatCompletionStreamResponse
ChatCompletionStreamResponse = CreateChatCompletionStreamResponse
ChatCompletionMessage = ChatCompletionResponseMessage
ChatCompletionChoice = ChatCompletionResponseChoice
ChatCompletionChunkChoice = ChatCompletionStreamResponseChoice
ChatCompletionChunkDelta = ChatCompletionStreamResponseDelta
ChatCompletionFunctionCall = ChatCompletionMessageToolCallFunction
ChatCompletionResponseFunctionCall = ChatCompletionMessageToolCallFunction
EmbeddingData = Embedding
