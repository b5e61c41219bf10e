//! `sluice import` from the outside: a data directory made from a GGUF file restores its tensors.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::cast_possible_truncation, reason = "small numbers make bytes")]

use crate::support::{Folder, Ran, fails, fixture, ran, run_to};
use core::fmt::Write as _;
use sluice::core::gguf::{Gguf, TensorInfo};
use std::fs;
use std::path::Path;
use std::process::Command;

fn write(folder: &Folder, name: &str, bytes: impl AsRef<[u8]>) {
    put_file(&folder.0, name, bytes);
}

fn put_file(folder: &Path, name: &str, bytes: impl AsRef<[u8]>) {
    fs::write(folder.join(name), bytes).unwrap();
}

/// A header of an expert of n_embd 32 and n_ff 32, not aligned.
fn uth1(dtype: u8, n_embd: u32, n_ff: u32, n_scales: u32) -> Vec<u8> {
    let mut out = b"UTH1\x01\0".to_vec();
    out.extend([dtype, 3]);
    for n in [n_ff, n_embd, 3, 0, 0, n_scales, 16, 16, 64, 0, 0, 0, 0, 0] {
        out.extend(n.to_le_bytes());
    }
    out
}

fn metadata(n_layer: u64, n_expert: u64, n_embd: u64, n_ff: u64, dtype: &str) -> String {
    format!(
        r#"{{"format_version": 2, "conversion_mode": "full", "model": "m", "architecture": "llama",
        "num_layers": {n_layer}, "num_experts_per_layer": {n_expert}, "top_k": 2,
        "d_model": {n_embd}, "d_ff": {n_ff}, "dtype": "{dtype}"}}"#
    )
}

fn tensor<'a>(gguf: &Gguf<'a>, file: &'a [u8], name: &str) -> (TensorInfo<'a>, &'a [u8]) {
    let tensor = gguf.tensor(name).unwrap_or_else(|| panic!("no {name}"));
    let at = usize::try_from(tensor.offset).unwrap();
    let len = usize::try_from(tensor.len_bytes).unwrap();
    (tensor, &file[at..at + len])
}

/// The files of the directory that a GGUF file with F16 experts gives.
fn data_directory(folder: &Path, gguf: &Gguf<'_>, file: &[u8]) {
    let key = |key: &str| gguf.u64(&format!("llama.{key}")).unwrap();
    let (n_layer, n_expert) = (key("block_count"), key("expert_count"));
    let (n_embd, n_ff) = (key("embedding_length"), key("feed_forward_length"));
    let used = format!("\"top_k\": {}", key("expert_used_count"));
    let metadata = metadata(n_layer, n_expert, n_embd, n_ff, "f16");
    let metadata = metadata.replace("\"top_k\": 2", &used);
    put_file(folder, "metadata.json", metadata);
    let mut manifest = String::new();
    let mut put = |to: &str, from: &str| {
        let (tensor, bytes) = tensor(gguf, file, from);
        put_file(folder, &format!("{to}.bin"), bytes);
        let dtype = tensor.ty.name().to_lowercase();
        let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325u64, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let comma = if manifest.is_empty() { "" } else { "," };
        write!(
            manifest,
            r#"{comma}{{"canonical_name": "{to}", "file": "{to}.bin", "aliases": [],
            "dtype": "{dtype}", "dims": [], "byte_len": {}, "checksum": "fnv1a64:{hash:016x}",
            "tied_to": null}}"#,
            bytes.len()
        )
        .unwrap();
    };
    put("embedding", "token_embd.weight");
    put("final_norm", "output_norm.weight");
    put("lm_head", "output.weight");
    for l in 0..n_layer {
        for (to, from) in [("q", "attn_q"), ("k", "attn_k"), ("v", "attn_v")] {
            put(
                &format!("layer_{l}_{to}"),
                &format!("blk.{l}.{from}.weight"),
            );
        }
        put(
            &format!("attn_{l}_o"),
            &format!("blk.{l}.attn_output.weight"),
        );
        put(
            &format!("layer_{l}_attn_norm"),
            &format!("blk.{l}.attn_norm.weight"),
        );
        put(&format!("rms_moe_{l}"), &format!("blk.{l}.ffn_norm.weight"));
        put(
            &format!("gate_{l}"),
            &format!("blk.{l}.ffn_gate_inp.weight"),
        );
        for e in 0..n_expert {
            let (n_embd, n_ff) = (u32::try_from(n_embd).unwrap(), u32::try_from(n_ff).unwrap());
            let mut blob = uth1(1, n_embd, n_ff, 0);
            for part in ["gate", "up", "down"] {
                let name = format!("blk.{l}.ffn_{part}_exps.weight");
                let (_, bytes) = tensor(gguf, file, &name);
                let len = bytes.len() / usize::try_from(n_expert).unwrap();
                blob.extend(&bytes[usize::try_from(e).unwrap() * len..][..len]);
            }
            // Both spellings of a name.
            let name = match e % 2 {
                0 => format!("expert_{}.bin", l * n_expert + e),
                _ => format!("expert_{l}_{e}.bin"),
            };
            put_file(folder, &name, blob);
        }
    }
    let manifest = format!(r#"{{"format_version": 1, "tensors": [{manifest}]}}"#);
    put_file(folder, "dense_manifest.json", manifest);
}

#[test]
fn a_whole_model_comes_back_byte_for_byte() {
    let model = fixture("experts/odd-experts-f16.gguf");
    let file = fs::read(&model).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let folder = Folder::new("whole");
    data_directory(&folder.0, &gguf, &file);
    let out = folder.path("out.gguf");
    let args = ["import", &folder.path(""), &out, "--metadata-from", &model];
    let ran = run_to(0, &args);
    assert!(ran.stderr.contains("other tensors"), "{ran:?}");
    let imported = fs::read(&out).unwrap();
    let result = Gguf::parse(&imported, imported.len() as u64).unwrap();
    assert_eq!(result.tensor_count(), gguf.tensor_count());
    for expected in gguf.tensors() {
        let (found, bytes) = tensor(&result, &imported, expected.name);
        assert_eq!(found.dims, expected.dims, "{}", expected.name);
        let same = bytes == tensor(&gguf, &file, expected.name).1;
        assert!(same, "{}", expected.name);
    }
    for (key, value) in gguf
        .metadata()
        .filter(|(key, _)| *key != "general.alignment")
    {
        let found = result.get(key).map(|found| format!("{found:?}"));
        assert_eq!(found, Some(format!("{value:?}")), "{key}");
    }
    fs::remove_file(folder.path("expert_1_1.bin")).unwrap();
    let again = ["import", &folder.path(""), &out, "--overwrite"];
    fails(1, &again, &["(layer 1, 1) is missing", "expert_1_1.bin"]);
    write(&folder, "expert_1_1.bin", b"UTH1");
    fails(1, &again, &["the blob is truncated"]);
    fs::remove_file(folder.path("layer_0_q.bin")).unwrap();
    assert_eq!(fs::read(&out).unwrap(), imported, "the old file stays");
}

/// One layer of one expert of 32 × 32, `dtype` as in headers and manifests.
fn one_expert(name: &str, dtype: (u8, &str), n_scales: u32, payload: &[u8]) -> Folder {
    let folder = Folder::new(name);
    write(&folder, "metadata.json", metadata(1, 1, 32, 32, dtype.1));
    let mut blob = uth1(dtype.0, 32, 32, n_scales);
    blob.extend(payload);
    write(&folder, "expert_0.bin", blob);
    folder
}

fn gate_of(path: &str) -> (String, Vec<u8>) {
    let file = fs::read(path).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let (tensor, bytes) = tensor(&gguf, &file, "blk.0.ffn_gate_exps.weight");
    (tensor.ty.name().to_owned(), bytes.to_vec())
}

#[test]
fn int8_is_q8_0_where_that_is_exact() {
    let codes: Vec<u8> = (0..3 * 1024u32).map(|i| (i % 251) as u8).collect();
    let payload = |scale: f32| {
        let mut out: Vec<u8> = [scale, 1.0, 2.0]
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        out.extend(&codes);
        out
    };
    let exact = one_expert("int8", (2, "int8"), 3, &payload(0.375));
    let out = exact.path("out.gguf");
    let ran = run_to(0, &["import", &exact.path(""), &out]);
    assert!(ran.stderr.contains("contains only experts"), "{ran:?}");
    let (ty, bytes) = gate_of(&out);
    assert_eq!((ty.as_str(), bytes.len()), ("Q8_0", 32 * 34));
    // 0.375 as f16 is 0x3600.
    assert_eq!(bytes[..2], [0x00, 0x36]);
    assert_eq!(bytes[2..34], codes[..32]);
    let rounded = one_expert("int8-rounded", (2, "int8"), 3, &payload(0.1));
    let out = rounded.path("out.gguf");
    fails(
        1,
        &["import", &rounded.path(""), &out],
        &["0.1 is not representable in f16", "--type"],
    );
    run_to(0, &["import", &rounded.path(""), &out, "--type", "f32"]);
    let (ty, bytes) = gate_of(&out);
    assert_eq!(ty, "F32");
    assert_eq!(
        bytes[4 * 200..][..4],
        (f32::from(200u8 as i8) * 0.1f32).to_le_bytes()
    );
}

#[test]
fn mxfp4_is_put_in_ggmls_order() {
    let mut payload = Vec::new();
    for _ in 0..3 {
        // Columns 0, 1, 2, … of a row have codes 0, 1, 2, … 15, 0, 1, …
        payload.extend((0..32 * 16u32).map(|i| ((2 * i % 16) | ((2 * i + 1) % 16) << 4) as u8));
        payload.extend((0..32u8).map(|row| 100 + row));
    }
    let folder = one_expert("mxfp4", (7, "mxfp4"), 0, &payload);
    let out = folder.path("out.gguf");
    run_to(0, &["import", &folder.path(""), &out]);
    let (ty, bytes) = gate_of(&out);
    assert_eq!((ty.as_str(), bytes.len()), ("MXFP4", 32 * 17));
    for (row, block) in (0u8..).zip(bytes.as_chunks::<17>().0) {
        assert_eq!(block[0], 100 + row);
        // Columns j and j + 16 have the same code.
        let expected: Vec<u8> = (0..16).map(|j| j | j << 4).collect();
        assert_eq!(block[1..], expected);
    }
}

#[test]
fn a_packed_blob_without_headers() {
    let folder = Folder::new("packed");
    write(&folder, "metadata.json", metadata(1, 2, 32, 32, "q8_0"));
    let blob: Vec<u8> = (0..2 * 4096u32).map(|i| (i * 7 % 256) as u8).collect();
    write(&folder, "experts.blob", &blob);
    write(
        &folder,
        "experts.blob.manifest.json",
        r#"{"block_align": 4096, "expert_size": 4096, "order": [1, 0],
        "entries": {"0": {"offset": 4096, "len": 4096}, "1": {"offset": 0, "len": 4096}}}"#,
    );
    let out = folder.path("out.gguf");
    run_to(0, &["import", &folder.path(""), &out]);
    let (ty, bytes) = gate_of(&out);
    assert_eq!(ty, "Q8_0");
    assert_eq!(bytes[..1088], blob[4096..][..1088]);
    assert_eq!(bytes[1088..], blob[..1088]);
}

#[test]
fn experts_that_are_left_are_found_again() {
    let model = fixture("experts/odd-experts-f16.gguf");
    let file = fs::read(&model).unwrap();
    let gguf = Gguf::parse(&file, file.len() as u64).unwrap();
    let folder = Folder::new("left");
    let (one, other) = (folder.path("one"), folder.path("other"));
    fs::create_dir(&one).unwrap();
    data_directory(one.as_ref(), &gguf, &file);
    // Odd ids, half of them under their other name, are on another drive.
    fs::create_dir(&other).unwrap();
    for name in ["expert_0_1", "expert_0_3", "expert_1_1", "expert_1_3"] {
        let file = |folder: &str| format!("{folder}/{name}.bin");
        fs::rename(file(&one), file(&other)).unwrap();
    }
    let (whole, left) = (folder.path("whole.gguf"), folder.path("left.gguf"));
    let dirs = format!("{one},{other}");
    let import = ["import", &dirs, &whole, "--metadata-from", &model];
    run_to(0, &import);
    let import = ["import", &dirs, &left, "--metadata-from", &model];
    let ran = run_to(0, &[&import[..], &["--leave-experts"]].concat());
    assert!(ran.stderr.contains("remain in their files"), "{ran:?}");
    let merged = folder.path("merged.gguf");
    run_to(0, &["gguf-split", "--merge", &left, &merged]);
    assert_eq!(fs::read(&merged).unwrap(), fs::read(&whole).unwrap());
    let bytes = fs::read(&left).unwrap();
    let header = Gguf::parse(&bytes, bytes.len() as u64).unwrap();
    assert!(header.tensors().all(|tensor| !tensor.name.contains("exps")));
    let names = header.strings("sluice.experts.files").unwrap();
    assert!(
        names.clone().all(|name| name.starts_with(b"o")),
        "in its folder"
    );
    assert_eq!(names.len(), 10);
    let said = run_to(0, &["inspect", &left]).stdout;
    assert!(said.contains("joined from 11 files"), "{said}");
    assert!(said.contains("ffn_down_exps"), "{said}");
    let run = |path: &str, extra: &[&str]| {
        let base = ["run", "-m", path, "-p", "a", "-n", "8", "--temp", "0"];
        run_to(0, &[&base[..], extra].concat()).stdout
    };
    let expected = run(&whole, &[]);
    assert_eq!(run(&left, &[]), expected);
    assert_eq!(run(&left, &["--expert-cache", "1"]), expected);
    assert_eq!(limited("-Sn 12", &left).stdout, expected);
    let refused = limited("-n 12", &left);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    for part in [
        "are in 10 files: at most 12 files may be open at once",
        "ulimit -Hn",
    ] {
        assert!(refused.stderr.contains(part), "{refused:?}");
    }
    // All of it can be moved.
    let moved = folder.path("moved");
    fs::create_dir(&moved).unwrap();
    for name in ["one", "other", "left.gguf"] {
        fs::rename(folder.path(name), format!("{moved}/{name}")).unwrap();
    }
    let left = format!("{moved}/left.gguf");
    assert_eq!(run(&left, &["--expert-cache", "1"]), expected);
    fs::remove_file(format!("{moved}/other/expert_1_3.bin")).unwrap();
    let args = ["run", "-m", &left, "-p", "a"];
    fails(1, &args, &["other/expert_1_3.bin: No such file"]);
}

/// Runs with experts on disk, and as many open files as `ulimit` allows.
fn limited(ulimit: &str, model: &str) -> Ran {
    let script = format!("ulimit {ulimit}; exec \"$@\"");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script, "sh", env!("CARGO_BIN_EXE_sluice"), "run"]);
    shell.args(["-m", model, "-p", "a", "-n", "8", "--temp", "0"]);
    shell.args(["--expert-cache", "1"]);
    ran(shell.output().unwrap())
}

#[test]
fn int8_and_mxfp4_cannot_be_left() {
    let folders = [
        one_expert("left-int8", (2, "int8"), 3, &[0; 12 + 3 * 1024]),
        one_expert("left-mxfp4", (7, "mxfp4"), 0, &[0; 3 * 32 * 17]),
    ];
    for (folder, name) in folders.iter().zip(["int8", "mxfp4"]) {
        let (dir, out) = (folder.path(""), folder.path("out.gguf"));
        let args = ["import", &dir, &out, "--leave-experts"];
        let expected = ["expert 0", name, "import without --leave-experts"];
        fails(1, &args, &expected);
        assert!(!fs::exists(out).unwrap());
    }
    fails(2, &["import", "a", "b", "c"], &["unexpected argument"]);
    let args = ["import", "a", "b", "--leave-experts", "--type", "f16"];
    fails(2, &args, &["cannot be used with"]);
}

#[test]
fn what_is_missing_is_named() {
    let folder = Folder::new("missing");
    let (dir, out) = (folder.path(""), folder.path("out.gguf"));
    fails(
        1,
        &["import", &dir, &out],
        &["metadata.json", "No such file"],
    );
    write(&folder, "metadata.json", "{");
    fails(1, &["import", &dir, &out], &["metadata.json", "EOF"]);
    write(&folder, "metadata.json", r#"{"dtype": "q8_0"}"#);
    fails(1, &["import", &dir, &out], &["num_layers is missing"]);
    write(&folder, "metadata.json", metadata(1, 1, 32, 32, "q9"));
    fails(
        1,
        &["import", &dir, &out],
        &["dtype is missing or is not a known type"],
    );
    write(&folder, "metadata.json", metadata(1, 1, 32, 32, "q8_0"));
    fails(1, &["import", &dir, &out], &["expert 0", "missing"]);
    write(&folder, "expert_0.bin", vec![0; 3 * 1088]);
    write(&folder, "layer_0_q.bin", vec![0; 32 * 32 * 4]);
    fails(1, &["import", &dir, &out], &["embedding is missing"]);
    let manifest = r#"{"format_version": 1, "tensors": [{"canonical_name": "embedding",
        "file": "../embedding.bin", "dtype": "f32", "byte_len": 4}]}"#;
    write(&folder, "dense_manifest.json", manifest);
    fails(1, &["import", &dir, &out], &["not a plain file name"]);
    assert!(!fs::exists(out).unwrap());
}
