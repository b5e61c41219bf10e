"""Models of published shapes with random weights, cut to a few layers and a vocabulary of 16,384.

The families and the names of their tensors are those of the tests' small models (`tests/fixtures`);
here are the sizes that the published `config.json` have. Weights are cut out of one pool of random
numbers: what they are changes no speed.
"""
import pathlib, sys
from types import SimpleNamespace

import gguf
import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/fixtures"))
import hybrids, models  # noqa: E402

N_VOCAB = 16384
COMMON = dict(n_vocab=N_VOCAB)
QWEN = {"full_attention_interval": 4, "rope.freq_base": 1e7, "rope.dimension_sections": [11, 11, 10, 0]}
SHAPES = {
    "qwen3.5-4b": dict(arch="qwen35", layers=8, attn=[3, 7], keys=QWEN, sizes=dict(
        n_embd=2560, n_head=16, n_kv=4, head=256, n_rot=64, n_ff=9216, n_key=16, n_value=32, state=128,
        conv=4, output=False)),
    "qwen3.5-35b-a3b": dict(arch="qwen35moe", layers=4, attn=[3], keys=QWEN, sizes=dict(
        n_embd=2048, n_head=16, n_kv=2, head=256, n_rot=64, n_ff=None, n_key=16, n_value=32, state=128,
        conv=4, expert=256, used=8, n_ff_exp=512, n_ff_shexp=512)),
    "gemma-4-26b-a4b": dict(arch="gemma4", layers=6, windows=[0, 1, 2, 3, 4], sizes=dict(
        n_embd=2816, n_head=16, n_kv=[8, 8, 8, 8, 8, 2], head=512, head_swa=256, n_ff=2112, expert=128,
        used=8, n_ff_exp=704, fused=True, n_shared=0, n_pl=0, has_scale=True, output=False), keys={
        "attention.sliding_window": 1024, "final_logit_softcapping": 30.0}),
    "gpt-oss-20b": dict(arch="gpt-oss", layers=4, experts=(32, 4), sizes=dict(
        n_embd=2880, n_head=64, n_kv=8, head=64, n_ff=2880), keys={
        **models.gpt_oss_keys, "attention.sliding_window": 128}),
    "lfm2-1.2b": dict(arch="lfm2", layers=8, keys={"shortconv.l_cache": 3, "rope.freq_base": 1e6}, sizes=dict(
        n_embd=2048, n_head=32, n_kv=[0, 0, 8, 0, 0, 8, 0, 0], head=64, n_ff=8192)),
    "granite-4-h-tiny": dict(arch="granitehybrid", layers=8, keys={
        **hybrids.granite, "attention.scale": 0.0078125, "logit_scale": 6.0}, sizes=dict(
        n_embd=1536, n_head=12, n_kv=[0, 0, 0, 0, 0, 4, 0, 0], head=128, n_ff=512, expert=64, used=6,
        n_ff_shexp=1024, group=1, n_mamba=48, mamba=64, state=128, conv=4, output=False)),
    "glm-4.7-flash": dict(arch="deepseek2", layers=4, sizes=dict(
        n_embd=2048, n_head=20, q_rank=768, rank=512, nope=192, n_rot=64, value=256, split=True, n_ff=10240,
        expert=64, used=4, n_ff_exp=1536, n_dense=1, n_shared=1), keys={
        "rope.freq_base": 1e6, "expert_gating_func": 2, "expert_weights_norm": True,
        "expert_weights_scale": 1.8, "expert_group_count": 1, "expert_group_used_count": 1}),
}


def tensors_of(arch, layers, attn=(), windows=(), experts=None, keys={}, sizes={}):
    """Settings, and names, shapes and kinds of tensors."""
    if arch in hybrids.FAMILIES:
        s, some = SimpleNamespace(**{**hybrids.SIZES, **COMMON, **sizes}), attn or windows
        settings = hybrids.settings_of(arch, layers, some, keys, s)
        return settings, hybrids.FAMILIES[arch](arch, layers, some, s)
    s = {**models.SIZES, **COMMON, **sizes}
    settings = models.settings_of(arch, layers, keys, experts, s)
    return settings, models.tensors_of(arch, layers, experts, keys, models.words(arch, ""), **s)


class Pool:
    """Random values of any number, of which large tensors are made without drawing each."""

    def __init__(self):
        self.rng = np.random.default_rng(1)
        self.values = self.rng.standard_normal(1 << 24).astype(np.float32)

    def draw(self, shape, kind):
        if isinstance(shape, np.ndarray):
            return shape
        if np.prod(shape) < 1 << 20 or kind not in ("matrix", "narrow", "wide"):
            return hybrids.draw(self.rng, shape, kind)
        spread = {"wide": 4.0, "narrow": 0.3}.get(kind, 1.5) / np.sqrt(shape[-1])
        start = int(self.rng.integers(len(self.values)))
        pool = (np.roll(self.values, start) * np.float32(spread)).astype(np.float16)
        return np.resize(pool, shape)


def write(path, name, context=16384):
    """Writes a shape in F16; vectors, routers and convolutions in F32."""
    shape = SHAPES[name]
    settings, tensors = tensors_of(**shape)
    w = models.begin(path, shape["arch"], {**settings, "context_length": context}, N_VOCAB)
    listed = []
    for tensor, dims, *kind in tensors:
        kind = kind[0] if kind else "norm" if len(dims) == 1 else "matrix"
        is_f32 = isinstance(dims, np.ndarray) or kind in (
            "norm", "bias", "select", "sink", "f32", "decay", "step", "seven", "router")
        listed.append((dims, kind))
        dims = dims.shape if isinstance(dims, np.ndarray) else dims
        dtype = np.dtype(np.float32 if is_f32 else np.float16)
        w.add_tensor_info(tensor, dims, dtype, int(np.prod(dims)) * dtype.itemsize)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_ti_data_to_file()
    pool = Pool()
    for dims, kind in listed:
        w.write_tensor_data(pool.draw(dims, kind))
    w.close()
