"""GGUF files for tests: the vocabulary of one, with the smallest model around it."""

import os
import struct
from pathlib import Path

Value = tuple[int, bytes]
"""A value's type and its bytes, as a GGUF file has them."""

N_EMBD = 32


def shared() -> Path:
    """The folder with models and vocabularies: `SLUICE_SHARED`, or `shared` next to the checkout."""
    given = os.environ.get("SLUICE_SHARED")
    return Path(given) if given else Path(__file__).resolve().parents[4] / "shared"


def text(value: str) -> Value:
    return 8, _string(value)


def number(value: int) -> Value:
    return 4, struct.pack("<I", value)


def flag(value: bool) -> Value:
    return 7, struct.pack("<?", value)


def texts(values: list[str]) -> Value:
    return 9, struct.pack("<IQ", 8, len(values)) + b"".join(map(_string, values))


def numbers(values: list[int]) -> Value:
    return 9, struct.pack(f"<IQ{len(values)}i", 5, len(values), *values)


def floats(values: list[float]) -> Value:
    return 9, struct.pack(f"<IQ{len(values)}f", 6, len(values), *values)


def read(path: Path) -> dict[str, Value]:
    """What the file says of its vocabulary: the keys under `tokenizer.`."""
    data = path.read_bytes()
    (n_values,) = struct.unpack_from("<Q", data, 16)
    at, found = 24, {}
    for _ in range(n_values):
        (length,) = struct.unpack_from("<Q", data, at)
        key = data[at + 8 : at + 8 + length].decode()
        at += 8 + length
        (kind,) = struct.unpack_from("<I", data, at)
        end = _skip(data, at + 4, kind)
        if key.startswith("tokenizer."):
            found[key] = (kind, data[at + 4 : end])
        at = end
    return found


def pieces(vocabulary: dict[str, Value]) -> list[str]:
    """The tokens' names."""
    _, data = vocabulary["tokenizer.ggml.tokens"]
    (count,) = struct.unpack_from("<Q", data, 4)
    at, names = 12, []
    for _ in range(count):
        (length,) = struct.unpack_from("<Q", data, at)
        names.append(data[at + 8 : at + 8 + length].decode(errors="replace"))
        at += 8 + length
    return names


def write(path: Path, vocabulary: dict[str, Value], n_embd: int = N_EMBD) -> Path:
    """Writes a model of one layer, all zeros, with that vocabulary."""
    n_vocab = struct.unpack_from("<Q", vocabulary["tokenizer.ggml.tokens"][1], 4)[0]
    values: dict[str, Value] = {
        "general.architecture": text("llama"),
        "llama.block_count": number(1),
        "llama.context_length": number(64),
        "llama.embedding_length": number(n_embd),
        "llama.feed_forward_length": number(n_embd),
        "llama.attention.head_count": number(1),
        "llama.attention.layer_norm_rms_epsilon": (6, struct.pack("<f", 1e-5)),
        **vocabulary,
    }
    square = [n_embd, n_embd]
    tensors = {"token_embd.weight": [n_embd, n_vocab], "output_norm.weight": [n_embd]}
    for name in ("attn_norm", "ffn_norm"):
        tensors[f"blk.0.{name}.weight"] = [n_embd]
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        tensors[f"blk.0.{name}.weight"] = square
    header = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, (kind, value) in values.items():
        header += _string(key) + struct.pack("<I", kind) + value
    offset = 0
    for name, shape in tensors.items():
        header += _string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset)
        size = 4
        for length in shape:
            size *= length
        offset += -(-size // 32) * 32
    with path.open("wb") as file:
        file.write(header)
        file.write(b"\0" * (-len(header) % 32))
        # The weights are a hole in the file.
        file.truncate(file.tell() + offset)
    return path


def _string(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _skip(data: bytes, at: int, kind: int) -> int:
    sizes = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
    if kind in sizes:
        return at + sizes[kind]
    if kind == 8:
        return at + 8 + int(struct.unpack_from("<Q", data, at)[0])
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element in sizes:
        return at + int(count) * sizes[element]
    for _ in range(count):
        at = _skip(data, at, element)
    return at
