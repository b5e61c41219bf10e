//! `adapter_model.bin`: tensors as `torch.save` writes them, a ZIP file with a pickle that describes them.
//!
//! A pickle is a program. [`pickle`] runs none: it knows the few instructions and names that describe tensors, and
//! refuses all others by name. The numbers lie in the file uncompressed, so they are read in place as in a
//! safetensors file.
//!
//! Sources: torch/serialization.py and caffe2/serialize/inline_container.cc (PyTorch 2.x); APPNOTE.TXT 6.3 (PKWARE).

mod pickle;

use crate::safetensors::SafetensorsEntry;
use core::ops::Range;
use pickle::{PickledTensor, tensors_in};
use sluice::adapter::AdapterLoadError;
use sluice::file::ReadFile;
use sluice_core::gguf::source::TensorSource as _;
use std::collections::HashMap;

/// The tensors of an open file, in the order of their data.
pub(super) fn read_entries(file: &ReadFile) -> Result<Vec<SafetensorsEntry>, AdapterLoadError> {
    let error = |what: String| AdapterLoadError::not_an_adapter(file.path(), what);
    let members = Zip(file).members().map_err(error)?;
    let is_folder = |folder: &&str| folder.is_empty() || folder.ends_with('/');
    let folders = members
        .keys()
        .filter_map(|name| name.strip_suffix("data.pkl"));
    let mut folders = folders.filter(is_folder);
    let folder = match (folders.next(), folders.next()) {
        (Some(folder), None) => folder,
        (None, _) => return Err(error("it has no data.pkl, which torch.save writes".into())),
        _ => return Err(error("it has several files data.pkl".into())),
    };
    let member = |name: &str| members.get(&format!("{folder}{name}")).cloned();
    let bytes = |range: Range<u64>| {
        let len = range.end - range.start;
        let len = usize::try_from(len)
            .ok()
            .filter(|_| len <= PICKLE_BYTES_MAX);
        let mut bytes = vec![0; len.ok_or_else(|| error("its data.pkl is too long".into()))?];
        let read = file.read(range.start, &mut bytes);
        read.map_err(|error| AdapterLoadError::data(file.path(), "data.pkl", error))?;
        Ok::<_, AdapterLoadError>(bytes)
    };
    if let Some(order) = member("byteorder")
        && bytes(order)? != b"little"
    {
        return Err(error("its numbers are not little-endian".into()));
    }
    let pickle = member("data.pkl")
        .map(bytes)
        .transpose()?
        .unwrap_or_default();
    let found = tensors_in(&pickle).map_err(|what| error(format!("data.pkl: {what}")))?;
    let mut entries = Vec::with_capacity(found.len());
    for tensor in found {
        let range = member(&format!("data/{}", tensor.key));
        let entry = range.ok_or_else(|| "has no data in the file".to_owned());
        let entry = entry.and_then(|range| entry_of(&tensor, range));
        let told = |what| AdapterLoadError::tensor(file.path(), &*tensor.name, what);
        entries.push(entry.map_err(told)?);
    }
    entries.sort_by_key(|entry| entry.offset);
    // Tied tensors share their numbers; more names than that would multiply them in memory.
    let total = entries
        .iter()
        .try_fold(0u64, |sum, entry| sum.checked_add(entry.len_bytes));
    if total.is_none_or(|total| total / 2 > file.len_bytes()) {
        return Err(error("its tensors have more numbers than the file".into()));
    }
    Ok(entries)
}

/// Far more than the descriptions of an adapter's tensors take.
const PICKLE_BYTES_MAX: u64 = 16 << 20;

/// The tensor in `range`, the bytes of its storage.
fn entry_of(tensor: &PickledTensor, range: Range<u64>) -> Result<SafetensorsEntry, String> {
    let mut n = 1u64;
    for (dim, stride) in tensor.shape.iter().zip(&tensor.strides).rev() {
        if *dim != 1 && *stride != n {
            return Err("is not stored row by row: save it with .contiguous()".into());
        }
        n = n.checked_mul(*dim).ok_or("is too large")?;
    }
    let element = u64::from(tensor.dtype.bits()) / 8;
    let place = tensor
        .first
        .checked_mul(element)
        .zip(n.checked_mul(element));
    let end = place.and_then(|(first, len)| first.checked_add(len));
    match (place, end) {
        (Some((first, len_bytes)), Some(end)) if end <= range.end - range.start => {
            Ok(SafetensorsEntry {
                name: tensor.name.clone(),
                dtype: tensor.dtype,
                shape: tensor.shape.clone(),
                offset: range.start + first,
                len_bytes,
            })
        }
        _ => Err("is longer than its data in the file".into()),
    }
}

/// A ZIP file.
struct Zip<'f>(&'f ReadFile);

impl Zip<'_> {
    /// The bytes of each member.
    fn members(&self) -> Result<HashMap<String, Range<u64>>, String> {
        let len = self.0.len_bytes();
        let tail_len = len.min(END_BYTES + COMMENT_BYTES_MAX);
        let tail = self.bytes(len - tail_len, tail_len)?;
        let starts = (0..tail.len().saturating_sub(21)).rev();
        let mut ends = starts.filter(|at| tail[*at..].starts_with(b"PK\x05\x06"));
        let at = ends.next().ok_or(
            "it is not a ZIP file, which torch.save has written since 1.6: save it again with a newer torch",
        )?;
        let (mut size, mut offset) = (number(&tail, at + 12, 4)?, number(&tail, at + 16, 4)?);
        // The 64-bit record lies before, and a pointer to it between.
        let locator = at
            .checked_sub(20)
            .filter(|at| tail[*at..].starts_with(b"PK\x06\x07"));
        if let Some(locator) = locator {
            let record = self.bytes(number(&tail, locator + 8, 8)?, 56)?;
            (size, offset) = (number(&record, 40, 8)?, number(&record, 48, 8)?);
        }
        if size > PICKLE_BYTES_MAX {
            return Err("its list of members is too long".into());
        }
        let list = self.bytes(offset, size)?;
        let (mut members, mut at) = (HashMap::new(), 0);
        while list[at..].starts_with(b"PK\x01\x02") {
            let [name, extra, comment] = [28, 30, 32].map(|field| number(&list, at + field, 2));
            let (name, extra, comment) = (name?, extra?, comment?);
            let end = at + 46 + index(name);
            let name = list.get(at + 46..end).ok_or(CUT)?;
            let name = String::from_utf8_lossy(name).into_owned();
            let extra = list.get(end..end + index(extra)).ok_or(CUT)?;
            let range = self.data(&list[at..], extra);
            let range = range.map_err(|what| format!("{name} {what}"))?;
            if members.contains_key(&name) {
                return Err(format!("{name} is in it twice"));
            }
            members.insert(name, range);
            at = end + extra.len() + index(comment);
            if at > list.len() {
                return Err(CUT.into());
            }
        }
        Ok(members)
    }

    /// The bytes of the member with this header.
    fn data(&self, header: &[u8], extra: &[u8]) -> Result<Range<u64>, String> {
        let is_encrypted = number(header, 8, 2)? & 1 == 1;
        if is_encrypted || number(header, 10, 2)? != 0 {
            return Err("is compressed, which torch.save never does".into());
        }
        let [stored, size, offset] = [20, 24, 42].map(|field| number(header, field, 4));
        let mut fields = [size?, stored?, offset?];
        let (mut at, mut wide) = (0, None);
        while at + 4 <= extra.len() {
            let (id, len) = (number(extra, at, 2)?, index(number(extra, at + 2, 2)?));
            if id == 1 {
                wide = extra.get(at + 4..at + 4 + len);
            }
            at += 4 + len;
        }
        let mut rest = wide.unwrap_or_default();
        // Only fields that do not fit in 32 bits are there.
        for field in fields
            .iter_mut()
            .filter(|field| **field == u64::from(u32::MAX))
        {
            *field = number(rest, 0, 8)?;
            rest = &rest[8..];
        }
        let [size, stored, offset] = fields;
        let local = self.bytes(offset, 30)?;
        if size != stored || !local.starts_with(b"PK\x03\x04") {
            return Err(CUT.into());
        }
        let start = offset + 30 + number(&local, 26, 2)? + number(&local, 28, 2)?;
        let end = start
            .checked_add(size)
            .filter(|end| *end <= self.0.len_bytes());
        end.map(|end| start..end).ok_or_else(|| CUT.into())
    }

    fn bytes(&self, offset: u64, len: u64) -> Result<Vec<u8>, String> {
        let end = offset
            .checked_add(len)
            .filter(|end| *end <= self.0.len_bytes());
        end.ok_or(CUT)?;
        let mut bytes = vec![0; index(len)];
        self.0
            .read(offset, &mut bytes)
            .map_err(|error| error.to_string())?;
        Ok(bytes)
    }
}

const CUT: &str = "is not a complete ZIP file";
/// The last record without its comment, and the longest comment with a 64-bit record before.
const END_BYTES: u64 = 22 + 20;
const COMMENT_BYTES_MAX: u64 = 1 << 16;

/// A little-endian number of `n` bytes.
fn number(bytes: &[u8], at: usize, n: usize) -> Result<u64, String> {
    let mut number = [0; 8];
    number[..n].copy_from_slice(bytes.get(at..at + n).ok_or(CUT)?);
    Ok(u64::from_le_bytes(number))
}

/// A length that is at most a file's.
fn index(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX >> 1)
}

#[cfg(test)]
mod tests;
