//! The predecessor's two WebAssembly functions: `create_sparse_engine` and `infer`.
//!
//! ```text
//! cargo rustc --release -p sluice-examples --lib --target wasm32-wasip1
//! node examples/wasm/sparse.mjs target/wasm32-wasip1/release/sluice_examples.wasm
//! ```
//!
//! `sparse.mjs` wraps them for JavaScript: an engine, and an array for an array. Weights are from a fixed seed, as in
//! `sluice::sparse`, and the predictor is a projection of them; a page with a model would pass its own. Products are the scalar kernels'.

use sluice_core::kernels::{CpuFeatures, KernelTable};
use sluice_core::sparse::pi::PiChaos;
use sluice_core::sparse::{
    ActivationType, FfnDims, FfnWeights, PredictorWeights, Selected, SparsityConfig, SparsityError,
    project_into,
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
    /// The predictor's matrices, made of `w1`.
    p: Vec<f32>,
    q: Vec<f32>,
    config: SparsityConfig,
    table: &'static KernelTable,
    /// Working memory of the predictor.
    z: Vec<f32>,
    scores: Vec<f32>,
    active: Vec<usize>,
    /// The message of the last failure.
    error: String,
}

/// Rank of the predictor, where the dimensions allow it.
const RANK: usize = 128;

/// `n` of what `next` makes.
///
/// # Errors
/// No memory, by the name of the size.
fn filled<T>(
    name: &'static str,
    n: usize,
    next: impl FnMut() -> T,
) -> Result<Vec<T>, SparsityError> {
    let mut all = Vec::new();
    all.try_reserve_exact(n)
        .map_err(|_| SparsityError::Setting {
            name,
            value: n as f64,
            expected: "a size in memory",
        })?;
    all.resize_with(n, next);
    Ok(all)
}

fn numbers(seed: u64, name: &'static str, n: usize, scale: f32) -> Result<Vec<f32>, SparsityError> {
    let mut chaos = PiChaos::hashed(seed);
    filled(name, n, || (chaos.next_float() - 0.5) * 2.0 * scale)
}

impl SparseEngineWasm {
    /// An engine that keeps a share of its neurons, at least one.
    ///
    /// # Errors
    /// A dimension of 0 or beyond memory, a share outside 0 to 1.
    pub fn new(input_dim: usize, hidden_dim: usize, sparsity: f32) -> Result<Self, SparsityError> {
        if !(0.0..=1.0).contains(&sparsity) {
            return Err(SparsityError::Setting {
                name: "sparsity",
                value: f64::from(sparsity),
                expected: "a number from 0 to 1",
            });
        }
        let (input, hidden) = (input_dim, hidden_dim);
        let dims = FfnDims {
            input,
            hidden,
            output: input,
        };
        // Products of sizes are within the addresses of this machine from here on.
        dims.check()?;
        let (scale, rank) = (1.0 / (input as f32).sqrt(), RANK.min(input).min(hidden));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "from 1 to hidden_dim"
        )]
        let kept = (sparsity * hidden as f32).max(1.0) as usize;
        let zero = || 0.0f32;
        let mut engine = Self {
            dims,
            w1: numbers(1, "w1", hidden * input, scale)?,
            w2_t: numbers(2, "w2_t", hidden * input, scale)?,
            b1: filled("b1", hidden, zero)?,
            b2: filled("b2", input, zero)?,
            rank,
            p: filled("p", rank * input, zero)?,
            q: filled("q", hidden * rank, zero)?,
            config: SparsityConfig::with_top_k(kept),
            table: KernelTable::best(CpuFeatures::detect()),
            z: filled("z", rank, zero)?,
            scores: filled("scores", hidden, zero)?,
            active: filled("active", hidden, || 0)?,
            error: String::new(),
        };
        let (p, q) = (&mut engine.p, &mut engine.q);
        project_into(engine.table, input, &engine.w1, p, q)?;
        Ok(engine)
    }

    /// The output for `input`, of the predicted neurons.
    ///
    /// # Errors
    /// An input of another length, or with a number that is not finite.
    pub fn infer(&mut self, input: &[f32], out: &mut [f32]) -> Result<(), SparsityError> {
        let (table, scores) = (self.table, &mut self.scores);
        PredictorWeights::new(self.dims.input, self.rank, &self.p, &self.q)?.scores(
            table,
            input,
            &mut self.z,
            scores,
        )?;
        let n_active = self.config.select(table, scores, None, &mut self.active)?;
        let selected = Selected::Neurons(&self.active[..n_active]);
        let activation = ActivationType::Silu;
        FfnWeights::new(
            self.dims, &self.w1, &self.w2_t, &self.b1, &self.b2, activation,
        )?
        .forward(table, input, selected, out)
    }
}

/// Memory for `n` floats, which JavaScript fills or reads; [`sluice_release`] frees it. Null if memory does not suffice.
#[unsafe(no_mangle)]
pub extern "C" fn sluice_floats(n: usize) -> *mut f32 {
    match filled("floats", n, || 0.0) {
        Ok(floats) => Box::leak(floats.into_boxed_slice()).as_mut_ptr(),
        Err(_) => core::ptr::null_mut(),
    }
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

/// An engine, which is never freed: a page has one. Null if a number is out of range, or memory does not suffice.
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
