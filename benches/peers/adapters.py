"""Adapters (LoRA) with random numbers for a GGUF model, as llama.cpp has them, and how many bytes they take.

Speed does not depend on the numbers. They are cut out of one pool, each adapter's from a place of its own, so
that hundreds of files are made as fast as the disk takes them. Needs the packages numpy and gguf.
"""
import contextlib, pathlib, shutil, tempfile

from llama import Failed, say

try:
    import gguf
    import numpy as np
    MISSING = None
except ImportError as error:
    MISSING = str(error)

# What people write for the matrices of a block.
MODULES = {"q": "attn_q", "k": "attn_k", "v": "attn_v", "o": "attn_output",
           "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_down"}
FILE_TYPES = {"f16": "float16", "f32": "float32"}
BYTES_MAX = 40e9
# Disk space to keep free in addition to them.
BYTES_FREE = 1e9
# From one adapter's place in the pool to the next one's: no multiple of a row, so that no matrix repeats.
STEP = 4099
# Rows that Sluice packs together, and the bytes of an element.
PANEL_ROWS = 16
ELEMENT_BYTES = {"int8": 1, "bf16": 2, "f16": 2, "f32": 4}


class Model:
    """What of a model's header adapters are made by."""

    def __init__(self, path):
        if MISSING:
            raise Failed(f"adapters need the packages numpy and gguf: {MISSING}")
        if not path.exists():
            raise Failed(f"{path} does not exist")
        try:
            reader = gguf.GGUFReader(path)
        except ValueError as error:
            raise Failed(f"{path}: {error}") from None
        self.path = path
        self.architecture = reader.fields["general.architecture"].contents()
        # By name: (columns, rows), as GGUF writes them.
        self.shapes = {tensor.name: [int(n) for n in tensor.shape] for tensor in reader.tensors}
        # A token reads every weight except for the embedding, of which it reads one row. Mixtures read less.
        is_tied = "output.weight" not in self.shapes
        self.bytes_per_token = sum(int(tensor.n_bytes) for tensor in reader.tensors
                                   if is_tied or tensor.name != "token_embd.weight")

    def matrices(self, modules):
        """The names of these modules' matrices."""
        ends = tuple(f".{MODULES[name]}.weight" for name in modules)
        found = [name for name, shape in self.shapes.items()
                 if name.startswith("blk.") and name.endswith(ends) and len(shape) == 2]
        if not found:
            raise Failed(f"{self.path.name} has none of {', '.join(MODULES[name] for name in modules)}")
        return found


def modules_of(text):
    """`all`, or a list such as q,k,v,o."""
    names = list(MODULES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in MODULES]
    if unknown:
        raise ValueError(f"{', '.join(unknown)}: the modules are {', '.join(MODULES)}, and all")
    return names


def write(folder, model, count, rank, modules, file_type="f16", seed=1):
    """`count` adapters in the folder; returns their paths."""
    matrices = model.matrices(modules)
    n_each = sum(rank * sum(model.shapes[name]) for name in matrices)
    dtype = np.dtype(FILE_TYPES[file_type])
    n_bytes = count * n_each * dtype.itemsize
    if n_bytes > BYTES_MAX:
        raise Failed(f"{count} adapters would be {n_bytes / 1e9:.1f} GB; at most {BYTES_MAX / 1e9:.0f} are made")
    free = shutil.disk_usage(folder).free
    if n_bytes + BYTES_FREE > free:
        raise Failed(f"{count} adapters would be {n_bytes / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB left")
    say(f"making {count} adapters of rank {rank} on {','.join(modules)} in {folder}: {n_bytes / 1e9:.2f} GB")
    random = np.random.default_rng(seed)
    # Every file is padded to the alignment, 32 bytes a tensor at most.
    n_pool = n_each + 32 * 2 * len(matrices) + STEP * count
    pool = (random.standard_normal(n_pool, dtype=np.float32) * np.float32(0.02)).astype(dtype)
    first = folder / "adapter-000.gguf"
    head, n_data = write_first(first, model, matrices, rank, pool)
    paths = [first]
    for i in range(1, count):
        path = folder / f"adapter-{i:03}.gguf"
        with path.open("wb") as file:
            file.write(head)
            at = STEP * i
            file.write(memoryview(pool[at:at + n_data // dtype.itemsize]).cast("B"))
        paths.append(path)
    return paths


def write_first(path, model, matrices, rank, pool):
    """One adapter; returns the bytes before its numbers, and how many bytes of numbers there are."""
    writer = gguf.GGUFWriter(path, model.architecture)
    writer.add_string("general.type", "adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", rank)
    at = 0
    for name in matrices:
        n_in, n_out = model.shapes[name]
        for end, shape in (("lora_a", (rank, n_in)), ("lora_b", (n_out, rank))):
            n = shape[0] * shape[1]
            writer.add_tensor(f"{name}.{end}", pool[at:at + n].reshape(shape))
            at += n
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    begin = gguf.GGUFReader(path).data_offset
    with path.open("rb") as file:
        head = file.read(begin)
    return head, path.stat().st_size - begin


def packed_bytes(path, dtype):
    """Bytes of an adapter as Sluice packs it: panels of 16 rows, those of int8 with a scale of two bytes a row."""
    total = 0
    for tensor in gguf.GGUFReader(path).tensors:
        n_cols, n_rows = (int(n) for n in tensor.shape)
        n_rows = -(-n_rows // PANEL_ROWS) * PANEL_ROWS
        total += n_rows * (n_cols * ELEMENT_BYTES[dtype] + (2 if dtype == "int8" else 0))
    return total


@contextlib.contextmanager
def folder_of(given, keep, model, count, rank, modules, seed):
    """Paths of adapters: `count` of the folder that is given, or new ones, which are removed unless they are kept."""
    if given:
        paths = sorted(given.glob("*.gguf"))[:count]
        if len(paths) < count:
            raise Failed(f"{given} has {len(paths)} adapters (*.gguf) instead of {count}")
        yield paths
        return
    folder = pathlib.Path(tempfile.mkdtemp(prefix="sluice-adapters-"))
    try:
        yield write(folder, model, count, rank, modules, seed=seed)
    finally:
        if keep:
            say(f"the adapters are in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
