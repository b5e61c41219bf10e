//! The predecessor's two WebAssembly functions: `create_sparse_engine` and `infer`.
//!
//! ```text
//! cargo rustc --release -p sluice-examples --lib --target wasm32-wasip1
//! node examples/wasm/sparse.mjs target/wasm32-wasip1/release/sluice_examples.wasm
//! ```
//!
//! `sparse.mjs` wraps them for JavaScript: an engine, and an array for an array. Weights are from a fixed seed, as in
//! `sluice::sparse`; a page with a model would pass its own. Products are the scalar kernels'.

use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::pi::PiChaos;
use sluice_core::sparse::{
    ActivationType, FfnDims, FfnWeights, PredictorWeights, Selected, SparsityConfig, SparsityError,
};

/// A SiLU network with a predictor in front of it.
#[derive(Debug)]
pub struct SparseEngineWasm {
    dims: FfnDims,
    w1: Vec<f32>,
    w2_t: Vec<f32>,
    b1: Vec<f32>,
    b2: Vec<f32>,
    rank: usize,
    config: SparsityConfig,
    /// The message of the last failure.
    error: String,
}

/// Rank of the predictor, where the dimensions allow it.
const RANK: usize = 128;

fn numbers(seed: u64, n: usize, scale: f32) -> Vec<f32> {
    let mut chaos = PiChaos::hashed(seed);
    (0..n)
        .map(|_| (chaos.next_float() - 0.5) * 2.0 * scale)
        .collect()
}

impl SparseEngineWasm {
    /// An engine that keeps a share of its neurons, at least one.
    ///
    /// # Errors
    /// A dimension of 0, a share outside 0 to 1.
    pub fn new(input_dim: usize, hidden_dim: usize, sparsity: f32) -> Result<Self, SparsityError> {
        if !(0.0..=1.0).contains(&sparsity) {
            return Err(SparsityError::Setting {
                name: "sparsity",
                value: f64::from(sparsity),
                expected: "a number from 0 to 1",
            });
        }
        let n = input_dim.saturating_mul(hidden_dim);
        let scale = 1.0 / (input_dim.max(1) as f32).sqrt();
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to hidden_dim"
        )]
        let kept = (sparsity * hidden_dim as f32).max(1.0) as usize;
        let engine = Self {
            dims: FfnDims {
                input: input_dim,
                hidden: hidden_dim,
                output: input_dim,
            },
            w1: numbers(1, n, scale),
            w2_t: numbers(2, n, scale),
            b1: vec![0.0; hidden_dim],
            b2: vec![0.0; input_dim],
            rank: RANK.min(input_dim).min(hidden_dim),
            config: SparsityConfig::with_top_k(kept),
            error: String::new(),
        };
        engine.weights()?;
        Ok(engine)
    }

    fn weights(&self) -> Result<FfnWeights<'_>, SparsityError> {
        let activation = ActivationType::Silu;
        FfnWeights::new(
            self.dims, &self.w1, &self.w2_t, &self.b1, &self.b2, activation,
        )
    }

    /// The output for `input`, of the predicted neurons.
    ///
    /// # Errors
    /// An input of another length, or with a number that is not finite.
    pub fn infer(&self, input: &[f32], out: &mut [f32]) -> Result<(), SparsityError> {
        let (n, hidden) = (self.dims.input, self.dims.hidden);
        let table = KernelTable::best(CpuFeatures::detect());
        // Of the network's own rows: the columns that a predictor of this rank reads.
        let mut p = vec![0.0; self.rank * n];
        for i in 0..self.rank {
            p[i * n + i] = 1.0;
        }
        let q: Vec<f32> = (0..hidden)
            .flat_map(|i| &self.w1[i * n..][..self.rank])
            .copied()
            .collect();
        let predictor = PredictorWeights::new(n, self.rank, &p, &q)?;
        let (mut z, mut scores) = (vec![0.0; self.rank], vec![0.0; hidden]);
        let mut active = vec![0; hidden];
        predictor.scores(table, input, &mut z, &mut scores)?;
        let n_active = self.config.select(&scores, None, &mut active)?;
        let selected = Selected::Neurons(&active[..n_active]);
        self.weights()?.forward(table, input, selected, out)
    }
}

/// Memory for `n` floats, which JavaScript fills or reads; [`sluice_release`] frees it.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_floats(n: usize) -> *mut f32 {
    Box::leak(vec![0.0; n].into_boxed_slice()).as_mut_ptr()
}

/// Frees memory of [`sluice_floats`].
///
/// # Safety
/// - `floats` is of [`sluice_floats`] with the same `n`, and is freed once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sluice_release(floats: *mut f32, n: usize) {
    let slice = core::ptr::slice_from_raw_parts_mut(floats, n);
    // SAFETY: by the caller.
    drop(unsafe { Box::from_raw(slice) });
}

/// An engine, which is never freed: a page has one. Null if a number is out of range.
#[unsafe(no_mangle)]
pub extern "C" fn create_sparse_engine(
    input_dim: usize,
    hidden_dim: usize,
    sparsity: f32,
) -> *mut SparseEngineWasm {
    match SparseEngineWasm::new(input_dim, hidden_dim, sparsity) {
        Ok(engine) => Box::leak(Box::new(engine)),
        Err(_) => core::ptr::null_mut(),
    }
}

/// Writes `n` outputs for `n` inputs; false, if they do not fit the engine: [`last_error`] has the message.
///
/// # Safety
/// - `engine` is of [`create_sparse_engine`] and not null; `input` and `out` are of [`sluice_floats`] with `n`, and differ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn infer(
    engine: *mut SparseEngineWasm,
    input: *const f32,
    n: usize,
    out: *mut f32,
) -> bool {
    // SAFETY: by the caller; there is one thread.
    let engine = unsafe { &mut *engine };
    // SAFETY: by the caller.
    let input = unsafe { core::slice::from_raw_parts(input, n) };
    // SAFETY: by the caller.
    let out = unsafe { core::slice::from_raw_parts_mut(out, n) };
    match engine.infer(input, out) {
        Ok(()) => true,
        Err(error) => {
            engine.error = error.to_string();
            false
        }
    }
}

/// The message of the last failure, `last_error_len` bytes.
///
/// # Safety
/// - `engine` is of [`create_sparse_engine`] and not null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn last_error(engine: *const SparseEngineWasm) -> *const u8 {
    // SAFETY: by the caller.
    unsafe { &*engine }.error.as_ptr()
}

/// Bytes of [`last_error`].
///
/// # Safety
/// - As [`last_error`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn last_error_len(engine: *const SparseEngineWasm) -> usize {
    // SAFETY: by the caller.
    unsafe { &*engine }.error.len()
}
