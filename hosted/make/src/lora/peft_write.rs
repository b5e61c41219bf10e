//! Writing an adapter's folder as PEFT saves it.
//!
//! Names and the row order are converted back to Hugging Face's. A tensor that the converter cuts from a larger matrix,
//! or transposes, cannot be converted back alone, and is refused by name.

use super::LoraError;
use crate::convert::{FloatType, encode};
use serde_json::{Value, json};
use sluice::adapter::{AdapterFile, AdapterLoadError, Factors};
use sluice::file::{FolderFile, ModelFile, write_folder};
use sluice_core::kernels::GgmlType;
use sluice_core::kernels::quantize::Quantizer;
use sluice_hf::adapter::{BaseHints, Pair};
use sluice_hf::{Base, Map, Wanted};
use std::collections::HashMap;
use std::path::Path;

/// Options of the folder.
#[derive(Clone, Copy, Debug)]
pub struct PeftOptions<'o> {
    /// The type of the matrices; F32, F16 or BF16.
    pub float: FloatType,
    /// The model's folder.
    pub base: Option<&'o Path>,
    /// The model's GGUF file.
    pub model: Option<&'o ModelFile>,
    /// Whether to replace the files of an existing folder.
    pub overwrite: bool,
}

/// Writes an adapter as a PEFT folder.
///
/// # Errors
/// [`LoraError`]; the folder is then unchanged, or without its configuration.
pub fn write_peft(
    file: &AdapterFile,
    options: PeftOptions<'_>,
    folder: &Path,
) -> Result<(), LoraError> {
    let (ty, dtype) = match options.float {
        FloatType::F32 => (GgmlType::F32, "F32"),
        FloatType::F16 => (GgmlType::F16, "F16"),
        FloatType::Bf16 => (GgmlType::BF16, "BF16"),
        FloatType::Q8_0 => {
            return Err(LoraError::CannotSay {
                tensor: "a PEFT folder".into(),
                what: "supports F32, F16 or BF16, not Q8_0".into(),
            });
        }
    };
    let hints = BaseHints {
        folder: Path::new(&file.path),
        base: options.base,
        named: file.base_model.as_deref(),
        model: options.model,
    };
    let bases = hints.bases(&[])?;
    let modules = Modules::new(&bases[0], file)?;
    let mut weights = Safetensors::default();
    let mut pairs = Vec::new();
    for factors in &file.factors {
        let (module, pair) = modules.of(factors)?;
        let is_embedding = factors.tensor == "token_embd.weight";
        let [a, b] = match is_embedding {
            true => ["lora_embedding_A", "lora_embedding_B"],
            false => ["lora_A.weight", "lora_B.weight"],
        };
        let columns = pair.a.len() / pair.rank;
        for (end, numbers, row_len) in [(a, &pair.a, columns), (b, &pair.b, pair.rank)] {
            let name = format!("base_model.model.{module}.{end}");
            weights.add(&name, numbers, row_len, ty, dtype)?;
        }
        pairs.push((module, pair.rank, pair.scale));
    }
    let config = config(file, &pairs);
    let (weights, config) = (weights.file(), format!("{config:#}\n"));
    let file = |name, bytes| FolderFile { name, bytes };
    let contents = [
        file("adapter_model.safetensors", &weights),
        file("adapter_config.json", config.as_bytes()),
    ];
    Ok(write_folder(folder, &contents, options.overwrite)?)
}

/// `adapter_config.json`. The largest rank and the most frequent α are the defaults; modules that differ get patterns.
fn config(file: &AdapterFile, pairs: &[(String, usize, f32)]) -> Value {
    let rank = pairs.iter().map(|(_, rank, _)| *rank).max().unwrap_or(1);
    // Exact: a rank has few digits.
    let alpha = |rank: usize, scale: f32| f64::from(scale) * rank as f64;
    let most = most(pairs.iter().map(|(_, rank, scale)| alpha(*rank, *scale)));
    let (mut ranks, mut alphas) = (json!({}), json!({}));
    for (module, own, scale) in pairs {
        if *own != rank {
            ranks[module] = json!(own);
        }
        if alpha(*own, *scale).to_bits() != most.to_bits() {
            alphas[module] = json!(alpha(*own, *scale));
        }
    }
    let modules: Vec<_> = pairs.iter().map(|(module, ..)| module).collect();
    json!({
        "peft_type": "LORA",
        "base_model_name_or_path": file.base_model,
        "r": rank,
        "lora_alpha": most,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": modules,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "use_dora": false,
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "inference_mode": true,
        "task_type": null,
    })
}

/// The most frequent number.
fn most(numbers: impl Iterator<Item = f64>) -> f64 {
    let mut counts: HashMap<u64, usize> = HashMap::new();
    for number in numbers {
        *counts.entry(number.to_bits()).or_default() += 1;
    }
    let most = counts
        .into_iter()
        .max_by_key(|(bits, count)| (*count, *bits));
    most.map_or(1.0, |(bits, _)| f64::from_bits(bits))
}

/// The converter's tensors, by name.
struct Modules(HashMap<String, Wanted>);

impl Modules {
    fn new(base: &Base, file: &AdapterFile) -> Result<Self, LoraError> {
        if !file.architecture.is_empty() && file.architecture != base.architecture() {
            let error = AdapterLoadError::Family {
                path: file.path.clone(),
                found: file.architecture.clone(),
                expected: base.architecture().into(),
            };
            return Err(error.into());
        }
        let wanted = base.wanted().into_iter();
        Ok(Self(wanted.map(|own| (own.name.clone(), own)).collect()))
    }

    /// The Hugging Face name of the adapted module, and the pair with the rows and columns in its order.
    fn of(&self, factors: &Factors) -> Result<(String, Pair), LoraError> {
        let cannot = |what: &str| LoraError::CannotSay {
            tensor: factors.tensor.clone(),
            what: what.into(),
        };
        let wanted = self.0.get(&factors.tensor);
        let wanted = wanted.filter(|wanted| wanted.map == Map::Same);
        let wanted = wanted.ok_or_else(|| cannot("is not a matrix of Hugging Face's model"))?;
        let place = match factors.part {
            Some(part) if wanted.is_stack_of_parts() => part as usize,
            None if !wanted.is_stack_of_parts() => 0,
            _ => {
                return Err(cannot(
                    "is part of a Hugging Face matrix, which cannot be adapted in part",
                ));
            }
        };
        let name = wanted
            .parts
            .get(place)
            .and_then(|name| name.strip_suffix(".weight"));
        let name = name.ok_or_else(|| cannot("is not a module of Hugging Face's model"))?;
        let mut source = wanted.source.clone();
        if factors.tensor == "token_embd.weight" {
            source.reverse();
        }
        let found = [factors.n_rows() as u64, factors.n_cols() as u64];
        if wanted.shape.len() != 2 || wanted.shape != wanted.source {
            return Err(cannot(
                "is cut from a Hugging Face matrix, and cannot be converted back on its own",
            ));
        }
        if found != [source[0], source[1]] {
            let error = AdapterLoadError::Shape {
                path: name.into(),
                tensor: factors.tensor.clone(),
                found,
                expected: [source[0], source[1]],
            };
            return Err(error.into());
        }
        let pair = Pair::turned_back(factors, wanted);
        let pair = pair.ok_or_else(|| {
            cannot("is cut from a Hugging Face matrix, and cannot be converted back on its own")
        })?;
        Ok((name.into(), pair))
    }
}

/// A safetensors file under construction.
#[derive(Default)]
struct Safetensors {
    header: serde_json::Map<String, Value>,
    data: Vec<u8>,
}

impl Safetensors {
    fn add(
        &mut self,
        name: &str,
        numbers: &[f32],
        row_len: usize,
        ty: GgmlType,
        dtype: &str,
    ) -> Result<(), LoraError> {
        let begin = self.data.len();
        let encoded = encode(Quantizer::detect(), ty, numbers, row_len, &mut self.data);
        encoded.map_err(|error| LoraError::Numbers {
            tensor: name.into(),
            error,
        })?;
        let shape = [numbers.len() / row_len, row_len];
        let entry =
            json!({"dtype": dtype, "shape": shape, "data_offsets": [begin, self.data.len()]});
        self.header.insert(name.into(), entry);
        Ok(())
    }

    fn file(mut self) -> Vec<u8> {
        let about = json!({"format": "pt"});
        self.header.insert("__metadata__".into(), about);
        let mut header = Value::Object(self.header).to_string();
        while !header.len().is_multiple_of(8) {
            header.push(' ');
        }
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.bytes());
        file.extend(self.data);
        file
    }
}
