//! A model's weights as Hugging Face lays them out: in one or several safetensors files.

use super::ConvertError;
use sluice::file::ReadFile;
use sluice_core::gguf::source::TensorSource as _;
use sluice_hf::safetensors::SafetensorsEntry;
use sluice_hf::{HfError, exists, read_header, read_json};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A folder's weights, all headers read and checked.
#[derive(Debug)]
pub(super) struct Weights {
    shards: Vec<Shard>,
    /// File by file in name order, each in the order of tensor names: the order in which
    /// llama.cpp's converter writes them.
    pub(super) tensors: Vec<Tensor>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    file: ReadFile,
}

/// A tensor and the file it is in.
#[derive(Debug)]
pub(super) struct Tensor {
    shard: usize,
    pub(super) entry: SafetensorsEntry,
}

impl Weights {
    /// Names of the tensors.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let tensors = self.tensors.iter();
        tensors.map(|tensor| tensor.entry.name.as_str())
    }

    pub(super) fn open(folder: &Path) -> Result<Self, ConvertError> {
        let index = folder.join("model.safetensors.index.json");
        let weight_map = match exists(&index) {
            true => Some(read_weight_map(&index)?),
            false => None,
        };
        let names = match &weight_map {
            Some(map) => map.values().cloned().collect(),
            None => shard_names(folder)?,
        };
        let mut weights = Self {
            shards: Vec::with_capacity(names.len()),
            tensors: Vec::new(),
        };
        for name in &names {
            let path = folder.join(name);
            if weight_map.is_some() && !exists(&path) {
                return Err(absent_shard(folder, &index, name));
            }
            weights.add_shard(path)?;
        }
        weights.check_names(weight_map.as_ref().map(|map| (index.as_path(), map)))?;
        Ok(weights)
    }

    /// Inserts a file's tensors before all others, with a prefix for their names.
    pub(super) fn put_first(&mut self, path: PathBuf, prefix: &str) -> Result<(), ConvertError> {
        let others = core::mem::take(&mut self.tensors);
        self.add_shard(path)?;
        for tensor in &mut self.tensors {
            tensor.entry.name = format!("{prefix}{}", tensor.entry.name);
        }
        self.tensors.extend(others);
        Ok(())
    }

    /// Reads bytes of a tensor, `offset` from its start.
    pub(super) fn read(
        &self,
        tensor: usize,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), ConvertError> {
        let Tensor { shard, entry } = &self.tensors[tensor];
        let shard = &self.shards[*shard];
        let read = shard.file.read(entry.offset + offset, into);
        let data_error = |error| HfError::Data {
            path: shard.path.clone(),
            tensor: entry.name.clone(),
            error,
        };
        Ok(read.map_err(data_error)?)
    }

    /// Whether two tensors hold the same bytes in the same shape.
    pub(super) fn are_equal(&self, a: usize, b: usize) -> Result<bool, ConvertError> {
        let entries = [a, b].map(|tensor| &self.tensors[tensor].entry);
        if entries[0].dtype != entries[1].dtype || entries[0].shape != entries[1].shape {
            return Ok(false);
        }
        let (mut left, mut right, mut at) = (Vec::new(), Vec::new(), 0);
        while at < entries[0].len_bytes {
            let len =
                usize::try_from(entries[0].len_bytes - at).map_or(1 << 20, |n| n.min(1 << 20));
            left.resize(len, 0);
            right.resize(len, 0);
            self.read(a, at, &mut left)?;
            self.read(b, at, &mut right)?;
            if left != right {
                return Ok(false);
            }
            at += len as u64;
        }
        Ok(true)
    }

    pub(super) fn path_of(&self, tensor: &Tensor) -> &Path {
        &self.shards[tensor.shard].path
    }

    fn add_shard(&mut self, path: PathBuf) -> Result<(), ConvertError> {
        let file = ReadFile::open(&path)?;
        let mut entries = read_header(&path, &file)?.tensors;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let shard = self.shards.len();
        let tensors = entries.into_iter().map(|entry| Tensor { shard, entry });
        self.tensors.extend(tensors);
        self.shards.push(Shard { path, file });
        Ok(())
    }

    /// Checks that no tensor is in two files, and that each is in the file the index names.
    fn check_names(
        &self,
        index: Option<(&Path, &BTreeMap<String, String>)>,
    ) -> Result<(), ConvertError> {
        let mut found = BTreeMap::new();
        for tensor in &self.tensors {
            let path = self.path_of(tensor);
            if let Some(other) = found.insert(tensor.entry.name.as_str(), path) {
                let what = format!(
                    "tensor {} is also in {}",
                    tensor.entry.name,
                    other.display()
                );
                let path = path.into();
                return Err(ConvertError::Index { path, what });
            }
        }
        let Some((path, map)) = index else {
            return Ok(());
        };
        let error = |what| ConvertError::Index {
            path: path.into(),
            what,
        };
        for (tensor, file) in map {
            match found.remove(tensor.as_str()) {
                Some(at) if at.file_name() == Some(file.as_ref()) => {}
                _ => return Err(error(format!("tensor {tensor} is not in {file}"))),
            }
        }
        match found.first_key_value() {
            Some((tensor, at)) => {
                let at = at.display();
                Err(error(format!(
                    "tensor {tensor} of {at} is not in the index"
                )))
            }
            None => Ok(()),
        }
    }
}

/// The safetensors files of a folder without an index.
fn shard_names(folder: &Path) -> Result<BTreeSet<String>, ConvertError> {
    let read_error = |error| HfError::Read {
        path: folder.into(),
        error,
    };
    let (mut names, mut has_bin) = (BTreeSet::new(), false);
    for entry in fs::read_dir(folder).map_err(read_error)? {
        let name = entry.map_err(read_error)?.file_name();
        let Some(name) = name.to_str() else { continue };
        has_bin |= name.starts_with("pytorch_model") && name.ends_with(".bin");
        if name.starts_with("model") && name.ends_with(".safetensors") {
            names.insert(name.to_owned());
        }
    }
    if names.is_empty() {
        let hint = if has_bin {
            "; pytorch_model.bin is not supported: save the model as safetensors"
        } else {
            ""
        };
        let path = folder.into();
        return Err(ConvertError::NoWeights { path, hint });
    }
    // The number of files is in their names: "model-00002-of-00003.safetensors".
    let count_of = |name: &String| {
        let (_, count) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
        count.parse::<usize>().ok()
    };
    let error = |what: String| ConvertError::Index {
        path: folder.into(),
        what,
    };
    let Some(count) = names.iter().filter_map(count_of).max() else {
        return Ok(names);
    };
    if let Some(other) = names.iter().find(|name| count_of(name) != Some(count)) {
        return Err(error(format!(
            "{other} exists next to the parts of {count} safetensors files, and no index tells which of them is \
             valid: move one or the other away"
        )));
    }
    match names.len() {
        n if n != count => Err(error(format!(
            "only {n} of {count} safetensors files exist"
        ))),
        _ => Ok(names),
    }
}

/// Error for a file that the index names but that does not exist; a complete model may be there.
fn absent_shard(folder: &Path, index: &Path, name: &str) -> ConvertError {
    let whole = match exists(&folder.join("model.safetensors")) {
        true => "; model.safetensors exists: if it is the whole model, remove the index",
        false => "",
    };
    ConvertError::Index {
        path: index.into(),
        what: format!("it names {name}, which does not exist{whole}"),
    }
}

fn read_weight_map(index: &Path) -> Result<BTreeMap<String, String>, ConvertError> {
    #[derive(serde::Deserialize)]
    struct Index {
        weight_map: BTreeMap<String, String>,
    }
    let map = read_json::<Index>(index)?.weight_map;
    for file in map.values() {
        // Must be a plain file name: a foreign index cannot open files outside the folder.
        if Path::new(file).file_name() != Some(file.as_ref()) {
            return Err(ConvertError::Index {
                path: index.into(),
                what: format!("{file:?} is not a file name"),
            });
        }
    }
    Ok(map)
}
