//! Headers that name files with experts, valid and invalid ones.

use super::*;
use crate::file::{COUNT_KEY, INDEX_KEY, LoadMode, ModelFile, split_path};
use std::fs;
use std::os::unix::fs::FileExt as _;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("sluice-links-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(path.join("data")).unwrap();
        Self(path)
    }

    /// Two files of 64 bytes, and a header that places three experts of 16 bytes in them.
    fn header(&self) -> GgufHeader {
        let blob = |name: &str, first: u8| {
            let bytes: Vec<u8> = (first..first + 64).collect();
            fs::write(self.0.join(name), bytes).unwrap();
        };
        blob("data/a.bin", 0);
        blob("data/b.bin", 100);
        let mut links = ExpertLinks::default();
        let a = links.add_file("data/a.bin".into(), 64);
        let absolute = self.0.join("data/b.bin").display().to_string();
        let b = links.add_file(absolute, 64);
        links.add_tensor(
            "experts",
            [2, 2, 3],
            GgmlType::F32,
            &[(b, 0), (a, 48), (b, 5)],
        );
        links.add_tensor("others", [8, 1, 1], GgmlType::F16, &[(a, 3)]);
        let mut header = GgufHeader::new();
        header.set("general.name", "m");
        links.write_to(&mut header);
        header.add_tensor("dense", &[3], GgmlType::F32);
        header
    }

    fn write(&self, header: &GgufHeader) -> PathBuf {
        let mut bytes = header.bytes();
        let len = bytes.len() + usize::try_from(header.data_bytes()).unwrap();
        bytes.resize(len, 77);
        let path = self.0.join("m.gguf");
        fs::write(&path, bytes).unwrap();
        path
    }

    /// Why a file with this header is refused.
    fn refusal(&self, header: &GgufHeader) -> String {
        let path = self.write(header);
        let modes = [LoadMode::Read, LoadMode::Map];
        let errors = modes.map(|mode| ModelFile::open(&path, mode).unwrap_err().to_string());
        assert_eq!(errors[0], errors[1]);
        errors[0].clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn it_is_the_file_with_all_experts_in_it() {
    let folder = Folder::new("joined");
    let path = folder.write(&folder.header());
    for mode in [LoadMode::Read, LoadMode::Map] {
        let file = ModelFile::open(&path, mode).unwrap();
        let gguf = file.parse().unwrap();
        assert_eq!(file.n_parts(), 3);
        let keys: Vec<_> = gguf.metadata().map(|(key, _)| key).collect();
        assert_eq!(keys, ["general.name"]);
        let names: Vec<_> = gguf.tensors().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["dense", "experts", "others"]);
        let experts = gguf.tensor("experts").unwrap();
        assert_eq!((experts.dims, experts.len_bytes), ([2, 2, 3, 1], 48));
        let mut bytes = [0; 48];
        file.source().read(experts.offset, &mut bytes).unwrap();
        let expected: Vec<u8> = (100..116).chain(48..64).chain(105..121).collect();
        assert_eq!(bytes[..], expected);
        let places = [0, 1, 2].map(|i| file.locate(experts.offset + 16 * i, 16).unwrap());
        assert_eq!(places, [(2, 0), (1, 48), (2, 5)]);
        assert_eq!(file.locate(experts.offset, 48), None);
        assert!(file.part_path(1).unwrap().ends_with("data/a.bin"));
        let others = gguf.tensor("others").unwrap();
        let mut bytes = [0; 2];
        file.source().read(others.offset + 1, &mut bytes).unwrap();
        assert_eq!(bytes, [4, 5]);
    }
}

#[test]
fn a_link_to_the_file_leads_to_its_experts() {
    let folder = Folder::new("link");
    let path = folder.write(&folder.header());
    let elsewhere = folder.0.join("data/link.gguf");
    std::os::unix::fs::symlink(&path, &elsewhere).unwrap();
    let file = ModelFile::open(&elsewhere, LoadMode::Read).unwrap();
    assert_eq!(file.name(), elsewhere.display().to_string());
    assert_eq!(file.n_parts(), 3);
}

#[test]
fn a_file_that_has_changed_is_named() {
    let folder = Folder::new("changed");
    let path = folder.write(&folder.header());
    let error = |expected: &[&str]| {
        let error = ModelFile::open(&path, LoadMode::Read).unwrap_err();
        let error = error.to_string();
        let named = expected.iter().all(|part| error.contains(part));
        assert!(named, "{error}");
    };
    let file = ModelFile::open(&path, LoadMode::Read).unwrap();
    let at = file.parse().unwrap().tensor("experts").unwrap().offset + 16;
    let blob = folder.0.join("data/a.bin");
    fs::write(&blob, [0; 50]).unwrap();
    error(&["data/a.bin: it has 50 bytes, but had 64", "import it again"]);
    let read = || file.source().read(at, &mut [0; 16]);
    let ended = SourceError::EndOfFile { offset: 50 };
    assert_eq!(read(), Err(ended));
    assert_eq!(file.at_fault(ended), Some(blob.as_path()));
    assert_eq!(file.at_fault(SourceError::EndOfFile { offset: 49 }), None);
    fs::write(&blob, [0; 65]).unwrap();
    error(&["data/a.bin: it has 65 bytes"]);
    fs::write(&blob, []).unwrap();
    error(&["data/a.bin is empty"]);
    fs::remove_file(&blob).unwrap();
    error(&["data/a.bin: No such file", "it holds experts of", "m.gguf"]);
    assert!(matches!(read(), Err(SourceError::Io { code: 2, .. })));
    fs::create_dir(&blob).unwrap();
    error(&["data/a.bin is a directory"]);
}

/// Each of these values at its key is refused, with these words.
fn are_refused(name: &str, cases: Vec<(&str, MetaValue, &str)>) {
    let folder = Folder::new(name);
    let header = folder.header();
    for (key, value, expected) in cases {
        let mut header = header.clone();
        header.set(key, value);
        let error = folder.refusal(&header);
        assert!(error.contains(expected), "{key}: {error}");
    }
}

#[test]
fn wrong_names_of_files_are_named() {
    let cases: [(&[&str], &str); 6] = [
        (&["data/a.bin"], "file_bytes has 2 elements, expected 1"),
        (&["", "b"], "element 0 of sluice.experts.files is invalid"),
        (
            &["a\0b", "b"],
            "element 0 of sluice.experts.files is invalid",
        ),
        (&["data/c.bin", "b"], "data/c.bin: No such file"),
        (&["/dev/zero", "b"], "/dev/zero is not a regular file"),
        (&["../", "b"], "/../ is a directory"),
    ];
    let cases = cases.map(|(names, expected)| (FILES, MetaValue::strings(names), expected));
    are_refused("names", cases.into());
    let expected = "type u32, expected an array of strings";
    are_refused("number", vec![(FILES, 7u32.into(), expected)]);
}

#[test]
fn wrong_lengths_of_files_are_named() {
    let changed = "b.bin: it has 64 bytes, but had 18446744073709551615";
    let element = "element 0 of sluice.experts.file_bytes is invalid";
    let cases = [
        ("a".into(), "type string, expected an array"),
        (
            MetaValue::u64s(&[]),
            "file_bytes has 0 elements, expected 2",
        ),
        (MetaValue::f32s(&[64.0, 64.0]), element),
        (MetaValue::i32s(&[-1, 64]), element),
        (MetaValue::strings(&["64", "64"]), element),
        (MetaValue::u64s(&[64, u64::MAX]), changed),
    ];
    let cases = cases.map(|(value, expected)| (FILE_BYTES, value, expected));
    are_refused("lengths", cases.into());
}

#[test]
fn wrong_tensors_are_named() {
    let names: [(&[&str], &str); 4] = [
        (&["a"], "sluice.experts.dims has 6 elements, expected 3"),
        (&["a", "a"], r#"tensor 2 ("a")"#),
        (&["a", ""], "m.gguf: tensor 2"),
        (&["dense", "a"], r#"tensor 1 ("dense")"#),
    ];
    let names = names.map(|(names, expected)| (TENSORS, MetaValue::strings(names), expected));
    are_refused("tensors", names.into());
    let types: [(&[u32], &str); 3] = [
        (&[0], "sluice.experts.types has 1 elements, expected 2"),
        (&[0, 9999], "element 1 of sluice.experts.types is invalid"),
        (&[2, 1], "experts has a shape in sluice.experts.dims"),
    ];
    let types = types.map(|(types, expected)| (TYPES, MetaValue::u32s(types), expected));
    are_refused("types", types.into());
    let shape = "experts has a shape in sluice.experts.dims";
    let dims: [(&[u64], &str); 7] = [
        (&[2, 2, 3], "dims has 3 elements, expected 6"),
        (&[2, 2, 2, 8, 1, 1], "file_index has 4 elements, expected 3"),
        (&[2, 2, u64::MAX, 8, 1, 1], "file_index has 4 elements"),
        (&[0, 2, 3, 8, 1, 1], shape),
        (&[2, 0, 3, 8, 1, 1], shape),
        (&[1 << 62, 2, 3, 8, 1, 1], shape),
        (&[1 << 59, 1, 3, 8, 1, 1], shape),
    ];
    let dims = dims.map(|(dims, expected)| (DIMS, MetaValue::u64s(dims), expected));
    are_refused("dims", dims.into());
}

#[test]
fn wrong_places_are_named() {
    let index = |places: &[u32]| MetaValue::u32s(places);
    let offsets = |places: &[u64]| MetaValue::u64s(places);
    let element = "element 1 of sluice.experts.file_index is invalid";
    let cases = vec![
        (FILE_INDEX, index(&[1, 2, 1, 0]), element),
        (FILE_INDEX, index(&[1, u32::MAX, 1, 0]), element),
        (FILE_INDEX, index(&[1, 0, 1]), "has 3 elements, expected 4"),
        (OFFSETS, offsets(&[]), "offsets has 0 elements, expected 4"),
        (
            OFFSETS,
            offsets(&[0, 49, 5, 3]),
            "expert 1 of experts is at byte 49 of",
        ),
        (
            OFFSETS,
            offsets(&[0, 48, 5, u64::MAX]),
            "expert 0 of others is at byte 1844",
        ),
    ];
    are_refused("places", cases);
}

#[test]
fn a_missing_array_is_named() {
    let folder = Folder::new("missing");
    for key in KEYS {
        let mut header = folder.header();
        header.remove(key);
        let error = folder.refusal(&header);
        assert!(error.contains(key), "{error}");
    }
}

#[test]
fn a_damaged_header_is_no_reason_to_panic() {
    let folder = Folder::new("damaged");
    let path = folder.write(&folder.header());
    let bytes = fs::read(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    for (at, byte) in (0..).zip(bytes) {
        for flip in [1, 0x80, 0xff] {
            file.write_all_at(&[byte ^ flip], at).unwrap();
            let _opened = ModelFile::open(&path, LoadMode::Read);
        }
        file.write_all_at(&[byte], at).unwrap();
    }
}

#[test]
fn models_of_another_kind_are_refused() {
    let folder = Folder::new("kinds");
    let mut header = folder.header();
    let bytes = fs::read(folder.write(&header)).unwrap().leak();
    let error = ModelFile::from_static("m", bytes).unwrap_err().to_string();
    assert!(error.starts_with("m: it is a model in memory"), "{error}");
    header.set(INDEX_KEY, 0u16);
    header.set(COUNT_KEY, 2u16);
    let error = folder.refusal(&header);
    assert!(error.contains("m.gguf: it is a model in parts"), "{error}");
    // Only the second part has the keys.
    let mut first = GgufHeader::new();
    first.set(INDEX_KEY, 0u16);
    first.set(COUNT_KEY, 2u16);
    header.set(INDEX_KEY, 1u16);
    let parts = [first, header];
    for (index, header) in (0..).zip(&parts) {
        let path = split_path(&folder.0.join("m"), index, 2);
        fs::rename(folder.write(header), path).unwrap();
    }
    let path = split_path(&folder.0.join("m"), 0, 2);
    let error = ModelFile::open(&path, LoadMode::Read).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(": it is a model in parts"), "{error}");
}
