//! `.slc` files in memory: made, converted back, and run where they are.

use crate::build::encode;
use crate::reference::dequant::dequantise;
use crate::run::Aligned;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice::file::{GgufHeader, OutputFile};
use sluice_core::gguf::source::SliceSource;
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::kernels::GgmlType;
use sluice_core::model::{ModelConfig, ModelError, ModelPlan, ModelWeights};
use sluice_core::slc::{Layout, Slc};
use sluice_core::team::StopFlag;
use sluice_make::slc::{FfnLayout, PackOptions, SlcFileError, SlcWatch, pack, unpack};
use std::path::PathBuf;

/// Types that networks can be stored in by neuron: integers with a fast kernel.
pub const TYPES_BY_NEURON: [GgmlType; 13] = [
    GgmlType::Q8_0,
    GgmlType::Q4_0,
    GgmlType::Q4_1,
    GgmlType::Q5_0,
    GgmlType::Q5_1,
    GgmlType::Q2_K,
    GgmlType::Q3_K,
    GgmlType::Q4_K,
    GgmlType::Q5_K,
    GgmlType::Q6_K,
    GgmlType::IQ4_NL,
    GgmlType::IQ4_XS,
    GgmlType::MXFP4,
];

/// A path in the temporary folder, removed at the end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (id, n) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        Self(std::env::temp_dir().join(format!("sluice-slc-{id}-{n}")))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.0);
    }
}

/// The `.slc` file of a GGUF file, whose tensors may be precision lanes, verified.
///
/// # Errors
/// Whatever cannot be packed.
///
/// # Panics
/// If the file is not GGUF, the temporary folder is not writable, or something remains there after an error.
pub fn packed(gguf_file: &[u8], ffn: FfnLayout) -> Result<Vec<u8>, SlcFileError> {
    let gguf = Gguf::parse_with_lanes(gguf_file, gguf_file.len() as u64).expect("a sound file");
    let path = Temporary::new();
    let output = OutputFile::create(&path.0, false).expect("a writable temporary folder");
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    let options = PackOptions {
        n_threads: 2,
        verify: true,
        ffn,
    };
    if let Err(error) = pack(&SliceSource(gguf_file), &gguf, output, options, &watch) {
        assert!(!path.0.exists(), "{error}");
        return Err(error);
    }
    Ok(std::fs::read(&path.0).expect("it was just written"))
}

/// The GGUF file of a `.slc` file.
///
/// # Errors
/// Whatever is wrong with it.
///
/// # Panics
/// If the temporary folder is not writable.
pub fn unpacked(file: &[u8]) -> Result<Vec<u8>, SlcFileError> {
    let slc = Slc::parse(file, file.len() as u64)?;
    let path = Temporary::new();
    let output = OutputFile::create(&path.0, false).expect("a writable temporary folder");
    let stop = StopFlag::new();
    let watch = SlcWatch::new(0, &stop, &|_| ());
    unpack(&SliceSource(file), &slc, output, &watch)?;
    Ok(std::fs::read(&path.0).expect("it was just written"))
}

/// The same GGUF file with the matrices of its feed-forward networks in Q8_0, where they were floats.
///
/// # Panics
/// If the file is not sound.
#[must_use]
pub fn with_quantised_ffn(bytes: &[u8]) -> Vec<u8> {
    let gguf = Gguf::parse(bytes, bytes.len() as u64).expect("a sound file");
    let to_usize = |n: u64| usize::try_from(n).expect("it is in memory");
    let is_of_ffn = |tensor: &TensorInfo<'_>| {
        let layouts = [Layout::Neurons, Layout::NeuronRecords];
        let has_form = layouts.iter().any(|l| l.form(tensor.name).is_some());
        has_form && tensor.dims[0].is_multiple_of(32)
    };
    let mut header = GgufHeader::with_metadata_of(&gguf);
    let mut all = Vec::new();
    for tensor in gguf.tensors() {
        let data = &bytes[to_usize(tensor.offset)..][..to_usize(tensor.len_bytes)];
        let is_float = matches!(tensor.ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16);
        let quantised = (is_float && is_of_ffn(&tensor)).then(|| {
            let n = to_usize(tensor.n_elements());
            let values = dequantise(tensor.ty as u32, data, n).expect("floats");
            encode(GgmlType::Q8_0, &values)
        });
        let ty = quantised.as_ref().map_or(tensor.ty, |_| GgmlType::Q8_0);
        header.add_tensor(tensor.name, &tensor.dims[..tensor.n_dims], ty);
        all.push(quantised.unwrap_or_else(|| data.to_vec()));
    }
    let mut out = header.bytes();
    let start = out.len();
    for (data, entry) in all.iter().zip(header.tensors()) {
        out.resize(start + to_usize(entry.offset), 0);
        out.extend(data);
    }
    out
}

/// A `.slc` file's payloads, and tables for its model, aligned.
#[derive(Debug)]
pub struct InPlace {
    file: Vec<u8>,
    payloads: Aligned,
    tables: Aligned,
}

impl InPlace {
    /// The model of `file`.
    ///
    /// # Errors
    /// Whatever is wrong with its shape.
    ///
    /// # Panics
    /// If it is not a `.slc` file.
    pub fn new(file: Vec<u8>) -> Result<Self, ModelError> {
        let slc = Slc::parse(&file, file.len() as u64).expect("a sound file");
        let config = ModelConfig::from_gguf(slc.gguf())?;
        let plan = ModelPlan::in_place(&slc, &config)?;
        assert_eq!((plan.weight_bytes, plan.staging_bytes), (0, 0));
        let start = usize::try_from(slc.header().payload_offset()).expect("it is in memory");
        let mut payloads = Aligned::new(file.len() - start);
        payloads.bytes_mut().copy_from_slice(&file[start..]);
        Ok(Self {
            tables: Aligned::new(plan.table_bytes),
            payloads,
            file,
        })
    }

    /// The model.
    ///
    /// # Errors
    /// Whatever is wrong with its tensors.
    ///
    /// # Panics
    /// Never: the headers were read before.
    pub fn model(&mut self) -> Result<ModelWeights<'_>, ModelError> {
        let slc = Slc::parse(&self.file, self.file.len() as u64).expect("read before");
        let config = ModelConfig::from_gguf(slc.gguf())?;
        let (payloads, tables) = (self.payloads.bytes_mut(), self.tables.bytes_mut());
        ModelWeights::in_place(&slc, &config, payloads, tables)
    }
}
