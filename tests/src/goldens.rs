//! Logits that llama.cpp gave for some small models, and how far logits are from each other.
//!
//! Made by `shared/tools/llama_logits.py` with llama.cpp as vendored by llama-cpp-python 0.3.36
//! (ggml 0.25.3), one thread, KV cache in f16.

use core::fmt::Display;
use std::path::{Path, PathBuf};

use crate::reference::Unreadable;
use crate::reference::dequant::dequantise;

/// One model, one token sequence, and llama.cpp's logits for it.
#[derive(Clone, Copy, Debug)]
pub struct Golden {
    /// Its name in messages.
    pub name: &'static str,
    /// GGUF file, relative to the shared folder, or to this crate's where it is the project's own
    /// ([`OURS`]).
    pub model: &'static str,
    /// (`ids.len()`, `n_vocab`) little-endian f32, beside the model; row i belongs to tokens
    /// 0..=i.
    pub logits: &'static str,
    /// The tokens that were evaluated.
    pub ids: &'static [u32],
}

impl Golden {
    /// llama.cpp's logits, one row per token.
    ///
    /// # Errors
    /// [`Unreadable`] when the file is missing or does not hold whole rows.
    pub fn llama_cpp_logits(&self, shared: &Path) -> Result<Vec<Vec<f32>>, Unreadable> {
        let path = shared.join(self.logits);
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

/// The llama-architecture goldens of the types the reference reads.
pub const LLAMA: &[Golden] = &[
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
];

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

/// Goldens of other dense decoders.
pub const DENSE: &[Golden] = &[tiny!("qwen2"), tiny!("qwen3"), tiny!("phi3")];

/// Goldens of mixtures of experts.
pub const EXPERTS: &[Golden] = &[tiny!("mixtral"), tiny!("olmoe"), tiny!("qwen3moe")];

/// A mixture whose counts divide nothing (5 experts of 40 neurons, 3 used, rows of 72), made by
/// `tests/tools/tiny_models.py`.
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
        Golden {
            name: $name,
            model: concat!("fixtures/models/", $name, ".gguf"),
            logits: concat!("fixtures/models/", $name, ".logits.f32"),
            ids: &OURS_IDS,
        }
    };
}

/// Goldens that are part of the project, made by `tests/fixtures/make.py`.
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
];

/// Goldens of architectures whose layers are not alike, also made by that script.
pub const LAYERED: &[Golden] = &[
    ours!("lfm2"),
    ours!("lfm2-Q4_K_M"),
    ours!("gpt-oss"),
    ours!("gpt-oss-MXFP4_MOE"),
];

/// The tokens of [`OURS`] and [`LAYERED`]: `3 + (7 i² + 11 i + 5) % 256`.
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

/// Every golden of a decoder, with its folder; those of the shared folder only where it is
/// there.
#[must_use]
pub fn all() -> Vec<(&'static Golden, PathBuf)> {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = OURS
        .iter()
        .chain([&ODD_EXPERTS])
        .map(|golden| (golden, own.to_path_buf()));
    let shared = crate::shared().into_iter().flat_map(|shared| {
        let goldens = LLAMA.iter().chain(DENSE).chain(EXPERTS);
        goldens.map(move |golden| (golden, shared.clone()))
    });
    own.chain(shared).collect()
}

/// The tokens `llama_logits.py` evaluates unless told otherwise.
pub const DEFAULT_IDS: &[u32] = &[
    1, 15, 278, 931, 304, 1000, 7, 42, 999, 512, 33, 2000, 5, 64, 1234, 1700,
];

/// How far logits are from those of the f64 evaluation.
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
    use super::{DEFAULT_IDS, LAYERED, LLAMA, all, argmax, distance, rms_distance};
    use crate::reference::Model;
    use std::path::Path;

    /// Logits may change places within this many times their rms.
    const TIE_RMS: f64 = 3.0 * core::f64::consts::SQRT_2;

    /// The distances themselves: `cargo test --release -p sluice-tests -- --nocapture`.
    ///
    /// llama.cpp keeps keys and values in f16 and rounds activations to the format its dot
    /// products want, f16 for f16 weights and 8 bits in blocks for quantised ones: hence the
    /// two bounds, about twice what was measured.
    #[test]
    fn llama_cpp_is_near_the_f64_evaluation() {
        let own = Path::new(env!("CARGO_MANIFEST_DIR"));
        let layered = LAYERED.iter().map(|golden| (golden, own.to_path_buf()));
        for (golden, folder) in all().into_iter().chain(layered) {
            let name = golden.name;
            let model = Model::open(&folder.join(golden.model)).expect(name);
            let expected = model.logits(golden.ids);
            let actual = golden.llama_cpp_logits(&folder).expect(name);
            let distance = distance(&actual, &expected);
            eprintln!(
                "{name}: rms {:.6}, relative {:.6}, max {:.6}, argmax {}/{}",
                distance.rms,
                distance.rms_relative,
                distance.max,
                distance.argmax_equal,
                distance.rows
            );
            let is_quantised = ["-Q", "-IQ", "-MX"].iter().any(|ty| name.contains(ty));
            let is_float = !is_quantised;
            let bound = if is_float { 0.0025 } else { 0.08 };
            assert!(distance.rms_relative < bound, "{name}: {distance:?}");
            for (i, (actual, expected)) in actual.iter().zip(&expected).enumerate() {
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
    }

    /// With one token attention is the identity, and what f16 does to an f32 model is only the
    /// rounding of the values.
    #[test]
    fn an_f32_model_agrees_closely_where_attention_does_not_mix() {
        let Some(shared) = crate::shared() else {
            return;
        };
        let golden = LLAMA.iter().find(|golden| golden.name == "stories260k-f32");
        let golden = golden.expect("a case of the list");
        let model = Model::open(&shared.join(golden.model)).expect("a sound file");
        let expected = model.logits(&golden.ids[..1]);
        let actual = golden.llama_cpp_logits(&shared).expect("a sound file");
        let distance = distance(&actual[..1], &expected);
        assert!(distance.rms_relative < 2e-4, "{distance:?}");
    }

    #[test]
    fn rows_do_not_depend_on_later_tokens() {
        let Some(shared) = crate::shared() else {
            return;
        };
        let path = shared.join("goldens/logits/tiny-llama-f16.gguf");
        let model = Model::open(&path).expect("a sound file");
        let all = model.logits(DEFAULT_IDS);
        for len in [0, 1, 5] {
            assert_eq!(model.logits(&DEFAULT_IDS[..len]), all[..len]);
        }
    }

    /// One model in three types: quantising moves its logits by little, and by less at 8 bits.
    #[test]
    fn quantised_files_evaluate_near_their_f16_file() {
        let Some(shared) = crate::shared() else {
            return;
        };
        let logits = |name: &str| {
            let path = shared.join("models").join(format!("tale-5.8m-{name}.gguf"));
            Model::open(&path).expect(name).logits(DEFAULT_IDS)
        };
        let expected = logits("f16");
        let relative = |name: &str| {
            let actual = logits(name)
                .into_iter()
                .map(|row| row.into_iter().map(rounded).collect());
            let distance = distance(&actual.collect::<Vec<_>>(), &expected);
            eprintln!("tale-5.8m-{name} against f16, both in f64: {distance:?}");
            distance.rms_relative
        };
        let (q8_0, q4_k_m) = (relative("Q8_0"), relative("Q4_K_M"));
        assert!(q8_0 < 0.01, "{q8_0}");
        assert!(q4_k_m < 0.1, "{q4_k_m}");
        assert!(q8_0 < q4_k_m);
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
