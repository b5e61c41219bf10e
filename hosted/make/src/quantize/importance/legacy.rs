//! llama.cpp's older format of importance matrices.
//!
//! i32 count of entries; each an i32 length and name, i32 calls, i32 count of values, f32 values: the means of the
//! squares, times the number of calls; then i32 chunks, i32 length and name of the text. Little-endian.

use super::{Importance, ImportanceMatrix};

/// Parses a file. How many rows a call had is not in it: [`ROWS_A_CALL`], as llama-imatrix takes by default.
pub(super) fn parse(bytes: &[u8]) -> Result<ImportanceMatrix, String> {
    let mut cursor = LegacyCursor { bytes, at: 0 };
    let mut matrix = ImportanceMatrix {
        chunk_size: ROWS_A_CALL,
        ..ImportanceMatrix::default()
    };
    for _ in 0..cursor.length()? {
        let length = cursor.length()?;
        let name = String::from_utf8(cursor.take(length)?.to_vec())
            .map_err(|_| "a name is not UTF-8".to_owned())?;
        let n_calls = cursor.length()?;
        let n_values = cursor.length()?;
        let values = cursor.take(n_values.checked_mul(4).ok_or("a length overflows")?)?;
        let values = values.as_chunks::<4>().0.iter();
        #[expect(
            clippy::cast_precision_loss,
            reason = "the rounding of huge counts changes nothing"
        )]
        let (n_calls, rows) = (n_calls.max(1) as f32, ROWS_A_CALL as f32);
        let sums = values.map(|x| f32::from_le_bytes(*x) * rows).collect();
        let counts = vec![n_calls * rows];
        let weight = Importance {
            sums,
            counts,
            ..Importance::default()
        };
        matrix.weights.insert(name, weight);
    }
    if matrix.weights.is_empty() {
        return Err("it names no weights".into());
    }
    if cursor.at < bytes.len() {
        matrix.chunk_count = u32::try_from(cursor.length()?).unwrap_or(u32::MAX);
        let length = cursor.length()?;
        let name = String::from_utf8_lossy(cursor.take(length)?);
        matrix.datasets.push(name.into_owned());
    }
    Ok(matrix)
}

/// The bytes of a file. Weights without any data are left out; experts without any get 1, as by llama-imatrix.
pub(super) fn bytes(matrix: &ImportanceMatrix) -> Vec<u8> {
    #[expect(clippy::cast_precision_loss, reason = "chunks are short")]
    let rows = matrix.chunk_size.max(1) as f32;
    let has_data = |weight: &&Importance| weight.counts.iter().any(|&count| count > 0.0);
    let mut bytes = length(matrix.weights.values().filter(has_data).count()).to_vec();
    for (name, weight) in &matrix.weights {
        if !has_data(&weight) {
            continue;
        }
        let most = weight.counts.iter().copied().fold(0.0, f32::max);
        let n_calls = (most / rows).ceil();
        bytes.extend(length(name.len()));
        bytes.extend(name.as_bytes());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "a saturated count is far above any run's"
        )]
        bytes.extend((n_calls as i32).to_le_bytes());
        bytes.extend(length(weight.sums.len()));
        let n_columns = weight.sums.len() / weight.counts.len();
        for index in 0..weight.counts.len() {
            let means = weight.columns(index, n_columns).into_iter();
            bytes.extend(means.flat_map(|mean| (mean * n_calls).to_le_bytes()));
        }
    }
    bytes.extend(length(matrix.chunk_count as usize));
    let dataset = matrix.datasets.last().map_or("", String::as_str);
    bytes.extend(length(dataset.len()));
    bytes.extend(dataset.as_bytes());
    bytes
}

fn length(n: usize) -> [u8; 4] {
    i32::try_from(n).unwrap_or(i32::MAX).to_le_bytes()
}

/// The default context of llama-imatrix.
const ROWS_A_CALL: u32 = 512;

/// A cursor over a file.
struct LegacyCursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> LegacyCursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let end = self.at.checked_add(len);
        let taken = end.and_then(|end| self.bytes.get(self.at..end));
        let taken = taken.ok_or_else(|| {
            format!(
                "neither GGUF nor llama.cpp's older format: an entry of {len} bytes at byte {}",
                self.at
            )
        })?;
        self.at += len;
        Ok(taken)
    }

    /// An i32 that is used as a length.
    fn length(&mut self) -> Result<usize, String> {
        let at = self.at;
        let bytes = self.take(4)?.try_into().expect("four bytes were taken");
        let value = i32::from_le_bytes(bytes);
        usize::try_from(value).map_err(|_| format!("{value} at byte {at} is not a length"))
    }
}
