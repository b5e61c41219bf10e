"""A mixture of the shape of Qwen3-30B-A3B whose router chooses as a trained one does; all else is random.

What a cache of experts does depends on nothing but which experts are chosen, and random matrices choose all alike:
no cache is better than its share then. Here the embedding of every token has a part in one direction, the mean, and a
part of its own. A router's row has a part along the mean, which sets how popular the expert is (Zipf's law over a
random order of each layer), and a random part, by which tokens differ. Tokens that follow one another choose alike
where attention shows them the same: queries and keys have a common part that the rotation turns into a preference for
what was said last, and the first layer writes much of what it saw into the stream. Later layers change the stream a
little, so that a layer's choice can be guessed one layer ahead.

Matrices are Q8_0, and experts are written row by row out of a pool of random blocks: the file is never in memory.
Needs the packages numpy and gguf.
"""

import shutil

from llama import Failed, say

try:
    import gguf
    import numpy as np

    MISSING = None
except ImportError as error:
    MISSING = str(error)

ARCH = "qwen3moe"
N_EMBD, N_HEAD, N_HEAD_KV, HEAD = 2048, 32, 4, 128
N_EXPERT, N_USED, N_FF = 128, 8, 768
ROPE_BASE, EPS, N_CTX = 1e6, 1e-6, 32768
BLOCK, BLOCK_BYTES = 32, 34
# Blocks of the pool that rows of experts are cut out of.
N_POOL = 1 << 16
# Disk space to keep free in addition to the files.
BYTES_FREE = 2e9

# Popularity of the expert of rank r: r ** -ZIPF, before the tokens' own part; SPREAD is the standard deviation of that
# part in the logits. A larger one makes experts more alike.
ZIPF, SPREAD = 1.0, 1.3
# The mean's part of an embedding's square.
MEAN = 0.5
# What layers add to the stream, as scales of their last matrices: the first layer's attention, that of others, experts.
ATTN_FIRST, ATTN, EXPERTS = 1.3, 0.5, 0.5
# Root mean square of queries' and keys' common part relative to a random part of 1, in the pairs that rotate fastest.
RECENT, N_RECENT = 2.0, 32
# Root mean square that attention and experts of scale 1 give, measured.
ATTN_RMS, EXPERTS_RMS = 0.3, 0.27


def row_bytes(n):
    return n // BLOCK * BLOCK_BYTES


def matrices(n_layer, n_vocab):
    """Name, rows, columns and number of matrices, in the order of the file; no columns stand for a vector in F32."""
    yield "token_embd.weight", n_vocab, N_EMBD, 1
    for i in range(n_layer):
        p = f"blk.{i}."
        yield p + "attn_norm.weight", N_EMBD, 0, 1
        yield p + "attn_q.weight", N_HEAD * HEAD, N_EMBD, 1
        yield p + "attn_k.weight", N_HEAD_KV * HEAD, N_EMBD, 1
        yield p + "attn_v.weight", N_HEAD_KV * HEAD, N_EMBD, 1
        yield p + "attn_q_norm.weight", HEAD, 0, 1
        yield p + "attn_k_norm.weight", HEAD, 0, 1
        yield p + "attn_output.weight", N_EMBD, N_HEAD * HEAD, 1
        yield p + "ffn_norm.weight", N_EMBD, 0, 1
        yield p + "ffn_gate_inp.weight", N_EXPERT, N_EMBD, 1
        yield p + "ffn_gate_exps.weight", N_FF, N_EMBD, N_EXPERT
        yield p + "ffn_up_exps.weight", N_FF, N_EMBD, N_EXPERT
        yield p + "ffn_down_exps.weight", N_EMBD, N_FF, N_EXPERT
    yield "output_norm.weight", N_EMBD, 0, 1
    yield "output.weight", n_vocab, N_EMBD, 1


def is_f32(name, n_cols):
    return not n_cols or name.endswith("ffn_gate_inp.weight")


def tensor_bytes(name, n_rows, n_cols, n):
    if is_f32(name, n_cols):
        return 4 * n_rows * max(n_cols, 1)
    return n * n_rows * row_bytes(n_cols)


def quantized(x):
    """The rows of `x` as Q8_0."""
    blocks = x.reshape(-1, BLOCK)
    d = np.abs(blocks).max(axis=1) / 127
    d16 = d.astype("<f2")
    scale = np.where(d == 0, 0, 1 / np.where(d == 0, 1, d))
    out = np.empty((len(blocks), BLOCK_BYTES), np.uint8)
    out[:, :2] = d16.view(np.uint8).reshape(-1, 2)
    out[:, 2:] = np.rint(blocks * scale[:, None]).astype(np.int8).view(np.uint8)
    return out.reshape(len(x), -1)


class Weights:
    """What is in each tensor."""

    def __init__(self, n_layer, n_vocab, seed, zipf, spread):
        self.rng = np.random.default_rng(seed)
        self.n_layer, self.n_vocab = n_layer, n_vocab
        self.zipf, self.spread = zipf, spread
        mean = self.rng.standard_normal(N_EMBD)
        # The direction of the mean, of length 1.
        self.mean = (mean / np.linalg.norm(mean)).astype(np.float32)
        pool = self.rng.standard_normal((N_POOL, BLOCK), dtype=np.float32)
        self.pool = quantized(pool.reshape(-1, N_EMBD)).reshape(N_POOL, BLOCK_BYTES)
        # One direction for queries and keys, in the pairs that rotate fastest: alike, they agree where they are near.
        self.recent = np.zeros(HEAD, np.float32)
        for half in (0, HEAD // 2):
            part = self.rng.standard_normal(N_RECENT)
            self.recent[half : half + N_RECENT] = part
        self.recent *= RECENT * np.sqrt(HEAD) / np.linalg.norm(self.recent)

    def normal(self, n_rows, n_cols, scale=1.0):
        """Rows that give products of root mean square `scale`."""
        x = self.rng.standard_normal((n_rows, n_cols), dtype=np.float32)
        return x * np.float32(scale / np.sqrt(n_cols))

    def along_mean(self, layer):
        """What the mean's direction has of a normalised stream: less in each layer, as all add to the rest."""
        one = (ATTN * ATTN_RMS) ** 2 + (EXPERTS * EXPERTS_RMS) ** 2
        added = (ATTN_FIRST * ATTN_RMS) ** 2 + layer * one
        return np.sqrt(N_EMBD * MEAN / (1 + added))

    def without_mean(self, x):
        return x - np.outer(x @ self.mean, self.mean)

    def router(self, layer):
        """Popularity along the mean, and a random part."""
        popularity = -self.zipf * np.log(np.arange(1, N_EXPERT + 1))
        popularity = self.rng.permutation(popularity - popularity.mean())
        along = self.along_mean(layer)
        rest = self.spread / np.sqrt(N_EMBD - along**2)
        noise = self.rng.standard_normal((N_EXPERT, N_EMBD)) * rest
        rows = np.outer(popularity / along, self.mean) + self.without_mean(noise)
        return rows.astype("<f4")

    def attention(self, layer, name, n_rows):
        """Queries and keys with the common part, or values that have nothing of the mean."""
        x = self.without_mean(self.normal(n_rows, N_EMBD))
        if name == "attn_v":
            return x
        common = np.tile(self.recent, n_rows // HEAD)
        return x + np.outer(common / self.along_mean(layer), self.mean)

    def chunks(self, name, n_rows, n_cols, n):
        """The bytes of a tensor, a part at a time."""
        kind, layer = name.removesuffix(".weight"), 0
        if name.startswith("blk."):
            _, layer, kind = kind.split(".")
        layer = int(layer)
        if kind == "ffn_gate_inp":
            yield self.router(layer)
        elif not n_cols:
            yield np.ones(n_rows, "<f4")
        elif kind in ("attn_q", "attn_k", "attn_v"):
            yield quantized(self.attention(layer, kind, n_rows))
        elif kind == "attn_output":
            scale = ATTN if layer else ATTN_FIRST
            yield quantized(self.normal(n_rows, n_cols, scale))
        elif kind == "token_embd":
            yield from self.embeddings(n_rows)
        elif kind == "output":
            for at in range(0, n_rows, 4096):
                yield quantized(self.normal(min(4096, n_rows - at), n_cols))
        else:
            scale = EXPERTS if kind == "ffn_down_exps" else 1.0
            yield from self.experts(n_rows, n_cols, n, scale / np.sqrt(n_cols))

    def embeddings(self, n_rows):
        along = self.mean * np.float32(np.sqrt(N_EMBD * MEAN))
        for at in range(0, n_rows, 4096):
            own = self.normal(min(4096, n_rows - at), N_EMBD, np.sqrt(N_EMBD))
            own = self.without_mean(own) * np.float32(np.sqrt(1 - MEAN))
            yield quantized(along + own)

    def experts(self, n_rows, n_cols, n, scale):
        """Each row begins at a place of its own in the pool."""
        pool = self.pool.copy()
        d = pool[:, :2].copy().view("<f2") * np.float32(scale)
        pool[:, :2] = d.astype("<f2").view(np.uint8)
        n_blocks = n_cols // BLOCK
        rows = np.lib.stride_tricks.sliding_window_view(
            pool.reshape(-1), n_blocks * BLOCK_BYTES
        )
        rows = rows[::BLOCK_BYTES]
        for _ in range(n):
            yield rows[self.rng.integers(len(rows), size=n_rows)]


class Vocabulary:
    """The tokens of another file, cut or padded."""

    def __init__(self, path, n_vocab):
        if MISSING:
            raise Failed(f"models need the packages numpy and gguf: {MISSING}")
        if not path.exists():
            raise Failed(f"{path} does not exist (--tokenizer)")
        fields = gguf.GGUFReader(path).fields
        prefix = "tokenizer."
        self.keys = {
            name: field for name, field in fields.items() if name.startswith(prefix)
        }
        self.tokens = self.keys["tokenizer.ggml.tokens"].contents()
        self.n_vocab = n_vocab or len(self.tokens)

    def write(self, writer):
        # Lists of one entry a token: what those have that are added.
        added = {"tokens": None, "scores": 0.0, "token_type": 5}
        for name, field in self.keys.items():
            value, last = field.contents(), name.rpartition(".")[2]
            if last.endswith("_token_id") and value >= self.n_vocab:
                continue
            if last in added:
                n_more = self.n_vocab - len(value)
                more = [
                    added[last] if last != "tokens" else f"<added_{i}>"
                    for i in range(n_more)
                ]
                value = list(value)[: self.n_vocab] + more
            if isinstance(value, list):
                writer.add_array(name, value)
            else:
                writer.add_key_value(name, value, field.types[0])


def size_of(n_layer, n_vocab):
    """Bytes of all tensors, and of all except the experts."""
    sizes = {m[0]: tensor_bytes(*m) for m in matrices(n_layer, n_vocab)}
    dense = sum(n for name, n in sizes.items() if not name.endswith("_exps.weight"))
    return sum(sizes.values()), dense


def write(path, n_layer, tokenizer, n_vocab=None, seed=1, zipf=ZIPF, spread=SPREAD):
    """Writes the model; returns how many bytes its tensors have."""
    vocabulary = Vocabulary(tokenizer, n_vocab)
    n_vocab = vocabulary.n_vocab
    n_bytes, _ = size_of(n_layer, n_vocab)
    free = shutil.disk_usage(path.parent).free
    if n_bytes + BYTES_FREE > free:
        raise Failed(
            f"{path.name} would be {n_bytes / 1e9:.1f} GB, and {path.parent} has {free / 1e9:.1f} GB left"
        )
    say(
        f"making {path.name}: {n_layer} layers, {n_vocab} tokens, {n_bytes / 1e9:.2f} GB"
    )
    part = path.with_suffix(".part")
    writer = gguf.GGUFWriter(part, ARCH)
    settings(writer, n_layer, n_vocab)
    vocabulary.write(writer)
    all_matrices = list(matrices(n_layer, n_vocab))
    for name, n_rows, n_cols, n in all_matrices:
        if is_f32(name, n_cols):
            shape = (n_rows, n_cols) if n_cols else (n_rows,)
            writer.add_tensor_info(
                name, shape, np.dtype(np.float32), 4 * int(np.prod(shape))
            )
        else:
            shape = (n_rows, row_bytes(n_cols))
            shape = (n, *shape) if n > 1 else shape
            q8_0 = gguf.GGMLQuantizationType.Q8_0
            writer.add_tensor_info(
                name, shape, np.dtype(np.uint8), int(np.prod(shape)), raw_dtype=q8_0
            )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    weights = Weights(n_layer, n_vocab, seed, zipf, spread)
    file = writer.fout[0]
    # Also the first tensor's place is a multiple.
    writer.write_padding(file, file.tell())
    for matrix in all_matrices:
        n_written = 0
        for chunk in weights.chunks(*matrix):
            file.write(np.ascontiguousarray(chunk).data)
            n_written += chunk.nbytes
        if n_written != tensor_bytes(*matrix):
            raise AssertionError(
                f"{matrix[0]}: {n_written} bytes instead of {tensor_bytes(*matrix)}"
            )
        writer.write_padding(file, n_written)
    writer.close()
    part.rename(path)
    return n_bytes


def settings(writer, n_layer, n_vocab):
    writer.add_name("random mixture")
    writer.add_context_length(N_CTX)
    writer.add_embedding_length(N_EMBD)
    writer.add_block_count(n_layer)
    # The length of a dense layer; the published model has none.
    writer.add_feed_forward_length(6144)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_HEAD_KV)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_expert_count(N_EXPERT)
    writer.add_expert_used_count(N_USED)
    writer.add_expert_feed_forward_length(N_FF)
    writer.add_vocab_size(n_vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
