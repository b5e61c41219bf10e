"""The native part of the wheel."""

from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any, TypeAlias, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

__version__: str

def main(arguments: Sequence[str]) -> int: ...

class Service:
    def __new__(cls, arguments: dict[str, Any], log: Callable[[str], None] | None = None) -> Service: ...
    def complete(
        self,
        arguments: dict[str, Any],
        processors: Sequence[Callable[..., Any]] = ...,
        stopping: Sequence[Callable[..., Any]] = ...,
    ) -> Answer: ...
    def chat(self, arguments: dict[str, Any], processors: Sequence[Callable[..., Any]] = ...) -> Answer: ...
    def prompt(self, arguments: dict[str, Any]) -> ChatPrompt: ...
    def rank(self, arguments: dict[str, Any]) -> Ranking: ...
    def load_adapter(self, name: str, path: str | PathLike[str], replaces: bool) -> None: ...
    def n_ctx(self, name: str | None = None) -> int: ...
    def n_running(self, name: str | None = None) -> int: ...
    def embed(
        self,
        tokens: Sequence[Sequence[int]],
        kind: str = "texts",
        *,
        normalize: bool = True,
        dimensions: int | None = None,
        model: str | None = None,
    ) -> NDArray[np.float32]: ...
    def model(self, name: str | None = None) -> Model: ...
    def context(self, name: str | None = None, all_logits: bool = False) -> Context: ...
    def sampler(self, arguments: dict[str, Any], name: str | None = None) -> Sampler: ...
    def close(self) -> None: ...

class RefusedError(Exception): ...

def check_regex(pattern: str) -> None: ...
def sampling_parameters() -> list[SamplingParameter]: ...

class SamplingParameter:
    names: list[str]
    is_integer: bool
    least: float
    most: float
    default: float

class Answer:
    def read(self, all: bool = False) -> list[Event]: ...
    def on_read(self, then: Callable[[list[Event], Exception | None], None], all: bool = False) -> None: ...

class Event:
    class Start(Event):
        name: str
        fingerprint: str
        created: int
        seed: int
        n_probs: int | None
        prompts: list[str]
        n: int

    class Scores(Event):
        at: int
        reports: list[Report]

    class Progress(Event):
        at: int
        total: int
        cached: int
        processed: int
        time_ms: float

    class Piece(Event):
        at: int
        token: int
        text: str
        deltas: list[Delta]
        report: Report | None
        timings: Timings | None
        ends: bool

    class End(Event):
        at: int
        reason: str
        stop: str | None
        deltas: list[Delta]
        timings: Timings

    class Total(Event):
        n_prompt: int
        n_cached: int
        n_predicted: int
        timings: Timings

class Delta:
    class Content(Delta):
        text: str

    class Reasoning(Delta):
        text: str

    class Call(Delta):
        index: int
        id: str
        name: str

    class Arguments(Delta):
        index: int
        text: str

class Likely:
    id: int
    logprob: float | None
    text: str
    bytes: bytes
    is_control: bool

class Report:
    chosen: Likely
    rank: int | None
    top: list[Likely]

class Timings:
    n_cached: int
    n_prompt: int
    prompt_ms: float
    n_predicted: int
    predicted_ms: float
    queued_ms: float
    n_preempted: int
    n_drafted: int
    n_accepted: int

class ChatPrompt:
    text: str
    tokens: list[int]
    stop: str | None

class Ranking:
    order: list[int]
    scores: list[float]
    name: str
    n_tokens: int

class Model:
    @staticmethod
    def open(path: str | PathLike[str], vocab_only: bool = False) -> Model: ...
    @property
    def path(self) -> str: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def n_ctx_train(self) -> int: ...
    @property
    def n_embd(self) -> int: ...
    @property
    def n_layer(self) -> int: ...
    @property
    def embeds(self) -> bool: ...
    @property
    def ranks(self) -> bool: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    @property
    def adds_bos(self) -> bool: ...
    def ends(self, token: int) -> bool: ...
    def is_control(self, token: int) -> bool: ...
    def piece(self, token: int) -> str: ...
    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def decode(self, tokens: Sequence[int], special: bool = False) -> bytes: ...
    def rank_prompt(self, query: str, document: str) -> list[int]: ...
    def metadata(self) -> dict[str, Any]: ...

class Sampler: ...

class Context:
    @property
    def tokens(self) -> NDArray[np.uint32]: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def n_ctx(self) -> int: ...
    def eval(self, tokens: Sequence[int]) -> None: ...
    def logits(self, all: bool = False) -> NDArray[np.float32]: ...
    def sample(self, sampler: Sampler, logits: NDArray[np.float32] | None = None) -> int: ...
    def truncate(self, len: int) -> int: ...
    def save(self) -> bytes: ...
    def restore(self, saved: bytes) -> None: ...

class CacheInfo(TypedDict):
    enabled: bool
    reason: str | None
    hits: int
    misses: int
    tokens_found: int
    parts: int
    bytes: int
    bytes_max: int

class Tokenizer:
    def __new__(
        cls, path: str | PathLike[str], cache_bytes: int = 67108864, part_bytes: int = 1024
    ) -> Tokenizer: ...
    @property
    def n_vocab(self) -> int: ...
    @property
    def bos(self) -> int | None: ...
    @property
    def eos(self) -> int | None: ...
    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]: ...
    def encode_batch(
        self,
        texts: Sequence[str],
        add_special: bool = True,
        parse_special: bool = False,
        threads: int | None = None,
    ) -> list[list[int]]: ...
    def count(self, text: str, add_special: bool = True, parse_special: bool = False) -> int: ...
    def decode(self, tokens: Sequence[int], special: bool = False, continuing: bool = False) -> str: ...
    def cache_info(self) -> CacheInfo: ...
    def cache_clear(self) -> None: ...

# The gate. `_Samples` is anything that numpy can convert to an array; integers are checked, so any type is accepted.
_Samples: TypeAlias = ArrayLike
_F32: TypeAlias = NDArray[np.float32]
_Columns: TypeAlias = tuple[NDArray[np.uint8], _F32, _F32, _F32, _F32, _F32]
_Measure: TypeAlias = tuple[str, str, str, str | None, str | None]

class GateSettings:
    def __new__(
        cls,
        *,
        measure: str,
        threshold: float,
        at_most: bool,
        hysteresis: float,
        hang_over: int,
        noise_floor: tuple[float, float, float] | None,
        wall: float,
        score: bool,
        num_bins: int,
        l1_threshold: float,
        ema_alpha: float,
    ) -> GateSettings: ...

class Gate:
    def __new__(cls, settings: GateSettings) -> Gate: ...
    def decide(self, array: _Samples, frame_size: int | None = None) -> _Columns: ...
    def reset(self) -> None: ...

class Controller:
    def __new__(cls, num_bins: int, l1_threshold: float, ema_alpha: float) -> Controller: ...
    def single(self, array: _Samples) -> float: ...
    def batch(self, array: _Samples, frame_size: int, gated: bool) -> _F32: ...
    def reset(self) -> None: ...
    def state(self) -> tuple[int, int, float]: ...

class GateStream:
    def __new__(
        cls,
        settings: GateSettings,
        *,
        frame_size: int,
        capacity: int,
        on_full: str,
        outputs: int,
        keep_frames: bool,
        isolate: bool,
    ) -> GateStream: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def push(self, array: _Samples) -> int | None: ...
    def pull(self, n_max: int, timeout: float | None) -> tuple[NDArray[np.uint64], _Columns, _F32 | None]: ...
    def scalings(self, n_max: int) -> _F32: ...
    def flush(self, timeout: float | None) -> bool: ...
    def telemetry(self) -> GateTelemetry: ...
    def reset_telemetry(self) -> None: ...
    def isolation(self) -> list[_Measure]: ...

class GateTelemetry:
    @property
    def pushed(self) -> int: ...
    @property
    def processed(self) -> int: ...
    @property
    def skipped(self) -> int: ...
    @property
    def dropped(self) -> int: ...
    @property
    def queued(self) -> int: ...
    @property
    def queued_samples(self) -> int: ...
    @property
    def outputs(self) -> int: ...
    @property
    def outputs_lost(self) -> int: ...
    @property
    def frames_per_second(self) -> float: ...
    @property
    def sparsity_pct(self) -> float: ...
    @property
    def buffer_fill_pct(self) -> float: ...
    @property
    def is_running(self) -> bool: ...
    @property
    def isolation_active(self) -> bool: ...
    @property
    def backpressure_active(self) -> bool: ...

def isolation_report(ring_bytes: int) -> list[_Measure]: ...
def cache_topology() -> dict[str, int]: ...
def plot(
    path: str | PathLike[str],
    frame_size: int,
    array: _Samples | None,
    verdict: NDArray[np.uint8],
    value: _F32,
    level: _F32,
    measure: str,
    overwrite: bool,
) -> None: ...
