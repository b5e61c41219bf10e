//! Logits that llama.cpp gave for some small models, and how far logits are from each other.
//!
//! Made by `tests/fixtures/make.py`, in the shared folder by its `tools/llama_logits.py`, with llama.cpp as vendored by
//! llama-cpp-python 0.3.36 (ggml 0.25.3), one thread, KV cache in f16.

use core::fmt::Display;
use std::path::{Path, PathBuf};

use crate::reference::Unreadable;
use crate::reference::dequant::dequantise;

/// One model, one token sequence, and llama.cpp's logits for it.
#[derive(Clone, Copy, Debug)]
pub struct Golden {
    /// Name in messages.
    pub name: &'static str,
    /// GGUF file, relative to the folder `shared`, or to this crate's where it is the project's own.
    pub model: &'static str,
    /// (`ids.len()`, `n_vocab`) little-endian f32, in the model's folder; row i belongs to tokens 0..=i.
    pub logits: &'static str,
    /// The tokens that were evaluated.
    pub ids: &'static [u32],
}

impl Golden {
    /// llama.cpp's logits, one row per token.
    ///
    /// # Errors
    /// [`Unreadable`] when the file is missing or does not hold whole rows.
    pub fn llama_cpp_logits(&self, folder: &Path) -> Result<Vec<Vec<f32>>, Unreadable> {
        let path = folder.join(self.logits);
        let unreadable =
            |reason: &dyn Display| Unreadable::new(format!("{}: {reason}", path.display()));
        let bytes = std::fs::read(&path).map_err(|error| unreadable(&error))?;
        let n_vocab = bytes.len() / 4 / self.ids.len();
        if n_vocab == 0 || n_vocab * 4 * self.ids.len() != bytes.len() {
            return Err(unreadable(&"not one row per token"));
        }
        let all = dequantise(0, &bytes, bytes.len() / 4)?;
        Ok(all.chunks_exact(n_vocab).map(<[f32]>::to_vec).collect())
    }

    /// Whether its weights are in blocks, whose products round activations to 8 bits.
    #[must_use]
    pub fn is_quantised(&self) -> bool {
        let ty = self.name.split_once('-').map_or("", |(_, ty)| ty);
        let ty = ty.strip_prefix("llama-").unwrap_or(ty);
        let starts = ["Q", "IQ", "TQ", "MXFP4", "NVFP4"];
        starts.iter().any(|start| ty.starts_with(start)) || ty.starts_with("oss-MXFP4")
    }
}

macro_rules! tiny_llama {
    ($type:literal) => {
        Golden {
            name: concat!("tiny-llama-", $type),
            model: concat!("goldens/logits/tiny-llama-", $type, ".gguf"),
            logits: concat!("goldens/logits/tiny-llama-", $type, ".logits.f32"),
            ids: DEFAULT_IDS,
        }
    };
}

macro_rules! tiny {
    ($name:literal) => {
        Golden {
            name: concat!("tiny-", $name, "-f16"),
            model: concat!("goldens/logits/tiny-", $name, "-f16.gguf"),
            logits: concat!("goldens/logits/tiny-", $name, "-f16.logits.f32"),
            ids: DEFAULT_IDS,
        }
    };
}

/// Models with vocabularies of others, in the shared folder.
pub const SHARED: &[Golden] = &[
    tiny_llama!("f16"),
    tiny_llama!("Q8_0"),
    tiny_llama!("Q4_0"),
    tiny_llama!("Q4_K"),
    tiny_llama!("Q5_K"),
    tiny_llama!("Q6_K"),
    tiny_llama!("IQ4_XS"),
    Golden {
        name: "stories260k-f32",
        model: "models/stories260k-f32.gguf",
        logits: "goldens/logits/stories260k-f32.logits.f32",
        ids: &[
            1, 403, 407, 261, 378, 31, 300, 2, 1, 40, 60, 80, 100, 200, 300, 500,
        ],
    },
    Golden {
        name: "tinystories-656k-f16",
        model: "models/tinystories-656k-f16.gguf",
        logits: "goldens/logits/tinystories-656k-f16.logits.f32",
        ids: DEFAULT_IDS,
    },
    tiny!("qwen2"),
    tiny!("qwen3"),
    tiny!("phi3"),
    tiny!("mixtral"),
    tiny!("olmoe"),
    tiny!("qwen3moe"),
];

/// A mixture whose counts divide nothing (5 experts of 40 neurons, 3 used, rows of 72), made by
/// `tests/fixtures/encoders.py`.
pub const ODD_EXPERTS: Golden = Golden {
    name: "odd-experts",
    model: "fixtures/experts/odd-experts-f16.gguf",
    logits: "fixtures/experts/odd-experts-f16.logits.f32",
    ids: &[
        1, 15, 278, 201, 3, 100, 7, 42, 299, 12, 33, 200, 5, 64, 123, 170,
    ],
};

macro_rules! ours {
    ($name:literal) => {
        ours!($name, &OURS_IDS)
    };
    ($name:expr, $ids:expr) => {
        Golden {
            name: $name,
            model: concat!("fixtures/models/", $name, ".gguf"),
            logits: concat!("fixtures/models/", $name, ".logits.f32"),
            ids: $ids,
        }
    };
}

/// A golden with fewer tokens, so that no choice of an expert is nearly a tie.
macro_rules! short {
    ($name:literal) => {
        ours!($name, OURS_IDS.split_at(24).0)
    };
}

/// Architectures and kinds of rotation, in F16.
pub const OURS: &[Golden] = &[
    ours!("llama-linear"),
    ours!("llama-llama3"),
    ours!("llama-yarn"),
    ours!("llama-longrope"),
    ours!("qwen3-yarn"),
    ours!("phi3-short"),
    ours!("phi3-long"),
    ours!("gemma2"),
    ours!("gemma3"),
    ours!("gemma3-listed"),
    ours!("qwen2"),
    ours!("mixtral"),
    ours!("olmoe"),
    ours!("qwen3moe"),
    ours!("llama-NVFP4-scaled", OURS_IDS.split_at(16).0),
    ours!("qwen3moe-scaled", OURS_IDS.split_at(16).0),
    ours!("lfm2"),
    ours!("lfm2-Q4_K_M"),
    ours!("gpt-oss"),
    ours!("gpt-oss-MXFP4_MOE"),
];

/// Families of several kinds of layers, or of latent attention, which [`Hybrid`] evaluates.
///
/// [`Hybrid`]: crate::reference::Hybrid
pub const HYBRIDS: &[Golden] = &[
    ours!("qwen35"),
    ours!("qwen35-mtp"),
    short!("qwen35moe"),
    short!("qwen35moe-fused"),
    short!("qwen35moe-mtp"),
    short!("qwen3next-mtp"),
    short!("qwen3next"),
    short!("qwen3next-old"),
    ours!("granitehybrid"),
    short!("granitehybrid-moe"),
    short!("granitehybrid-rope"),
    ours!("nemotron_h"),
    short!("nemotron_h_moe"),
    short!("nemotron_h_moe-latent"),
    short!("deepseek2"),
    short!("deepseek2-mtp"),
    short!("deepseek2-lite"),
    short!("deepseek2-glm"),
    ours!("gemma4"),
    short!("gemma4-moe"),
    ours!("gemma4-wide"),
];

macro_rules! families {
    ($($name:literal)*) => {
        &[$(ours!($name, OURS_IDS.split_at(24).0),)*]
    };
}

/// Further architectures, by fewer tokens.
pub const FAMILIES: &[Golden] = families!(
    "granite"
    "granite-unrotated"
    "granite-Q4_K_M"
    "granitemoe"
    "granitemoe-shared"
    "granite_swa"
    "granite_swa-moe"
    "glm4"
    "glm4-tied"
    "glm4moe"
    "glm4moe-norms"
    "glm4moe-Q4_K_M"
    "mistral3"
    "mistral3-moe"
    "smollm3"
    "olmo2"
    "olmo2-window"
    "qwen2moe"
    "qwen2moe-64"
    "ernie4_5"
    "ernie4_5-moe"
    "ernie4_5-moe-step"
    "seed_oss"
    "seed_oss-tied"
    "cohere2"
    "cohere2-listed"
    "exaone4"
    "exaone4-window"
    "minimax-m2"
    "minimax-m2-pairs"
    "hunyuan-dense"
    "hunyuan-moe"
    "hunyuan-moe-equal"
    "lfm2moe"
    "lfm2moe-64"
    "smallthinker"
    "smallthinker-softmax"
    "minicpm"
    "minicpm-plain"
);

macro_rules! types {
    ($($ty:literal)*) => {
        &[$(ours!(concat!("llama-", $ty), OURS_IDS.split_at(16).0),)*]
    };
}

/// A model in every weight type: one of narrow rows where blocks are short, else one of wide rows.
pub const TYPES: &[Golden] = types!(
    "F32" "F16" "BF16" "Q8_0" "Q4_0" "Q4_1" "Q5_0" "Q5_1" "Q2_K" "Q3_K" "Q4_K" "Q5_K" "Q6_K"
    "IQ1_S" "IQ1_M" "IQ2_XXS" "IQ2_XS" "IQ2_S" "IQ3_XXS" "IQ3_S" "IQ4_NL" "IQ4_XS" "TQ1_0" "TQ2_0"
    "MXFP4" "NVFP4"
);

/// The tokens of the project's own models: `3 + (7 i² + 11 i + 5) % 256`.
const OURS_IDS: [u32; 40] = {
    let mut ids = [0; 40];
    let mut i = 0;
    while i < ids.len() {
        #[expect(clippy::cast_possible_truncation, reason = "below 40")]
        let x = i as u32;
        ids[i] = 3 + (7 * x * x + 11 * x + 5) % 256;
        i += 1;
    }
    ids
};

/// Every golden of a decoder, with its folder; goldens in the shared folder only if that exists.
#[must_use]
pub fn all() -> Vec<(&'static Golden, PathBuf)> {
    let ours = OURS.iter().chain(FAMILIES);
    let ours = ours.chain(TYPES).chain([&ODD_EXPERTS]);
    let ours = ours.map(|golden| (golden, own_folder()));
    let shared = crate::shared_folder().into_iter().flat_map(|shared| {
        let goldens = SHARED.iter();
        goldens.map(move |golden| (golden, shared.clone()))
    });
    ours.chain(shared).collect()
}

/// What the paths of the project's own goldens are relative to.
fn own_folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The tokens `llama_logits.py` evaluates unless told otherwise.
pub const DEFAULT_IDS: &[u32] = &[
    1, 15, 278, 931, 304, 1000, 7, 42, 999, 512, 33, 2000, 5, 64, 1234, 1700,
];

/// How far logits are from the f64 evaluation.
#[derive(Clone, Copy, Debug)]
pub struct Distance {
    /// Root mean square of the differences.
    pub rms: f64,
    /// `rms` divided by the root mean square of the expected logits.
    pub rms_relative: f64,
    /// Largest difference.
    pub max: f64,
    /// Rows whose largest logit is at the same token.
    pub argmax_equal: usize,
    /// Rows compared.
    pub rows: usize,
}

/// Compares logits row by row.
///
/// # Panics
/// When the shapes differ or there are no logits.
#[must_use]
pub fn distance(actual: &[Vec<f32>], expected: &[Vec<f64>]) -> Distance {
    assert_eq!(actual.len(), expected.len(), "as many rows");
    let (mut squares, mut expected_squares, mut max) = (0.0, 0.0, 0.0f64);
    let mut count = 0u32;
    let mut argmax_equal = 0;
    for (actual, expected) in actual.iter().zip(expected) {
        assert_eq!(actual.len(), expected.len(), "as many logits in a row");
        for (&a, &e) in actual.iter().zip(expected) {
            let difference = f64::from(a) - e;
            squares += difference * difference;
            expected_squares += e * e;
            // Unlike f64::max, keeps a NaN.
            max = if difference.abs() <= max {
                max
            } else {
                difference.abs()
            };
            count += 1;
        }
        let actual: Vec<f64> = actual.iter().copied().map(f64::from).collect();
        argmax_equal += usize::from(argmax(&actual) == argmax(expected));
    }
    assert!(count > 0, "some logits");
    Distance {
        rms: (squares / f64::from(count)).sqrt(),
        rms_relative: (squares / expected_squares).sqrt(),
        max,
        argmax_equal,
        rows: actual.len(),
    }
}

/// Root mean square of the differences between logits.
///
/// # Panics
/// When the shapes differ or there are no logits.
#[must_use]
pub fn rms_distance(actual: &[Vec<f32>], expected: &[Vec<f64>]) -> f64 {
    distance(actual, expected).rms
}

fn argmax(row: &[f64]) -> Option<usize> {
    // The first of equals, as everywhere in Sluice.
    (0..row.len())
        .rev()
        .max_by(|&a, &b| row[a].total_cmp(&row[b]))
}

#[cfg(test)]
mod tests {
    use super::{
        DEFAULT_IDS, Golden, HYBRIDS, OURS_IDS, all, argmax, distance, own_folder, rms_distance,
    };
    use crate::reference::{Hybrid, Model};
    use std::path::Path;

    /// Logits may change places within this many times their rms.
    const TIE_RMS: f64 = 3.0 * core::f64::consts::SQRT_2;

    #[test]
    fn llama_cpp_is_near_the_f64_evaluation() {
        for (golden, folder) in all() {
            let model = Model::open(&folder.join(golden.model)).expect(golden.name);
            is_near(golden, &folder, &model.logits(golden.ids));
        }
    }

    #[test]
    fn llama_cpp_is_near_the_f64_evaluation_of_hybrids() {
        let folder = own_folder();
        for golden in HYBRIDS {
            let model = Hybrid::open(&folder.join(golden.model)).expect(golden.name);
            is_near(golden, &folder, &model.logits(golden.ids));
        }
    }

    /// The distances themselves: `cargo test --release -p sluice-tests -- --nocapture`.
    ///
    /// llama.cpp keeps keys and values in f16 and rounds activations to the format its dot
    /// products want, f16 for f16 weights and 8 bits in blocks for quantised ones: hence the
    /// bounds, about twice what was measured.
    fn is_near(golden: &Golden, folder: &Path, expected: &[Vec<f64>]) {
        let name = golden.name;
        let actual = golden.llama_cpp_logits(folder).expect(name);
        let distance = distance(&actual, expected);
        eprintln!(
            "{name}: rms {:.6}, relative {:.6}, max {:.6}, argmax {}/{}",
            distance.rms, distance.rms_relative, distance.max, distance.argmax_equal, distance.rows
        );
        let bound = match golden.is_quantised() {
            true => 0.08,
            // 3 bits fewer than f16 has, also in activations.
            false if name.contains("BF16") => 0.02,
            // 64 layers.
            false if name == "exaone4-window" => 0.02,
            // llama.cpp rounds the ends of YaRN's ramp, which published models do not.
            false if name == "gpt-oss" => 0.006,
            false => 0.0025,
        };
        assert!(distance.rms_relative < bound, "{name}: {distance:?}");
        for (i, (actual, expected)) in actual.iter().zip(expected).enumerate() {
            let actual: Vec<f64> = actual.iter().copied().map(f64::from).collect();
            let (Some(found), Some(best)) = (argmax(&actual), argmax(expected)) else {
                panic!("{name} has no tokens");
            };
            // Another best token only where the two are a tie: each logit is off by the rms of
            // all, so their difference by the root of two of it; three times that is rare.
            let gap = expected[best] - expected[found];
            if gap > 0.0 {
                eprintln!("{name} row {i}: {:.3} times the rms", gap / distance.rms);
            }
            assert!(
                gap <= TIE_RMS * distance.rms,
                "{name} row {i}: {gap} of {distance:?}"
            );
        }
    }

    /// With one token attention is the identity, and what f16 does to an f32 model is only the
    /// rounding of the values.
    #[test]
    fn an_f32_model_agrees_closely_where_attention_does_not_mix() {
        let bounds = [("llama-F32", 5e-4), ("stories260k-f32", 2e-4)];
        for (golden, folder) in all() {
            let Some((_, bound)) = bounds.iter().find(|(name, _)| *name == golden.name) else {
                continue;
            };
            let model = Model::open(&folder.join(golden.model)).expect("a sound file");
            let expected = model.logits(&golden.ids[..1]);
            let actual = golden.llama_cpp_logits(&folder).expect("a sound file");
            let distance = distance(&actual[..1], &expected);
            assert!(
                distance.rms_relative < *bound,
                "{}: {distance:?}",
                golden.name
            );
        }
    }

    #[test]
    fn rows_do_not_depend_on_later_tokens() {
        let path = crate::fixture("models/llama-F16.gguf");
        let model = Model::open(&path).expect("a sound file");
        let all = model.logits(&OURS_IDS);
        for len in [0, 1, 5] {
            assert_eq!(model.logits(&OURS_IDS[..len]), all[..len]);
        }
    }

    /// One model in three types: quantising moves its logits by little, and by less at 8 bits.
    #[test]
    fn quantised_files_evaluate_near_their_f16_file() {
        // Random weights have outliers in every block, trained ones few.
        let ours = crate::fixture("models");
        let types = ["F16", "Q8_0", "Q5_1"];
        quantised_near_f16(&ours, "llama", types, &OURS_IDS, [0.05, 0.3]);
        if let Some(shared) = crate::shared_folder() {
            let folder = shared.join("models");
            let types = ["f16", "Q8_0", "Q4_K_M"];
            quantised_near_f16(&folder, "tale-5.8m", types, DEFAULT_IDS, [0.01, 0.1]);
        }
    }

    fn quantised_near_f16(
        folder: &Path,
        model: &str,
        types: [&str; 3],
        ids: &[u32],
        bounds: [f64; 2],
    ) {
        let [expected, logits @ ..] = types.map(|ty| {
            let path = folder.join(format!("{model}-{ty}.gguf"));
            Model::open(&path).expect(ty).logits(ids)
        });
        let relative = logits.map(|logits| {
            let rows = logits.into_iter();
            let rows = rows.map(|row| row.into_iter().map(rounded).collect());
            distance(&rows.collect::<Vec<_>>(), &expected).rms_relative
        });
        eprintln!("{model} in {types:?}, all in f64: {relative:?}");
        assert!(relative[0] < bounds[0], "{relative:?}");
        assert!(relative[1] < bounds[1], "{relative:?}");
        assert!(relative[0] < relative[1]);
    }

    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is meant")]
    fn rounded(logit: f64) -> f32 {
        logit as f32
    }

    #[test]
    fn distances_of_known_rows() {
        let actual = [vec![1.0f32, 2.0], vec![3.0, 3.0]];
        let expected = [vec![1.0, 4.0], vec![3.0, 1.0]];
        assert!((rms_distance(&actual, &expected) - 2f64.sqrt()).abs() < 1e-15);
        let distance = distance(&actual, &expected);
        assert_eq!((distance.argmax_equal, distance.rows), (2, 2));
        assert!((distance.max - 2.0).abs() < 1e-15);
    }
}
