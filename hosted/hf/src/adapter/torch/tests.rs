//! Files of `torch.save`, and files that are not.

use super::pickle::tensors_in;
use super::*;
use crate::safetensors::Dtype;
use std::path::{Path, PathBuf};

fn fixture() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/merges/bin/adapter_model.bin")
}

/// The members of a file of torch's.
fn pickle() -> Vec<u8> {
    let file = ReadFile::open(&fixture()).expect("a fixture");
    let members = Zip(&file).members().expect("a ZIP file");
    let (_, range) = members
        .iter()
        .find(|(name, _)| name.ends_with("data.pkl"))
        .expect("a pickle");
    let mut bytes = vec![0; index(range.end - range.start)];
    file.read(range.start, &mut bytes).expect("in the file");
    bytes
}

#[test]
fn tensors_of_torch_are_found() {
    let file = ReadFile::open(&fixture()).expect("a fixture");
    let entries = read_entries(&file).expect("tensors");
    let name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
    let a = entries
        .iter()
        .find(|entry| entry.name == name)
        .expect("it is there");
    assert_eq!(
        (a.dtype, &a.shape[..], a.len_bytes),
        (Dtype::F32, &[2, 64][..], 512)
    );
    let mut places: Vec<_> = entries
        .iter()
        .map(|entry| entry.offset..entry.offset + entry.len_bytes)
        .collect();
    places.sort_by_key(|place| place.start);
    assert!(places.windows(2).all(|pair| pair[0].end <= pair[1].start));
}

/// What a pickle that does more than describe tensors is refused for.
#[test]
fn nothing_is_run_and_every_other_instruction_is_refused_by_name() {
    let all = pickle();
    assert!(!tensors_in(&all).expect("tensors").is_empty());
    let known = b".(NKMJX}c)tqrhjsuQRb\x80\x95\x88\x89\x8a\x8c\x85\x86\x87\x94";
    for code in 0..=u8::MAX {
        let refused = tensors_in(&[0x80, 2, code]).expect_err("no tensors");
        let is_named = refused.contains(&format!("the instruction {code:#04x}"));
        assert_eq!(is_named, !known.contains(&code), "{code:#04x}: {refused}");
    }
    for (program, expected) in [
        (
            &b"cos\nsystem\n(X\x02\x00\x00\x00lstR."[..],
            "it names os.system, which is refused",
        ),
        (b"cbuiltins\neval\n.", "builtins.eval"),
        (
            b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
            "calls RebuildTensor with unknown values",
        ),
        (b"}X\x01\x00\x00\x00aK\x01s.", "a is not a tensor"),
        (b"}K\x01K\x01s.", "a key that is not a text"),
        (b"K\x01.", "not a dictionary"),
        (b"K\x01Q.", "other than the numbers"),
        (b"NNb.", "something other than a dictionary"),
        (b"h\x00.", "has not stored"),
        (b"t.", "ends too early"),
        (
            b"))))\x85\x85\x85\x85\x85\x85\x85\x85\x85.",
            "tuples in tuples",
        ),
    ] {
        let refused = tensors_in(program).expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
}

#[test]
fn a_damaged_file_is_an_error() {
    let whole = std::fs::read(fixture()).expect("a fixture");
    let path = std::env::temp_dir().join(format!("sluice-torch-{}.bin", std::process::id()));
    let read = |bytes: &[u8]| {
        std::fs::write(&path, bytes).expect("a file");
        let file = ReadFile::open(&path).expect("not empty");
        read_entries(&file).map_err(|error| error.to_string())
    };
    assert!(read(&whole).is_ok());
    for cut in [1, whole.len() / 2, whole.len() - 30, whole.len() - 1] {
        assert!(read(&whole[..cut]).is_err(), "{cut}");
    }
    let told = read(b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.")
        .expect_err("a file of old torch");
    assert!(told.contains("not a ZIP file"), "{told}");
    // Any changed byte of the pickle or the list is an error or harmless, and never ends the program.
    for at in (0..whole.len())
        .step_by(97)
        .chain(whole.len() - 2000..whole.len())
    {
        let mut changed = whole.clone();
        changed[at] ^= 0xff;
        let _read = read(&changed);
    }
    std::fs::remove_file(path).expect("it was written");
}

#[test]
fn strides_and_lengths_are_checked() {
    let tensor = |shape: &[u64], strides: &[u64], first| PickledTensor {
        name: "x".into(),
        dtype: Dtype::F32,
        key: "0".into(),
        first,
        shape: shape.into(),
        strides: strides.into(),
    };
    let entry = entry_of(&tensor(&[2, 3], &[3, 1], 1), 100..128).expect("in the file");
    assert_eq!((entry.offset, entry.len_bytes), (104, 24));
    assert!(entry_of(&tensor(&[1, 3], &[77, 1], 0), 0..12).is_ok());
    for (shape, strides, first, expected) in [
        (&[2, 3][..], &[1, 2][..], 0, "row by row"),
        (&[2, 3], &[3, 1], 2, "longer than its data"),
        (&[1 << 40, 1 << 40], &[1 << 40, 1], 0, "too large"),
        (&[4], &[1], u64::MAX, "longer"),
    ] {
        let refused = entry_of(&tensor(shape, strides, first), 0..28).expect_err(expected);
        assert!(refused.contains(expected), "{refused}");
    }
}
