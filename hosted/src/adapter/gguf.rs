//! Adapters in llama.cpp's format: a GGUF file with pairs of tensors (`llama-adapter.cpp`, `convert_lora_to_gguf.py`).
//!
//! `<tensor>.lora_a` has dims [columns, r], `<tensor>.lora_b` [r, rows]; for a stack of matrices both have a third
//! dimension, or one of them is shared by all. `token_embd.weight.lora_a` is transposed: [r, tokens]. The scale is α /
//! r, or 1 if α is 0 or absent.
#![forbid(unsafe_code)]

use super::error::AdapterLoadError;
use super::factors::Factors;
use super::numbers::{check_copies, check_finite, transposed, usize_of};
use super::sink::{AdapterOrigin, PairOrder, PairSink};
use crate::file::ModelFile;
use sluice_core::gguf::source::TensorSource;
use sluice_core::gguf::{Gguf, TensorInfo, optional};
use sluice_core::kernels::WeightType;
use sluice_core::kernels::blocks::dequantize_row;
use std::collections::HashMap;
use std::path::Path;

/// Checks that an open file is an adapter.
pub(super) fn check(file: &ModelFile, path: &Path) -> Result<(), AdapterLoadError> {
    check_kind(&file.parse()?, path)
}

/// Reads an open file; returns warnings.
pub(super) fn read(
    file: &ModelFile,
    path: &Path,
    sink: &mut dyn PairSink,
) -> Result<Vec<String>, AdapterLoadError> {
    let gguf = file.parse()?;
    check_kind(&gguf, path)?;
    let mut warnings = Vec::new();
    check_keys(&gguf, path, &mut warnings)?;
    let key = |key: &str| AdapterLoadError::key(path, key, "has an unexpected type");
    let alpha = "adapter.lora.alpha";
    let alpha = optional(gguf.f32(alpha)).map_err(|_| key(alpha))?;
    if alpha.is_none() {
        warnings.push(format!(
            "{}: adapter.lora.alpha is missing: assuming that the matrices are already scaled",
            path.display()
        ));
    }
    let alpha = alpha.unwrap_or(0.0);
    if !alpha.is_finite() {
        let what = format!("is {alpha}, which is not finite");
        return Err(AdapterLoadError::key(path, "adapter.lora.alpha", what));
    }
    let text = |key: &str| gguf.str(key).ok().filter(|text| !text.is_empty());
    let base_model =
        text("general.base_model.0.name").or_else(|| text("general.base_model.0.repo_url"));
    let mut reader = Reader {
        path,
        source: file.source(),
        alpha,
        bytes: Vec::new(),
        all: [const { Vec::new() }; 2],
        own: Factors::default(),
    };
    let pairs = pairs(&gguf, path)?;
    sink.begin(AdapterOrigin {
        architecture: text("general.architecture").unwrap_or_default().into(),
        base_model: base_model.map(str::to_owned),
    })?;
    for (i, pair) in pairs.iter().enumerate() {
        reader.hand_over(i, pair, sink)?;
    }
    Ok(warnings)
}

/// Checks that the file is an adapter of type LoRA.
fn check_kind(gguf: &Gguf<'_>, path: &Path) -> Result<(), AdapterLoadError> {
    let not = |what: String| Err(AdapterLoadError::not_an_adapter(path, what));
    let text = |key: &str| gguf.str(key).ok();
    match text("general.type") {
        Some("adapter") => {}
        _ if text("general.architecture") == Some("controlvector") => {
            return not("it is a control vector".into());
        }
        None if gguf.get("general.architecture").is_some() => {
            return not("it is a model (general.type is not adapter)".into());
        }
        Some("model") => return not("it is a model".into()),
        Some(other) => return not(format!("general.type is {other:?}")),
        None => return not("general.type is missing".into()),
    }
    match text("adapter.type") {
        Some("lora") => Ok(()),
        Some(other) => {
            let what = format!("is {other:?}; only lora is supported");
            Err(AdapterLoadError::key(path, "adapter.type", what))
        }
        None => Err(AdapterLoadError::key(path, "adapter.type", "is missing")),
    }
}

/// Refuses keys that change the computation, and warns about unknown ones.
fn check_keys(
    gguf: &Gguf<'_>,
    path: &Path,
    warnings: &mut Vec<String>,
) -> Result<(), AdapterLoadError> {
    for (key, value) in gguf.metadata() {
        let Some(name) = key.strip_prefix("adapter.") else {
            continue;
        };
        match name {
            "type" | "lora.alpha" | "lora.task_name" => {}
            "alora.invocation_tokens" => {
                let is_empty = value.as_array().is_some_and(|list| list.is_empty());
                if !is_empty {
                    let what = "is given: the adapter applies only after certain tokens (aLoRA), which is not \
                         supported";
                    return Err(AdapterLoadError::key(path, key, what));
                }
            }
            "lora.prompt_prefix" => warnings.push(format!(
                "{}: {key} is {:?}: not added to prompts",
                path.display(),
                value.as_str().unwrap_or_default()
            )),
            _ => warnings.push(format!("{}: unknown {key} is ignored", path.display())),
        }
    }
    Ok(())
}

/// A and B for one tensor of the model.
struct PairInfo<'g> {
    tensor: &'g str,
    a: TensorInfo<'g>,
    b: TensorInfo<'g>,
}

/// The pairs in file order.
fn pairs<'g>(gguf: &Gguf<'g>, path: &Path) -> Result<Vec<PairInfo<'g>>, AdapterLoadError> {
    type Halves<'g> = (&'g str, [Option<TensorInfo<'g>>; 2]);
    let mut found: Vec<Halves<'g>> = Vec::new();
    let mut places = HashMap::new();
    for info in gguf.tensors() {
        let a = info.name.strip_suffix(".lora_a").map(|name| (name, 0));
        let half = a.or_else(|| info.name.strip_suffix(".lora_b").map(|name| (name, 1)));
        let Some((tensor, half)) = half else {
            let what = match info.name.ends_with("_norm.weight") {
                true => "replaces a norm of the model, which is not supported",
                false => "is not a matrix of an adapter (.lora_a, .lora_b)",
            };
            return Err(AdapterLoadError::tensor(path, info.name, what));
        };
        let place = *places.entry(tensor).or_insert_with(|| {
            found.push((tensor, [None, None]));
            found.len() - 1
        });
        found[place].1[half] = Some(info);
    }
    let pairs = found.into_iter().map(|(tensor, halves)| match halves {
        [Some(a), Some(b)] => Ok(PairInfo { tensor, a, b }),
        [Some(_), None] => Err(AdapterLoadError::tensor(
            path,
            tensor,
            "has .lora_a but no .lora_b",
        )),
        _ => Err(AdapterLoadError::tensor(
            path,
            tensor,
            "has .lora_b but no .lora_a",
        )),
    });
    let pairs = pairs.collect::<Result<Vec<_>, _>>()?;
    match pairs.is_empty() {
        true => Err(AdapterLoadError::not_an_adapter(path, "it has no matrices")),
        false => Ok(pairs),
    }
}

/// Reads pairs, reusing its buffers.
struct Reader<'r> {
    path: &'r Path,
    source: &'r dyn TensorSource,
    alpha: f32,
    bytes: Vec<u8>,
    /// A and B of a whole stack.
    all: [Vec<f32>; 2],
    /// The factors of one matrix.
    own: Factors,
}

impl Reader<'_> {
    /// Passes on pair `i`, matrix by matrix for a stack.
    fn hand_over(
        &mut self,
        i: usize,
        pair: &PairInfo<'_>,
        sink: &mut dyn PairSink,
    ) -> Result<(), AdapterLoadError> {
        let PairInfo { tensor, a, b } = pair;
        let n_parts = self.check(pair)?;
        let is_stack = a.n_dims == 3 || b.n_dims == 3;
        let counts = [a.dims[2], b.dims[2]];
        self.read(a, 0)?;
        self.read(b, 1)?;
        for (all, n) in self.all.iter().zip(counts) {
            // A single matrix is shared by the whole stack.
            let copies = if n == 1 { n_parts } else { 1 };
            check_copies(self.path, tensor, copies, all.len() / usize_of(n))?;
        }
        let rank = usize_of(b.dims[0]);
        self.own.tensor.clear();
        self.own.tensor.push_str(tensor);
        (self.own.rank, self.own.scale) = (rank, self.scale(rank));
        for part in 0..usize_of(n_parts) {
            let own = [&mut self.own.a, &mut self.own.b];
            for ((own, all), n) in own.into_iter().zip(&self.all).zip(counts) {
                let len = all.len() / usize_of(n);
                let place = if n == 1 { 0 } else { part };
                own.clear();
                own.extend_from_slice(&all[place * len..][..len]);
            }
            if *tensor == EMBEDDING {
                self.own.a = transposed(&self.own.a, self.own.a.len() / rank);
            }
            self.own.part = is_stack.then(|| u32::try_from(part).unwrap_or(u32::MAX));
            sink.take(PairOrder { tensor: i, part }, &self.own)?;
        }
        Ok(())
    }

    /// Checks that two tensors match; returns the number of matrices they are for.
    fn check(&self, pair: &PairInfo<'_>) -> Result<u64, AdapterLoadError> {
        let PairInfo { tensor, a, b } = *pair;
        let is_embedding = tensor == EMBEDDING;
        let rank = b.dims[0];
        let rank_of_a = if is_embedding { a.dims[0] } else { a.dims[1] };
        let error = |what| Err(AdapterLoadError::tensor(self.path, tensor, what));
        if rank == 0 || rank != rank_of_a {
            return error(format!(
                "has matrices of ranks {rank_of_a} (.lora_a {:?}) and {rank} (.lora_b {:?})",
                a.dims, b.dims
            ));
        }
        let is_flat = |info: &TensorInfo<'_>| info.dims[3] == 1 && !info.dims.contains(&0);
        let counts = [a.dims[2], b.dims[2]];
        let n_parts = counts[0].max(counts[1]);
        let fits = counts.iter().all(|n| *n == n_parts || *n == 1);
        if !is_flat(&a) || !is_flat(&b) || !fits || (is_embedding && n_parts > 1) {
            return error(format!(
                "has matrices that do not fit each other: {:?} and {:?}",
                a.dims, b.dims
            ));
        }
        Ok(n_parts)
    }

    /// The scale, as llama.cpp computes it.
    fn scale(&self, rank: usize) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "ranks are small")]
        let rank = rank as f32;
        if self.alpha == 0.0 {
            1.0
        } else {
            self.alpha / rank
        }
    }

    /// Reads A (0) or B (1) of a whole stack.
    fn read(&mut self, info: &TensorInfo<'_>, half: usize) -> Result<(), AdapterLoadError> {
        if WeightType::from_ggml(info.ty).is_none() {
            let what = format!("has type {}, which is not supported for weights", info.ty);
            return Err(AdapterLoadError::tensor(self.path, info.name, what));
        }
        self.bytes.resize(usize_of(info.len_bytes), 0);
        self.source
            .read(info.offset, &mut self.bytes)
            .map_err(|error| AdapterLoadError::data(self.path, info.name, error))?;
        let numbers = &mut self.all[half];
        numbers.resize(usize_of(info.n_elements()), 0.0);
        dequantize_row(info.ty, &self.bytes, numbers);
        check_finite(self.path, info.name, numbers)
    }
}

const EMBEDDING: &str = "token_embd.weight";
