//! Parts that fit, and parts that do not.

use super::*;
use crate::file::{MetaValue, ModelFile};
use sluice_core::kernels::GgmlType;
use std::fs;

/// A folder of its own, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("sluice-parts-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes part `index` of two with the tensors `names`, whose bytes are `fill`, without the
    /// padding after the last one.
    fn part(&self, index: u16, header: GgufHeader, names: &[&str], fill: u8) -> PathBuf {
        let mut header = header;
        header.set(INDEX_KEY, index);
        header.set(COUNT_KEY, 2_u16);
        for name in names {
            header.add_tensor(name, &[3], GgmlType::F32);
        }
        let mut bytes = header.bytes();
        let start = bytes.len();
        let end = header.tensors().last().map_or(0, |last| last.offset + 12);
        bytes.resize(start + usize::try_from(end).unwrap(), fill);
        let path = split_path(&self.0.join("m"), index.into(), 2);
        fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _removed = fs::remove_dir_all(&self.0);
    }
}

fn aligned(alignment: u32) -> GgufHeader {
    let mut empty = GgufHeader::new();
    empty.set(ALIGNMENT_KEY, alignment);
    let bytes = empty.bytes();
    GgufHeader::with_layout_of(&Gguf::parse(&bytes, bytes.len() as u64).unwrap())
}

#[test]
fn parts_of_other_alignments_are_one_file() {
    for (alignment, other) in [(8, 256), (256, 32), (1, 64)] {
        let folder = Folder::new(&format!("aligned-{alignment}"));
        let mut header = aligned(alignment);
        header.set("general.name", "a model");
        let path = folder.part(0, header, &["a", "b"], 1);
        let mut header = aligned(other);
        header.set("general.name", "a model");
        header.set("later.key", MetaValue::u32s(&[1, 2]));
        // A tensor without bytes does not hide the ones after it.
        header.add_tensor("none", &[0], GgmlType::F32);
        folder.part(1, header, &["c"], 2);
        for mode in [LoadMode::Read, LoadMode::Map] {
            let file = ModelFile::open(&path, mode).unwrap();
            let gguf = file.parse().unwrap();
            assert_eq!((file.n_parts(), gguf.alignment()), (2, alignment.into()));
            assert!(gguf.get(COUNT_KEY).is_none() && gguf.get(INDEX_KEY).is_none());
            assert_eq!(gguf.array("later.key").unwrap().len(), 2);
            let source = file.source();
            let mut all = vec![9; usize::try_from(source.len_bytes()).unwrap()];
            source.read(0, &mut all).unwrap();
            // As one file, byte by byte and by any piece.
            let parsed = Gguf::parse(&all, source.len_bytes()).unwrap();
            assert_eq!(parsed.header_bytes(), gguf.header_bytes());
            for (name, fill) in [("a", 1), ("b", 1), ("c", 2)] {
                let tensor = gguf.tensor(name).unwrap();
                let at = usize::try_from(tensor.offset).unwrap();
                assert_eq!(all[at..at + 12], [fill; 12]);
                let slice = source.slice(tensor.offset, 12);
                assert_eq!(slice.is_some(), mode == LoadMode::Map);
                assert!(slice.is_none_or(|bytes| bytes == [fill; 12]));
                assert!(source.slice(tensor.offset, 13).is_none());
                source.release(tensor.offset, 12);
            }
            for len in [1, 5, 40] {
                for at in 0..=all.len() - len {
                    let mut piece = vec![9; len];
                    source.read(at as u64, &mut piece).unwrap();
                    assert_eq!(piece, all[at..at + len]);
                }
            }
            let end = source.len_bytes();
            assert!(source.read(end, &mut []).is_ok());
            assert!(source.read(end, &mut [0]).is_err());
            assert!(source.read(u64::MAX, &mut [0]).is_err());
            assert!(source.slice(u64::MAX, 1).is_none());
        }
    }
}

#[test]
fn parts_that_disagree_are_named() {
    let folder = Folder::new("disagree");
    let said = |header: GgufHeader, names: &[&str]| {
        let mut first = GgufHeader::new();
        first.set("general.name", "a model");
        first.set(TENSORS_KEY, 2_i32);
        let path = folder.part(0, first, &["a"], 1);
        let mut header = header;
        header.set(TENSORS_KEY, 2_i32);
        let second = folder.part(1, header, names, 1);
        let error = ModelFile::open(&path, LoadMode::Read).unwrap_err();
        (
            error.to_string(),
            path.display().to_string(),
            second.display().to_string(),
        )
    };
    let mut named = GgufHeader::new();
    named.set("general.name", "another");
    let (error, _, second) = said(named, &["b"]);
    assert!(
        error.starts_with(&format!("{second}: general.name does not match")),
        "{error}"
    );
    let (error, _, second) = said(GgufHeader::new(), &["a"]);
    assert!(
        error.starts_with(&format!("{second}: an earlier part")),
        "{error}"
    );
    let (error, first, _) = said(GgufHeader::new(), &[]);
    let expected = "all parts together have 1 tensors, but split.tensors.count is 2";
    assert!(
        error.starts_with(&first) && error.contains(expected),
        "{error}"
    );
}

/// What a program leaves that was interrupted while it replaced parts by others, the first one last.
#[test]
fn parts_of_two_splits_are_refused_by_name() {
    let folder = Folder::new("ids");
    let opened = |ids: [Option<&str>; 2]| {
        let [first, second] = [0, 1].map(|i| {
            let mut header = GgufHeader::new();
            if let Some(id) = ids[usize::from(i)] {
                header.set(ID_KEY, id);
            }
            folder.part(i, header, &[["a", "b"][usize::from(i)]], 1)
        });
        let file = ModelFile::open(&first, LoadMode::Read);
        (file, second.display().to_string())
    };
    for ids in [[None, Some("x")], [Some("y"), Some("x")]] {
        let (file, second) = opened(ids);
        let error = file.unwrap_err().to_string();
        let expected = format!("{second}: its sluice.split.id differs from the first part's");
        assert!(error.starts_with(&expected), "{error}");
    }
    for ids in [[Some("x"), Some("x")], [Some("x"), None], [None, None]] {
        let file = opened(ids).0.unwrap();
        let gguf = file.parse().unwrap();
        assert!(gguf.get(ID_KEY).is_none());
    }
}

#[test]
fn a_part_in_memory_is_refused() {
    let folder = Folder::new("memory");
    let path = folder.part(1, GgufHeader::new(), &["a"], 1);
    let bytes = fs::read(path).unwrap().leak();
    let error = ModelFile::from_static("m", bytes).unwrap_err().to_string();
    assert!(
        error.contains("part 2 of 2") && error.contains("gguf-split"),
        "{error}"
    );
}
