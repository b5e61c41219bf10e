//! `sluice pack`, `unpack`, and other commands that read `.slc` files, from the outside.

use crate::interrupt::{interrupt, interruptible};
use crate::support::{Folder, MODEL, TemporaryFile, fails, fixture, ran, run_to, sluice};
use std::fs;
use std::path::PathBuf;

#[test]
fn a_packed_model_tells_the_same_and_unpacks_to_the_same_bytes() {
    let folder = Folder::new("same");
    let (slc, gguf) = (folder.path("m.slc"), folder.path("m.gguf"));
    let packed = run_to(0, &["pack", MODEL, &slc, "--verify"]);
    assert!(packed.stderr.contains("(verified)"), "{packed:?}");
    run_to(0, &["unpack", &slc, &gguf]);
    assert!(fs::read(&gguf).unwrap() == fs::read(MODEL).unwrap());
    let checked = run_to(0, &["unpack", &slc, "--verify"]);
    assert!(checked.stderr.contains("verified"), "{checked:?}");
    let text = |model: &str, mode: &str| {
        let args = [
            "run",
            "-m",
            model,
            "-lm",
            mode,
            "-p",
            "The little dog",
            "-n",
            "24",
        ];
        run_to(0, &[&args[..], &["--temp", "0"]].concat()).stdout
    };
    let expected = text(MODEL, "none");
    assert_eq!(text(&slc, "mmap"), expected);
    assert_eq!(text(&slc, "none"), expected);
    let report = run_to(0, &["inspect", &slc]).stdout;
    for words in [
        "packed      .slc version 1",
        "SHA-256",
        "blk.0.attn_q.weight",
        "model       llama: ",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    // Commands that read tensors by their GGUF offsets read them through the panels.
    let requantised = folder.path("q.gguf");
    let args = ["--allow-requantize", &slc, &requantised, "Q8_0"];
    run_to(0, &[&["quantize"], &args[..]].concat());
    let from_gguf = folder.path("r.gguf");
    let args = ["--allow-requantize", MODEL, &from_gguf, "Q8_0"];
    run_to(0, &[&["quantize"], &args[..]].concat());
    assert!(fs::read(requantised).unwrap() == fs::read(from_gguf).unwrap());
}

/// Feed-forward networks by neuron: the same text in every table, the same file back, and every reader of tensors.
#[test]
fn a_model_packed_by_neuron_tells_the_same_and_unpacks_to_the_same_bytes() {
    let folder = Folder::new("neurons");
    let (slc, gguf) = (folder.path("m.slc"), folder.path("m.gguf"));
    for name in ["llama-Q4_K", "llama-Q8_0", "llama-MXFP4", "glm4moe-Q4_K_M"] {
        let model = fixture(&format!("models/{name}.gguf"));
        let pack = ["pack", "--ffn", "neuron", &model, &slc];
        let packed = run_to(0, &[&pack[..], &["--verify", "--overwrite"]].concat());
        assert!(packed.stderr.contains("(verified)"), "{packed:?}");
        for mode in ["none", "mmap"] {
            run_to(0, &["unpack", &slc, &gguf, "--overwrite"]);
            assert!(fs::read(&gguf).unwrap() == fs::read(&model).unwrap());
            let text = |model: &str, isa: &str| {
                let args = ["-m", model, "--isa", isa, "-lm", mode, "--temp", "0"];
                run_to(
                    0,
                    &[&args[..], &["-p", "The little dog", "-n", "24"]].concat(),
                )
                .stdout
            };
            let expected = text(&model, "scalar");
            for isa in ["scalar", "avx2"] {
                assert_eq!(text(&slc, isa), expected, "{name}, {mode}, {isa}");
            }
        }
        let report = run_to(0, &["inspect", &slc, "--check-tensors"]).stdout;
        assert!(report.contains(" by row, "), "{report}");
        assert!(report.contains(" by neuron"), "{report}");
        // Read by their GGUF offsets, a few rows at a time.
        let [again, expected] = [&slc, &model].map(|from| {
            let to = folder.path("q.gguf");
            let args = [
                "quantize",
                "--allow-requantize",
                "--overwrite",
                from,
                &to,
                "Q5_0",
            ];
            run_to(0, &args);
            fs::read(to).unwrap()
        });
        assert!(again == expected, "{name}");
    }
    // Experts on disk.
    let model = fixture("models/glm4moe-Q4_K_M.gguf");
    let text = |model: &str, more: &[&str]| {
        let args = [
            "-m",
            model,
            "-p",
            "The little dog",
            "-n",
            "24",
            "--temp",
            "0",
        ];
        run_to(0, &[&args[..], more].concat()).stdout
    };
    let cached = text(&slc, &["--expert-cache", "1", "--expert-check"]);
    assert_eq!(cached, text(&model, &[]));
}

#[test]
fn what_cannot_be_packed_by_neuron_is_named_and_nothing_is_written() {
    let folder = Folder::new("no-neurons");
    let slc = folder.path("m.slc");
    for (name, parts) in [
        (
            "models/llama-F16.gguf",
            &["blk.0.ffn_up.weight", "type F16", "sluice quantize"][..],
        ),
        ("models/llama-IQ2_S.gguf", &["type IQ2_S has no such form"]),
        (
            "tokenizer/bpe.gguf",
            &["no tensor of a feed-forward network"],
        ),
    ] {
        let model = fixture(name);
        fails(1, &["pack", "--ffn", "neuron", &model, &slc], parts);
        assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0);
    }
    fails(2, &["pack", "--ffn", "rows", MODEL, &slc], &["neuron"]);
}

/// Taps, sinks, biases of experts, decays: tensors that are not matrices are preserved as well.
#[test]
fn layers_of_every_kind_are_packed() {
    let folder = Folder::new("kinds");
    for name in [
        "lfm2",
        "lfm2-Q4_K_M",
        "gpt-oss",
        "gpt-oss-MXFP4_MOE",
        "qwen35",
        "qwen3next",
        "granitehybrid",
        "nemotron_h",
        "nemotron_h_moe-latent",
    ] {
        let model = fixture(&format!("models/{name}.gguf"));
        let (slc, gguf) = (folder.path("m.slc"), folder.path("m.gguf"));
        run_to(0, &["pack", &model, &slc, "--verify", "--overwrite"]);
        run_to(0, &["unpack", &slc, &gguf, "--overwrite"]);
        assert!(fs::read(&gguf).unwrap() == fs::read(&model).unwrap());
        let report = run_to(0, &["inspect", &slc]).stdout;
        let has_experts = report.contains("_exps.weight");
        assert_eq!(
            report.contains(" 0 in expert records"),
            !has_experts,
            "{report}"
        );
        let flags = ["-p", "The little dog", "-n", "24", "--temp", "0"];
        let text = |model: &str, isa: &str| {
            let args = [&["-m", model, "--isa", isa][..], &flags].concat();
            run_to(0, &args).stdout
        };
        let expected = text(&model, "scalar");
        assert_eq!(text(&slc, "scalar"), expected, "{name}");
        assert_eq!(text(&slc, "avx2"), expected, "{name}");
    }
}

#[test]
fn what_cannot_be_packed_or_unpacked() {
    let folder = Folder::new("errors");
    let slc = folder.path("m.slc");
    run_to(0, &["pack", MODEL, &slc]);
    fails(
        1,
        &["pack", MODEL, &slc],
        &["exists already", "--overwrite"],
    );
    run_to(0, &["pack", MODEL, &slc, "--overwrite"]);
    fails(
        1,
        &["pack", &slc, &folder.path("again.slc")],
        &["is already a .slc file"],
    );
    fails(
        1,
        &["unpack", MODEL, &folder.path("x.gguf")],
        &["is a GGUF file, not"],
    );
    fails(
        1,
        &["pack", "/does/not/exist", &folder.path("x")],
        &["No such file"],
    );
    fails(2, &["unpack", &slc], &["OUT.gguf"]);
    let mut bytes = fs::read(&slc).unwrap();
    let cut = TemporaryFile::new("cut.slc", &bytes[..bytes.len() - 1]);
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let damaged = TemporaryFile::new("damaged.slc", &bytes);
    bytes[5000] ^= 1;
    let header = TemporaryFile::new("header.slc", &bytes);
    for mode in ["none", "mmap"] {
        fails(
            1,
            &["run", "-m", cut.path(), "-lm", mode],
            &[cut.path(), "the file is cut"],
        );
        fails(
            1,
            &["run", "-m", header.path(), "-lm", mode],
            &["headers are damaged"],
        );
    }
    let out = folder.path("out.gguf");
    fails(
        1,
        &["unpack", damaged.path(), &out],
        &[damaged.path(), "is damaged"],
    );
    assert!(!PathBuf::from(&out).exists());
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

#[test]
fn expert_blobs_are_recognised() {
    // Q8_0, n_embd 32, n_ff 32, not aligned.
    let mut bytes = b"UTH1\x01\0\x05\x03".to_vec();
    for n in [32u32, 32, 3, 0, 0, 0, 16, 16, 64, 0, 0, 0, 0, 0] {
        bytes.extend(n.to_le_bytes());
    }
    bytes.resize(64 + 3 * 32 * 34, 0);
    let blob = TemporaryFile::new("expert_0.bin", &bytes);
    let report = run_to(0, &["inspect", blob.path()]).stdout;
    for words in [
        "UTH1",
        "q8_0",
        "n_embd 32",
        "tile hint [16, 16, 64]",
        "down",
        "at byte 64",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    let cut = TemporaryFile::new("expert_1.bin", &bytes[..100]);
    fails(
        1,
        &["inspect", cut.path()],
        &[cut.path(), "the blob is truncated"],
    );
}

#[test]
fn an_interrupted_pack_leaves_nothing() {
    let folder = Folder::new("interrupted");
    // One tensor of 400 MB that takes no disk space: F16, 50,000 rows of 4096.
    let mut header = b"GGUF\x03\0\0\0".to_vec();
    header.extend([1u64, 0, 17].iter().flat_map(|n| n.to_le_bytes()));
    header.extend(b"blk.0.attn_q.weig");
    header.extend(2u32.to_le_bytes());
    header.extend([4096u64, 50_000].iter().flat_map(|n| n.to_le_bytes()));
    header.extend(1u32.to_le_bytes());
    header.extend(0u64.to_le_bytes());
    let (gguf, slc) = (folder.path("m.gguf"), folder.path("m.slc"));
    fs::write(&gguf, &header).unwrap();
    let file = fs::File::options().write(true).open(&gguf).unwrap();
    let data_offset = header.len().next_multiple_of(32) as u64;
    file.set_len(data_offset + 4096 * 50_000 * 2).unwrap();
    let mut command = sluice();
    command.args(["pack", &gguf, &slc, "--verify"]);
    let child = interruptible(command);
    while fs::read_dir(&folder.0).unwrap().count() < 2 {
        std::thread::yield_now();
    }
    interrupt(&child);
    let ran = ran(child.wait_with_output().unwrap());
    assert_eq!(ran.code, Some(130), "{ran:?}");
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 1);
}

/// A byte of a weight that changed on the way is found where all weights are checked.
#[test]
fn damaged_weights_are_found_with_check_tensors() {
    let folder = Folder::new("checked");
    let (slc, gguf) = (folder.path("m.slc"), folder.path("m.gguf"));
    run_to(0, &["pack", MODEL, &slc]);
    let clean = run_to(0, &["inspect", &slc, "--check-tensors"]);
    assert!(
        clean.stdout.contains("checked     all payloads"),
        "{clean:?}"
    );
    let run = "run -p Once -n 1 --check-tensors -m".split(' ');
    let run: Vec<_> = run.chain([slc.as_str()]).collect();
    run_to(0, &run);
    let mut bytes = fs::read(&slc).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&slc, bytes).unwrap();
    let damaged = [slc.as_str(), "tensor ", " is damaged: its checksum differs"];
    fails(1, &run, &damaged);
    fails(1, &["inspect", &slc, "--check-tensors"], &damaged);
    fails(
        1,
        &["serve", "-m", &slc, "--port", "0", "--check-tensors"],
        &damaged,
    );
    fails(
        1,
        &["quantize", "--check-tensors", "--dry-run", &slc, "Q8_0"],
        &damaged,
    );

    // A GGUF file has no checksums; a weight that is not a number is found.
    fs::copy(fixture("models/llama-F32.gguf"), &gguf).unwrap();
    let clean = run_to(0, &["inspect", &gguf, "--check-tensors"]);
    assert!(
        clean.stdout.contains("checked     all weights are finite"),
        "{clean:?}"
    );
    let mut bytes = fs::read(&gguf).unwrap();
    let last = bytes.len() - 4;
    bytes[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&gguf, bytes).unwrap();
    let parts = [
        gguf.as_str(),
        "row ",
        " has a weight that is not a finite number",
    ];
    fails(1, &["inspect", &gguf, "--check-tensors"], &parts);

    // A draft model is checked as the model is; so are numbers of 64 bits, which no model is computed with.
    let model = fixture("models/llama-F32.gguf");
    for command in ["run -p a -n 1", "serve --port 0"] {
        let command = command
            .split(' ')
            .chain(["--check-tensors", "-m", &model, "-md", &gguf]);
        fails(1, &command.collect::<Vec<_>>(), &parts);
    }
    let wide = folder.path("wide.gguf");
    let numbers = [1.0f64, f64::INFINITY].map(f64::to_le_bytes).concat();
    fs::write(&wide, one_tensor(28, &numbers)).unwrap();
    let parts = [
        wide.as_str(),
        "row 0 of tensor wide has a weight that is not",
    ];
    fails(1, &["inspect", &wide, "--check-tensors"], &parts);
    let numbers = [1.0f64, 2.0].map(f64::to_le_bytes).concat();
    fs::write(&wide, one_tensor(28, &numbers)).unwrap();
    run_to(0, &["inspect", &wide, "--check-tensors"]);
}

/// A GGUF file with nothing but a tensor of a row of two numbers, of ggml's type `ty`.
fn one_tensor(ty: u32, numbers: &[u8]) -> Vec<u8> {
    let mut file = b"GGUF".to_vec();
    file.extend(3u32.to_le_bytes());
    file.extend([1u64, 0].map(u64::to_le_bytes).concat());
    file.extend(4u64.to_le_bytes());
    file.extend(b"wide");
    file.extend(1u32.to_le_bytes());
    file.extend(2u64.to_le_bytes());
    file.extend(ty.to_le_bytes());
    file.extend(0u64.to_le_bytes());
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(numbers);
    file
}
