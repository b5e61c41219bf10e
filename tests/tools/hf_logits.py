#!/usr/bin/env python3
"""Compares `sluice convert` and the engine with transformers: a tiny random model of every family, all logits.

    hf_logits.py PROGRAM                    every case as it is, then saved again by transformers, then its variants
    hf_logits.py PROGRAM --keys             each key of every config.json deleted, and changed
    hf_logits.py PROGRAM [--keys] NAME ...  these cases

PROGRAM is `cargo build --release -p sluice-tests --example folder_logits`'s. A case is a file of
`hosted/cli/tests/cli/families/` or a folder of `hosted/cli/tests/cli/convert/`: its config.json, as published, makes a
model of transformers' own class with random weights. VARIANTS switch on what the case leaves off. The folder goes
through `sluice convert` in F32; logits (or an encoder's hidden states, a reranker's score) of random tokens must agree
within 4e-4 of their range, those of encoders within 5e-6.

With `--keys` transformers reads the changed config.json with the weights of the case. Where its result changes, so must
Sluice's, or the folder must be refused. Where it cannot be made from these weights, or is not defined, nothing is asked.
A warning that names the key is enough where nothing changes.

The exit code is the number of differences, at most 100. Made with torch 2.15 and transformers 5.24, on CPU.
Needs torch, transformers, safetensors and gguf.
"""

import copy
import json
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import hf_families
import lora_families
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file

TOLERANCE = 4e-4
# Encoders compute in f32 alone; GELU's tanh approximation would be 1e-4 away.
ENCODERS = ("bert", "eurobert", "gemma-embedding", "jina-bert", "modern-bert", "nomic-bert", "xlm-r")
OF_ENCODERS = 5e-6
N_TOKENS = 100
# Their classes take SiLU whatever config.json says, or also outside of feed-forward networks: ReLU is refused.
SILU_ONLY = ("gpt-oss", "granitehybrid", "qwen35", "qwen3next")
# Cases without a class in transformers: their code is published with the models.
NO_CLASS = ("jina-bert-v2", "jina-bert-v2-code", "nomic-bert-moe")
ENCODER = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": 1,
}
# Cases whose published spelling is read by published code alone, in the spelling of transformers' own class.
NATIVE = {
    "nomic-bert": ENCODER | {"architectures": ["NomicBertModel"], "model_type": "nomic_bert", "vocab_size": 168},
    "jina-bert-v3": ENCODER | {
        "architectures": ["JinaEmbeddingsV3Model"], "model_type": "jina_embeddings_v3", "vocab_size": 84,
    },
}

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
# Settings that the cases leave off, by case and name.
VARIANTS = {
    "llama3": {
        "biases": {"attention_bias": True, "mlp_bias": True},
        "heads": {"head_dim": 32, "num_key_value_heads": 1},
        "tied": {"tie_word_embeddings": True},
        "linear": {"rope_scaling": {"rope_type": "linear", "factor": 4.0}},
        "yarn": {"rope_scaling": YARN},
        "llama3": {"rope_scaling": LLAMA3},
    },
    "qwen3": {"biases": {"attention_bias": True}, "yarn": {"rope_scaling": YARN}},
    "smollm3": {
        "base": {"rope_theta": None},
        "window": {"use_sliding_window": True, "sliding_window": 32, "layer_types": None},
        "listed": {
            "use_sliding_window": True, "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
        },
    },
    "exaone4-full": {"window": {"sliding_window": None}},
    "granite-swa": {"rotation": {"layer_rope_theta": [10000.0, 0, 0, 10000.0]}},
    "olmo3": {"base": {"rope_theta": None, "rope_scaling": None}},
    "ernie4_5": {"base": {"rope_theta": None}},
    "qwen2moe": {"biases": {"qkv_bias": False}},
    "deepseek3": {"scores": {"scoring_func": None}, "norm": {"norm_topk_prob": None}},
    "glm4-moe-lite": {"norm": {"norm_topk_prob": None}, "vocabulary": {"scoring_func": None}},
    "glm4moe": {"norm": {"norm_topk_prob": None}, "qk": {"use_qk_norm": True}},
    "granitehybrid-dense": {"width": {"shared_intermediate_size": 64}},
    "minimax-m2": {"rotation": {"rotary_dim": 8}},
    "modern-bert": {"silu": {"hidden_activation": "silu"}},
    "bert": {"tanh": {"hidden_act": "gelu_new"}},
    "qwen3vl": {"biases": {"attention_bias": True}},
    "qwen2vl": {"yarn": {"rope_scaling": YARN | {"mrope_section": [2, 3, 3]}}},
}


class Sluice:
    """The program, which stays for all folders."""

    def __init__(self, program, scratch):
        self.out, self.file = scratch / "out.f32", scratch / "model.gguf"
        command = [program, str(self.file)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(self, folder, ids, pre):
        self.file.unlink(missing_ok=True)
        request = {"folder": str(folder), "out": str(self.out), "ids": ids, "pre": pre}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        if "error" not in answer:
            answer["values"] = np.fromfile(self.out, np.float32).reshape(-1, answer["columns"])
        return answer


def text_of(config):
    return config.get("text_config", config)


def changed(config, changes):
    config = copy.deepcopy(config)
    for key, value in changes.items():
        if value is None:
            text_of(config).pop(key, None)
        else:
            text_of(config)[key] = value
    return config


def model_of(config, folder):
    """A model of the class that config.json names, without weights."""
    (folder / "config.json").write_text(json.dumps(config))
    about = transformers.AutoConfig.from_pretrained(folder)
    about._attn_implementation = "eager"
    text = about.get_text_config()
    if (getattr(text, "pad_token_id", None) or 0) >= text.vocab_size:
        text.pad_token_id = None
    cls = getattr(transformers, config["architectures"][0])
    torch.manual_seed(7)
    with torch.no_grad():
        model = cls._from_config(about, dtype=torch.float32)
    return as_published(model)


def as_published(model):
    """Nemotron-H's published code limits the time step by time_step_limit. transformers 5.24 takes time_step_min for its lower
    end, which is for initial values (its #48989)."""
    for module in model.modules():
        if model.config.model_type == "nemotron_h" and hasattr(module, "time_step_limit"):
            module.time_step_limit = tuple(getattr(model.config, "time_step_limit", None) or (0.0, float("inf")))
    return model.eval()


def randomize(model):
    """Weights of a size at which every part counts."""
    torch.manual_seed(5)
    buffers = [(name, x) for name, x in model.named_buffers() if name.endswith("bias")]
    with torch.no_grad():
        for name, x in [*model.named_parameters(), *buffers]:
            kind = name.rsplit(".", 2)[-2] if name.count(".") else ""
            if x.ndim < 2 or x.numel() == max(x.shape):
                around = x.mean() if name.endswith(("A_log", "D", "dt_bias", "layer_scalar")) else 0.0
                if "norm" in kind.lower() and name.endswith("weight"):
                    around = x.mean()
                x.copy_(around + 0.2 * torch.randn_like(x))
            else:
                columns = x.shape[-1] if "embed" not in name else 4
                x.copy_(torch.randn_like(x) * columns**-0.5)


def reference(model, ids):
    """All logits, or what the model has instead."""
    with torch.no_grad():
        out = model(input_ids=torch.tensor([ids]), **({"use_cache": False} if model.config.model_type != "bert" else {}))
    values = out["logits"] if "logits" in out else out["last_hidden_state"]
    return values.reshape(-1, values.shape[-1]).float().numpy()


def difference(ours, theirs):
    """The largest difference, in parts of the range."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not np.isfinite(ours).all():
        return float("inf")
    size = theirs.max() - theirs.min() if theirs.size > 1 else np.abs(theirs).max()
    return float(np.abs(ours - theirs).max() / max(size, 1e-30))


def tokens(config, n_vocab):
    rng = np.random.default_rng(3)
    special = {v for k, v in text_of(config).items() if k.endswith("_token_id") and isinstance(v, int)}
    special |= {v for k, v in config.items() if k.endswith("_token_id") and isinstance(v, int)}
    n = min(N_TOKENS, text_of(config).get("max_position_embeddings", N_TOKENS) - 4)
    ids = [i for i in range(5, n_vocab - 8) if i not in special]
    return [int(i) for i in rng.choice(ids, n)]


class Case:
    def __init__(self, path, scratch):
        self.name, self.case = path.stem, lora_families.case_of(path)
        # Without what comes after the model: pooling, dense layers.
        files = self.case.get("files", {})
        self.case["files"] = {name: text for name, text in files.items() if name == "README.md"}
        self.config = NATIVE.get(self.name) or self.case["config"]
        self.folder = scratch / "case" / self.name
        self.pre = self.case.get("pre") or hf_families.PRE.get(self.case.get("tokenizer"), "qwen2")

    def prepare(self, config):
        """The folder with its tokenizer, and a model with random weights."""
        self.folder.mkdir(parents=True, exist_ok=True)
        case = self.case | {"config": config, "tensors": {}}
        import shutil

        shutil.rmtree(self.folder)
        hf_families.folder_of(case, self.folder)
        (self.folder / "model.safetensors").unlink()
        model = model_of(config, self.folder)
        randomize(model)
        return model

    def scored(self, theirs):
        """Logits as a reranker that answers yes or no turns them into a score."""
        if "reranker" not in self.name:
            return theirs
        tokenizer = json.loads((self.folder / "tokenizer.json").read_text())
        ids = {t["content"]: t["id"] for t in tokenizer["added_tokens"]} | tokenizer["model"]["vocab"]
        yes, no = ids["yes"], ids["no"]
        return 1 / (1 + np.exp(theirs[-1:, no : no + 1] - theirs[-1:, yes : yes + 1]))

    def save(self, model, keep=None):
        """The model's files as transformers saves them; config.json is `keep`, if that is given."""
        for path in self.folder.glob("*.safetensors*"):
            path.unlink()
        model.save_pretrained(self.folder)
        if keep is not None:
            (self.folder / "config.json").write_text(json.dumps(keep))


def report(name, what, found):
    print(f"{name:24} {what:40} {found}", flush=True)


def compare(case, sluice, config, what):
    model = case.prepare(config)
    ids = tokens(config, text_of(config).get("vocab_size") or config["vocab_size"])
    theirs = reference(model, ids)
    bad = 0
    for spelling, keep in (("published", config), ("saved again", None)):
        case.save(model, keep)
        answer = sluice.run(case.folder, ids, case.pre)
        if "error" in answer:
            report(case.name, f"{what}, {spelling}", f"REFUSED: {answer['error'][:300]}")
            bad += 1
            continue
        far = difference(answer["values"], case.scored(theirs))
        is_bad = not far <= (OF_ENCODERS if case.name.startswith(ENCODERS) else TOLERANCE)
        bad += is_bad
        told = f"{far:.1e}{' DIFFERS' if is_bad else ''}"
        report(case.name, f"{what}, {spelling}", " | ".join([told, *answer["warnings"]]))
    return bad


def changed_tensors(case, sluice, what, change, may_refuse=False):
    """The case with other tensors, which transformers reads from the folder, too."""
    model = case.prepare(case.config)
    case.save(model, case.config)
    path = case.folder / "model.safetensors"
    tensors = load_file(path)
    change(model, tensors)
    save_file(tensors, path, {"format": "pt"})
    cls = getattr(transformers, case.config["architectures"][0])
    about = model.config
    model = as_published(cls.from_pretrained(case.folder, config=about, dtype=torch.float32, attn_implementation="eager"))
    ids = tokens(case.config, text_of(case.config)["vocab_size"])
    answer = sluice.run(case.folder, ids, case.pre)
    if "error" in answer:
        report(case.name, what, f"REFUSED: {answer['error'][:300]}")
        return not may_refuse
    far = difference(answer["values"], case.scored(reference(model, ids)))
    is_bad = not far <= TOLERANCE
    told = f"{far:.1e}{' DIFFERS' if is_bad else ''}"
    report(case.name, what, " | ".join([told, *answer["warnings"]]))
    return is_bad


def other_head(case, sluice):
    """An output matrix of its own in a folder that says it has none, and no embedding: transformers uses what is there."""
    model = case.prepare(case.config)
    if not hasattr(model, "lm_head") or not model.config.tie_word_embeddings or "reranker" in case.name:
        return 0
    about = model.config.get_text_config()

    def another(_, tensors):
        tensors["lm_head.weight"] = 0.2 * torch.randn(about.vocab_size, about.hidden_size)

    def alone(_, tensors):
        [name] = [name for name in tensors if name.endswith("embed_tokens.weight")]
        tensors["lm_head.weight"] = tensors.pop(name)

    bad = changed_tensors(case, sluice, "another head", another)
    return bad + changed_tensors(case, sluice, "the head alone", alone)


def other_biases(case, sluice):
    """Biases that the model's class does not have: transformers ignores them."""
    model = case.prepare(case.config)
    linear = [(name, x) for name, x in model.named_modules() if isinstance(x, torch.nn.Linear) and x.bias is None]
    linear = [(name, x) for name, x in linear if "visual" not in name and "vision" not in name and "expert" not in name]
    first = {name.rsplit(".", 1)[-1]: (name, x) for name, x in reversed(linear)}
    bad = 0
    for kind, (name, module) in first.items():
        prefix = name

        def add(_, tensors, prefix=prefix, n=module.out_features):
            saved = [name for name in tensors if name.endswith(prefix.split("layers.")[-1] + ".weight")]
            if saved:
                tensors[saved[0].removesuffix("weight") + "bias"] = torch.randn(n)

        bad += changed_tensors(case, sluice, f"bias of {kind}", add, may_refuse=True)
    return bad


def mutations(value):
    """Other values of the same type."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [2 * value] if value else [1]
    if isinstance(value, float):
        return [1.5 * value] if value else [0.5]
    if isinstance(value, list) and value and len(set(map(str, value))) > 1:
        return [value[::-1]]
    if value is None:
        return [2]
    return []


def keys_of(config):
    """Paths to keys: of the text model, and of rotary settings."""
    text = text_of(config)
    start = ["text_config"] if text is not config else []
    for key, value in text.items():
        yield [*start, key]
        if isinstance(value, dict) and key.startswith("rope"):
            for inner, deeper in value.items():
                yield [*start, key, inner]
                if isinstance(deeper, dict):
                    yield from ([*start, key, inner, last] for last in deeper)


# Files, not computation; which output matrix is used depends on the weights, which `compare` shows.
NOT_ASKED = (
    "architectures", "model_type", "vocab_size", "_name_or_path", "transformers_version", "dtype", "torch_dtype",
    "tie_word_embeddings",
)


def with_key(config, path, value):
    config = copy.deepcopy(config)
    inside = config
    for key in path[:-1]:
        inside = inside[key]
    if value is KeyError:
        del inside[path[-1]]
    else:
        inside[path[-1]] = value
    return config


def by_key(case, sluice):
    model = case.prepare(case.config)
    case.save(model, None)
    saved = json.loads((case.folder / "config.json").read_text())
    state = model.state_dict()
    ids = tokens(case.config, text_of(case.config).get("vocab_size") or case.config["vocab_size"])
    base = reference(model, ids)
    bad = n = 0
    asked = set()
    for config, spelling in ((saved, "saved"), (case.config, "published")):
        for path in keys_of(config):
            if path[-1] in asked and spelling == "published":
                continue
            asked.add(path[-1])
            if path[-1] in NOT_ASKED or path[-1].endswith("_token_id"):
                continue
            inside = config
            for key in path:
                inside = inside[key]
            for value in [KeyError, *mutations(inside)]:
                n += 1
                bad += not one_key(case, sluice, with_key(config, path, value), path, value, state, ids, base, spelling)
    report(case.name, "keys", f"{n} settings, {bad} differences")
    return bad


def one_key(case, sluice, config, path, value, state, ids, base, spelling):
    """Whether a changed key is honoured, refused, or named where it cannot change a logit."""
    what = f"{spelling} {'.'.join(path)} = {'absent' if value is KeyError else value}"
    try:
        other = model_of(config, case.folder)
        missing, unexpected = other.load_state_dict(state, strict=False)
        theirs = None if missing else reference(other, ids)
    except Exception:  # transformers refuses the configuration, or these weights for it
        theirs = None
    (case.folder / "config.json").write_text(json.dumps(config))
    answer = sluice.run(case.folder, ids, case.pre)
    if theirs is None or "error" in answer:
        return True
    far = difference(answer["values"], case.scored(theirs))
    if far <= TOLERANCE:
        return True
    named = [w for w in answer["warnings"] if path[-1] in w]
    told = f" | {named}" if named else " SILENT"
    report(case.name, what, f"{far:.1e} DIFFERS (transformers changed by {difference(theirs, base):.1e}){told}")
    return False


def main(program, *names):
    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    keys = "--keys" in names
    names = [name for name in names if not name.startswith("--")]
    paths = sorted(hf_families.TESTS.glob("families/*.json"))
    paths += sorted(path for path in hf_families.TESTS.glob("convert/*") if path.is_dir())
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        scratch = Path(scratch)
        sluice = Sluice(program, scratch)
        for path in paths:
            if names and path.stem not in names:
                continue
            case = Case(path, scratch)
            if case.name in NO_CLASS:
                report(case.name, "SKIPPED", "transformers has no class for its published spelling")
                continue
            try:
                if keys:
                    bad += by_key(case, sluice)
                    continue
                bad += compare(case, sluice, case.config, "as it is")
                bad += other_head(case, sluice)
                bad += other_biases(case, sluice)
                variants = dict(VARIANTS.get(case.name, {}))
                takes_relu = not case.name.startswith(SILU_ONLY)
                if takes_relu and text_of(case.config).get("hidden_act") in ("silu", "swish"):
                    variants["relu"] = {"hidden_act": "relu"}
                for what, changes in variants.items():
                    bad += compare(case, sluice, changed(case.config, changes), what)
            except Exception as error:  # a case that cannot be made counts
                report(case.name, "FAILED", repr(error)[:300])
                bad += 1
    print(f"{bad} differences")
    return min(bad, 100)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
