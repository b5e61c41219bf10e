#!/usr/bin/env python3
"""Tiny Hugging Face folders of many families, each in one file, and what llama.cpp's converter makes of them.

    hf_families.py tokenizers               write the small vocabularies of encoders (committed)
    hf_families.py LLAMA_CPP FILE.json ...  complete these files

A file under `hosted/cli/tests/cli/families/` has by hand

    config      config.json, as the family's published folders have it, but small
    tokenizer   the folder under `convert/` or `families/tokenizers/` whose tokenizer it has
    added       special tokens after the tokenizer's own (optional)
    files       other files of the folder, name to content (optional)
    raw         config.json is read as it is, without the defaults of transformers (optional)
    pre         the pre-tokenizer's name (optional; else the one of the tokenizer's rules)
    nextn       "layers", "mtp" or "halves": where a block that guesses a further token is (optional)
    runs        how the engine runs the result: run (the default), embed, rerank, or no
    warnings    how many warnings are due (optional)
    own_tensors names of tensors that llama.cpp leaves out, or has of another type (optional)
    dtype       of the weights (optional; BF16)
    f32         ends of names of tensors in F32 (optional)
    tensors     names and shapes, of bytes where the name ends in `_blocks` or `_scales`; where it is absent, from the family's class in transformers

and gets `tensors` and `golden` from here: keys, values and hashes of the file that `convert_hf_to_gguf.py` of the
llama.cpp in LLAMA_CPP makes of the folder, with the weights of `hf_fixtures.py`, in F16. Keys of the tokenizer whose
values are the fixture's own are left out of the record (`tokens`, `scores`, `token_type`, `merges`, templates).

The goldens were made with llama.cpp as vendored by llama-cpp-python 0.3.36, torch 2.15 and transformers 5.24.
Needs torch, transformers, safetensors, sentencepiece and gguf.
"""

import base64
import io
import json
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path

import hf_fixtures
import unigram

TESTS = Path(__file__).parents[2] / "hosted/cli/tests/cli"
OWN_TOKENIZERS = TESTS / "families/tokenizers"

# Runs the converter with a pre-tokenizer's name, since it knows only hashes of published vocabularies; and with
# tokenizer.json where a family's own class of tokenizers reads files that are published no longer.
RUN = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
pre, plain, raw = sys.argv[2], sys.argv[3] == "plain", sys.argv[4] == "raw"
sys.argv = ["convert_hf_to_gguf.py", *sys.argv[5:]]
import conversion.base as base
if raw:
    base.AutoConfig = None
base.TextModel.get_vocab_base_pre = lambda self, tokenizer: pre
if plain:
    from conversion.hunyuan import HunYuanMoEModel
    HunYuanMoEModel.set_vocab = base.TextModel.set_vocab
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def tensors_of(config, folder):
    """Names and shapes as transformers saves the family's class."""
    import torch
    import transformers
    from safetensors import safe_open

    (folder / "config.json").write_text(json.dumps(config))
    about = transformers.AutoConfig.from_pretrained(folder)
    cls = getattr(transformers, config["architectures"][0])
    with torch.no_grad():
        model = cls(about).to(torch.bfloat16)
    model.save_pretrained(folder / "saved")
    out = {}
    for path in sorted((folder / "saved").glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            out |= {name: list(file.get_slice(name).get_shape()) for name in file.keys()}
    return dict(sorted(out.items()))


def nextn_of(tensors, config, kind):
    """A block that guesses a further token, as its last layer is, which transformers leaves out."""
    config = config.get("text_config", config)
    n, n_embd = config["num_hidden_layers"], config["hidden_size"]
    if kind == "halves":
        pattern, out = config["hybrid_override_pattern"], {}
        for half, letter in enumerate("*E"):
            start = f"backbone.layers.{pattern.index(letter)}."
            own = {name: shape for name, shape in tensors.items() if name.startswith(start)}
            out |= {f"mtp.layers.{half}.{name.removeprefix(start)}": shape for name, shape in own.items()}
        out |= {f"mtp.layers.{name}.weight": [n_embd] for name in ("0.enorm", "0.hnorm", "1.final_layernorm")}
        return out | {"mtp.layers.0.eh_proj.weight": [n_embd, 2 * n_embd]}
    (start,) = {name[: name.index("layers.")] for name in tensors if f"layers.{n - 1}." in name}
    last = f"{start}layers.{n - 1}."
    base, names = {
        "layers": (f"{start}layers.{n}.", ("eh_proj", "enorm", "hnorm", "shared_head.norm")),
        "mtp": ("mtp.layers.0.", ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")),
    }[kind]
    out = {base + name.removeprefix(last): shape for name, shape in tensors.items() if name.startswith(last)}
    base = "mtp." if kind == "mtp" else base
    out |= {f"{base}{name}.weight": [n_embd] for name in names}
    return out | {f"{base}{names[0]}.weight": [n_embd, 2 * n_embd]}


def folder_of(case, folder):
    """The folder itself, weights included."""
    folder.mkdir(parents=True)
    if case.get("tokenizer"):
        for place in (TESTS / "convert", OWN_TOKENIZERS):
            for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model"):
                if (place / case["tokenizer"] / name).exists():
                    shutil.copy(place / case["tokenizer"] / name, folder)
    if "added" in case:
        add_tokens(folder / "tokenizer.json", case["added"])
    (folder / "config.json").write_text(json.dumps(case["config"], indent=1))
    for name, content in case.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith(".safetensors"):
            hf_fixtures.safetensors(path, {k: ("F32", v) for k, v in content.items()})
        else:
            path.write_text(content if isinstance(content, str) else json.dumps(content))
    dtype, f32 = case.get("dtype", "BF16"), tuple(case.get("f32", ()))
    types = {name: "F32" if name.endswith(f32) else dtype for name in case["tensors"]}
    types |= {name: "U8" for name in types if name.endswith(("_blocks", "_scales"))}
    weights = {name: (types[name], shape) for name, shape in case["tensors"].items()}
    hf_fixtures.safetensors(folder / "model.safetensors", weights)


def add_tokens(path, added):
    """Special tokens after the others."""
    tokenizer = json.loads(path.read_text())
    tokens = tokenizer["added_tokens"]
    first = max(token["id"] for token in tokens) + 1
    tokens += [hf_fixtures.added(first + i, text, True) for i, text in enumerate(added)]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))


def make_tokenizers():
    """WordPiece as BERT has it, and Unigram as XLM-R has it."""
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "wordpiece"
        out.mkdir()
        hf_fixtures.wordpiece(out)
        store("wordpiece", *(json.loads((out / f"tokenizer{end}.json").read_text()) for end in ("", "_config")))
        model = unigram.train(hf_fixtures.TEXT.splitlines(), scratch, vocab_size=120)
    pieces = [[piece.piece, piece.score] for piece in model.pieces[3:]]
    specials = ["<s>", "<pad>", "</s>", "<unk>"]
    vocab = [[token, 0.0] for token in specials] + pieces + [["<mask>", 0.0]]
    tokens = [*enumerate(specials), (len(vocab) - 1, "<mask>")]
    special = {token: {"SpecialToken": {"id": token, "type_id": 0}} for token in ("<s>", "</s>")}
    a, b = ({"Sequence": {"id": name, "type_id": 0}} for name in "AB")
    begin, end = special["<s>"], special["</s>"]
    space = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "always", "split": True}
    charsmap = base64.b64encode(model.normalizer_spec.precompiled_charsmap).decode()
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [hf_fixtures.added(id, token, True) for id, token in tokens],
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": charsmap},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, space]},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, a, end],
            "pair": [begin, a, end, end, b, end],
            "special_tokens": {
                token: {"id": token, "ids": [id], "tokens": [token]} for id, token in tokens if token in special
            },
        },
        "decoder": space,
        "model": {"type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": False},
    }
    about = {"tokenizer_class": "XLMRobertaTokenizer", "clean_up_tokenization_spaces": True, "model_max_length": 256}
    roles = {"bos": "<s>", "eos": "</s>", "unk": "<unk>", "sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
    store("unigram", tokenizer, about | {f"{role}_token": token for role, token in roles.items()})


def store(name, tokenizer, about):
    (OWN_TOKENIZERS / name).mkdir(parents=True, exist_ok=True)
    for end, content in (("", tokenizer), ("_config", about)):
        text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
        (OWN_TOKENIZERS / name / f"tokenizer{end}.json").write_text(text + "\n")


LEFT_OUT = ("tokens", "scores", "token_type", "merges", "precompiled_charsmap")


PRE = {"llama3": "llama-bpe", "olmoe": "gpt-2", "llama-bias": "gpt-2", "wordpiece": "default", "unigram": "default"}


def golden(llama_cpp, case, name, scratch):
    folder, out = scratch / "folder" / name, scratch / f"{name}.gguf"
    folder_of(case, folder)
    pre = case.get("pre") or PRE.get(case.get("tokenizer"), "qwen2")
    plain = "plain" if "HunYuanMoE" in case["config"]["architectures"][0] else "own"
    arguments = [folder, "--outfile", out, "--outtype", "f16", *case.get("options", [])]
    raw = "raw" if case.get("raw") else "own"
    command = [sys.executable, "-c", RUN, llama_cpp, pre, plain, raw, *arguments]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode != 0:
        raise RuntimeError(ran.stderr[-3000:])
    printed = io.StringIO()
    with redirect_stdout(printed):
        hf_fixtures.golden(out)
    found = json.loads(printed.getvalue())
    ends = tuple(f"tokenizer.ggml.{key}" for key in LEFT_OUT)
    keys = {k: v for k, v in found["metadata"].items() if not k.endswith(ends)}
    found["metadata"] = {k: v for k, v in keys.items() if k != "tokenizer.chat_template"}
    out.unlink()
    return found


def write(path, case):
    """One line for each key, tensor and value."""

    def lines(value, depth):
        if not isinstance(value, (dict, list)) or not value or depth > 2:
            return json.dumps(value, ensure_ascii=False)
        indent = " " * (depth + 1)
        if isinstance(value, dict):
            rows = [f"{indent}{json.dumps(k)}: {lines(v, depth + 1)}" for k, v in value.items()]
            return "{\n" + ",\n".join(rows) + "\n" + " " * depth + "}"
        if all(not isinstance(v, (dict, list)) for v in value):
            return json.dumps(value, ensure_ascii=False)
        rows = [indent + json.dumps(v, ensure_ascii=False) for v in value]
        return "[\n" + ",\n".join(rows) + "\n" + " " * depth + "]"

    parts = {k: case[k] for k in case if k != "golden"} | {"golden": case["golden"]}
    path.write_text(lines(parts, 0) + "\n")


def main(llama_cpp, *paths):
    for path in map(Path, paths):
        case = json.loads(path.read_text())
        with tempfile.TemporaryDirectory() as scratch:
            scratch = Path(scratch)
            if "tensors" not in case:
                case["tensors"] = tensors_of(case["config"], scratch)
                if kind := case.get("nextn"):
                    case["tensors"] |= nextn_of(case["tensors"], case["config"], kind)
                case["tensors"] = dict(sorted(case["tensors"].items()))
            case["golden"] = golden(llama_cpp, case, path.stem, scratch)
        write(path, case)
        print(path.stem, len(case["golden"]["tensors"]), "tensors")


if __name__ == "__main__":
    if sys.argv[1:] == ["tokenizers"]:
        make_tokenizers()
        sys.exit()
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
