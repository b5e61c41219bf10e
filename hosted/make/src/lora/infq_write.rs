//! Writing an INFQ v1 directory with one adapter; [`sluice::adapter::infq`] describes the format.

use super::LoraError;
use serde_json::{Value, json};
use sluice::adapter::AdapterFile;
use sluice::adapter::infq::{ALIGN, LAYOUT, RECORD_BYTES, RECORD_LAYOUT};
use sluice::file::{FolderFile, write_folder};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::half::{f16_to_f32, f32_to_f16};
use sluice_core::kernels::quantize::QuantizeError;
use std::path::Path;

/// Options of the directory.
#[derive(Clone, Copy, Debug)]
pub struct InfqOptions<'o> {
    /// The adapter's name, a prefix of the tensors' names.
    pub name: &'o str,
    /// 4 bits per number instead of 8.
    pub is_int4: bool,
    /// Numbers above it are stored separately, as outliers; 0 disables this.
    pub outlier_threshold: f32,
    /// Whether to replace the files of an existing directory.
    pub overwrite: bool,
}

/// The default of the format's own converter.
pub const OUTLIER_THRESHOLD: f32 = 6.0;

/// An outlier's column has 16 bits.
const OUTLIER_COLUMNS_MAX: usize = 1 << 16;

/// Writes an adapter as an INFQ directory.
///
/// # Errors
/// [`LoraError`]; the directory is then unchanged, or without its manifest.
pub fn write_infq(
    file: &AdapterFile,
    options: InfqOptions<'_>,
    folder: &Path,
) -> Result<(), LoraError> {
    let mut files = Files::default();
    let mut adapters = Vec::new();
    for own in &file.factors {
        let part = own
            .part
            .map_or_else(String::new, |part| format!("[{part}]"));
        let name = format!("{}/{}{part}", options.name, own.tensor);
        let b: Vec<_> = own.b.iter().map(|x| own.scale * x).collect();
        let a = files.add(&format!("{name} A"), &b, own.rank, options)?;
        let b = files.add(&format!("{name} B"), &own.a, own.n_cols(), options)?;
        adapters.push(json!({"name": name, "rank": own.rank, "A": a, "B": b}));
    }
    let manifest = json!({"version": 1, "endianness": "LE", "tensors": [], "adapters": adapters});
    let manifest = format!("{manifest:#}\n").into_bytes();
    // The last one identifies the folder: a directory without a manifest is not an adapter.
    let file = |name, bytes| FolderFile { name, bytes };
    let contents = [
        file("weights.bin", &[]),
        file("weights_outliers.bin", &[]),
        file("adapters.bin", &files.data),
        file("adapters_outliers.bin", &files.outliers),
        file("manifest.json", &manifest),
    ];
    Ok(write_folder(folder, &contents, options.overwrite)?)
}

/// The data files under construction.
#[derive(Default)]
struct Files {
    data: Vec<u8>,
    outliers: Vec<u8>,
}

impl Files {
    /// Adds a matrix. Returns its manifest entry.
    fn add(
        &mut self,
        name: &str,
        x: &[f32],
        cols: usize,
        options: InfqOptions<'_>,
    ) -> Result<Value, LoraError> {
        let threshold = options.outlier_threshold;
        let is_outlier = |x: f32| threshold > 0.0 && x.abs() > threshold;
        let (offset_data, mut scales) = (self.data.len(), Vec::new());
        let mut records: Vec<u8> = Vec::new();
        for (row, numbers) in x.chunks_exact(cols).enumerate() {
            let within = numbers.iter().filter(|x| !is_outlier(**x));
            let largest = within.fold(0_f32, |max, x| max.max(x.abs()));
            let limit = if options.is_int4 { 7.0 } else { 127.0 };
            let bits = scale_bits(largest / limit);
            let scale = f16_to_f32(bits);
            if !scale.is_finite() {
                return Err(too_large(name, row * cols));
            }
            scales.extend(bits.to_le_bytes());
            let codes = numbers.iter().map(|&x| match is_outlier(x) {
                true => 0,
                false => code(x / scale, limit),
            });
            push_codes(&mut self.data, codes, options.is_int4);
            for (col, &x) in numbers.iter().enumerate().filter(|(_, x)| is_outlier(**x)) {
                let (value, row) = (f32_to_f16(x), u32::try_from(row));
                let (Ok(row), Ok(col)) = (row, u16::try_from(col)) else {
                    let what = format!(
                        "has an outlier in column {col}, but INFQ has {OUTLIER_COLUMNS_MAX} columns for them: a \
                         threshold of 0 writes no outliers"
                    );
                    let tensor = name.into();
                    return Err(LoraError::CannotSay { tensor, what });
                };
                if !f16_to_f32(value).is_finite() {
                    return Err(too_large(name, row as usize * cols + usize::from(col)));
                }
                records.extend(row.to_le_bytes());
                records.extend(col.to_le_bytes());
                records.extend(value.to_le_bytes());
            }
        }
        let offset_scales = self.data.len();
        self.data.extend(scales);
        let dtype = if options.is_int4 {
            "int4_rowwise"
        } else {
            "int8_rowwise"
        };
        let mut matrix = json!({
            "dtype": dtype, "rows": x.len() / cols, "cols": cols, "block": 64, "scale_dtype": "fp16",
            "layout": LAYOUT, "data_file": "adapters.bin", "offset_data": offset_data,
            "offset_scales": offset_scales,
        });
        if !records.is_empty() {
            let offset = self
                .outliers
                .len()
                .next_multiple_of(usize::try_from(ALIGN).unwrap_or(64));
            self.outliers.resize(offset, 0);
            matrix["outliers"] = json!({
                "data_file": "adapters_outliers.bin", "offset": offset, "count": records.len() as u64 / RECORD_BYTES,
                "record_bytes": RECORD_BYTES, "layout": RECORD_LAYOUT, "align": ALIGN,
            });
            self.outliers.extend(records);
        }
        Ok(matrix)
    }
}

fn too_large(name: &str, index: usize) -> LoraError {
    LoraError::Numbers {
        tensor: name.into(),
        error: QuantizeError::ValueTooLarge {
            ty: GgmlType::F16,
            index,
        },
    }
}

/// A row's scale as f16, at least the smallest one, so that small numbers do not become 0.
fn scale_bits(scale: f32) -> u16 {
    const SMALLEST: u16 = 1;
    f32_to_f16(scale).max(SMALLEST)
}

/// Rounded, ties away from zero.
#[expect(clippy::cast_possible_truncation, reason = "clamped to 8 bits")]
fn code(x: f32, limit: f32) -> i8 {
    x.round().clamp(-limit, limit) as i8
}

fn push_codes(out: &mut Vec<u8>, codes: impl Iterator<Item = i8>, is_int4: bool) {
    let codes: Vec<u8> = codes.map(i8::cast_unsigned).collect();
    match is_int4 {
        false => out.extend(codes),
        true => out.extend(codes.chunks(2).map(|pair| {
            let high = pair.get(1).copied().unwrap_or(0);
            (pair[0] & 15) | high << 4
        })),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice::adapter::Factors;
    use sluice_hf::adapter::read;
    use std::fs;
    use std::path::PathBuf;

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let name = format!("sluice-infq-{}-{name}", std::process::id());
            Self(std::env::temp_dir().join(name))
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _removed = fs::remove_dir_all(&self.0);
        }
    }

    fn file() -> AdapterFile {
        // Numbers that fit 8 and 4 bits exactly once scaled, and outliers.
        let a = [7.0, -3.0, 0.0, 1.0, 9.5, 2.0, -7.0, -5.0, 0.0, 4.0];
        let b = [3.5, -1.0, 0.5, 3.5, 0.0, 0.0];
        let own = |tensor: &str, part| Factors {
            tensor: tensor.into(),
            part,
            rank: 2,
            a: a.to_vec(),
            b: b.to_vec(),
            scale: 2.0,
        };
        AdapterFile {
            factors: vec![
                own("blk.0.attn_q.weight", None),
                own("blk.0.ffn_up_exps.weight", Some(3)),
            ],
            ..AdapterFile::default()
        }
    }

    fn options(is_int4: bool) -> InfqOptions<'static> {
        InfqOptions {
            name: "mine",
            is_int4,
            outlier_threshold: 7.5,
            overwrite: false,
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for is_int4 in [false, true] {
            let folder = Folder::new(&format!("round-{is_int4}"));
            let file = file();
            write_infq(&file, options(is_int4), &folder.0).expect("it can be written");
            let read = read(&folder.0, None, None).expect("it can be read");
            assert_eq!(read.factors.len(), 2);
            for (own, read) in file.factors.iter().zip(&read.factors) {
                assert_eq!((own.key(), own.rank), (read.key(), read.rank));
                assert_eq!(read.scale.to_bits(), 1f32.to_bits());
                let limit = if is_int4 { 7.0 } else { 127.0 };
                let scaled: Vec<_> = own.b.iter().map(|x| 2.0 * x).collect();
                for (x, y) in own
                    .a
                    .iter()
                    .chain(&scaled)
                    .zip(read.a.iter().chain(&read.b))
                {
                    assert!((x - y).abs() <= 0.51 * 7.0 / limit, "{x} {y}");
                }
                assert_eq!(read.a[4].to_bits(), 9.5f32.to_bits());
            }
            let error = write_infq(&file, options(is_int4), &folder.0).expect_err("it is there");
            assert!(error.to_string().contains("exists already"), "{error}");
        }
    }

    /// Edits of a manifest, and the expected errors.
    #[test]
    fn hostile_manifests_are_errors() {
        let folder = Folder::new("hostile");
        write_infq(&file(), options(false), &folder.0).expect("it can be written");
        let path = folder.0.join("manifest.json");
        let sound = fs::read_to_string(&path).expect("it was written");
        let max = u64::MAX.to_string();
        for (from, to, expected) in [
            ("\"version\": 1", "\"version\": 2", "version is 2"),
            ("\"LE\"", "\"BE\"", "endianness is \"BE\""),
            ("int8_rowwise", "int2", "unknown dtype \"int2\""),
            ("\"rank\": 2", "\"rank\": 3", "has rank 3"),
            ("\"rank\": 2", "\"rank\": 0", "has rank 0"),
            ("\"rows\": 3", &format!("\"rows\": {max}"), "too large"),
            (
                "\"rows\": 3",
                "\"rows\": 4000000000000000000",
                "adapters.bin has",
            ),
            ("\"rows\": 3", "\"rows\": 4000000", "adapters.bin has"),
            (
                "\"offset_data\": 0",
                &format!("\"offset_data\": {max}"),
                "adapters.bin has",
            ),
            (
                "\"offset_scales\": 6",
                "\"offset_scales\": 70",
                "adapters.bin has",
            ),
            ("\"adapters.bin\"", "\"../adapters.bin\"", "not a file name"),
            ("\"adapters.bin\"", "\"absent.bin\"", "absent.bin"),
            ("\"offset\": 0", "\"offset\": 8", "multiples of 64"),
            ("\"count\": 1", &format!("\"count\": {max}"), "too many"),
            (
                "\"count\": 1",
                "\"count\": 1000",
                "adapters_outliers.bin has",
            ),
            (
                "mine/blk.0.attn_q.weight",
                "mine",
                "does not state its matrix",
            ),
            (
                "mine/blk.0.attn_q.weight",
                "mine/blk.0.ffn_up_exps.weight[3]",
                "defined twice",
            ),
            (
                "mine/blk.0.attn_q.weight",
                "other/blk.0.attn_q.weight",
                "several adapters (mine, other)",
            ),
            ("\"cols\": 5", "\"cols\": \"x\"", "invalid type"),
        ] {
            assert!(sound.contains(from), "{from}");
            fs::write(&path, sound.replacen(from, to, 1)).expect("it can be written");
            let error = read(&folder.0, None, None).expect_err(expected).to_string();
            assert!(error.contains(expected), "{from} {to}: {error}");
        }
    }

    #[test]
    fn matrices_over_the_same_bytes_are_an_error() {
        let folder = Folder::new("same");
        write_infq(&file(), options(false), &folder.0).expect("it can be written");
        let path = folder.0.join("manifest.json");
        let sound = fs::read_to_string(&path).expect("it was written");
        let manifest: Value = serde_json::from_str(&sound).expect("it is sound");
        let mut many = manifest.clone();
        for i in 0..40 {
            let mut entry = manifest["adapters"][0].clone();
            entry["name"] = json!(format!("mine/blk.{i}.attn_k.weight"));
            many["adapters"].as_array_mut().expect("a list").push(entry);
        }
        fs::write(&path, many.to_string()).expect("it can be written");
        let error = read(&folder.0, None, None)
            .expect_err("too much")
            .to_string();
        assert!(error.contains("overlaps other matrices"), "{error}");
    }

    #[test]
    fn small_rows_do_not_become_zeros() {
        let mut file = file();
        file.factors.truncate(1);
        file.factors[0].a = vec![1e-6; 10];
        let folder = Folder::new("small");
        write_infq(&file, options(false), &folder.0).expect("it can be written");
        let read = read(&folder.0, None, None).expect("it can be read");
        assert!(read.factors[0].a.iter().all(|x| (x - 1e-6).abs() < 5e-8));
    }
}
