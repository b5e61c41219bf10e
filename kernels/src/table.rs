//! Kernel tables: one row of function pointers per instruction-set level.
//!
//! A table is chosen once ([`KernelTable::best`], [`KernelTable::by_name`]) and passed down.
//! Calls are whole tiles, so the indirect call costs nothing. Only this module hands tables
//! out, and only where the CPU has their features: holding a `&KernelTable` is the proof that
//! its functions may run here.
//!
//! Every call checks its operands once, so that kernels may use pointers inside: a size that
//! overflows or a tile outside its matrix panics here, whatever the kernel.

mod gates;
mod lora;
mod neurons;
mod reference;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
mod x86_64;

use crate::activation::{ACTIVATION_ALIGN, ActivationKinds};
use crate::attention::BLOCKS_MAX;
use crate::contract::{GROUP, KV_BLOCK, LANES};
use crate::cpu::CpuFeatures;
use crate::frame::{self, FrameKernels};
use crate::kv::{Halves, KV_ALIGN, KV_HEAD_DIM_MAX, KvLayout};
use crate::lora::{LoraDown, LoraUp};
use crate::neuron::{Form, Transpose};
use crate::panel::{PANEL_ROWS, WeightType};
use crate::scalar::matmul::{self, PanelFn};
use crate::vector::neurons::Skip;
use core::fmt;
use core::iter;
use reference::SCALAR;
#[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
use x86_64::{AVX2, AVX512};

pub use crate::args::{
    Activations, Beside, Matmul, Prefetch, Quantize, RopeArgs, RopePairing, Store, TileRange,
};
pub use crate::attention::{AttentionArgs, AttentionRow, AttentionState};
pub use crate::recurrent::{ConvSilu, Recurrence, RecurrentToken, Rule, STATE_LANES};

/// The kernels of one instruction-set level.
pub struct KernelTable {
    name: &'static str,
    requires: CpuFeatures,
    /// Whole tiles of rows in panels, where there is a kernel of its own for the type.
    matmul: [Option<MatmulFn>; WeightType::ALL.len()],
    /// Products of one panel with a few tokens; the rows after the last panel are packed into one.
    panel_product: [PanelFn; WeightType::ALL.len()],
    /// Products that leave columns out, of types that have any.
    skip: fn(WeightType) -> Option<Skip>,
    transpose: Option<Transpose>,
    attention: unsafe fn(&AttentionArgs<'_>, &mut AttentionState<'_>),
    attention_merge: unsafe fn(&AttentionState<'_>, &mut AttentionState<'_>),
    quantize: unsafe fn(&Quantize<'_>),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    layer_norm: LayerNormFn,
    softmax: unsafe fn(&mut [f32]),
    rope: unsafe fn(&mut RopeArgs<'_>),
    silu_mul: gates::GatedFn,
    sigmoid: unsafe fn(&mut [[f32; LANES]]),
    add_scaled: unsafe fn(f32, &[f32], &mut [f32]),
    halves: Halves,
    gelu_mul: gates::GatedFn,
    gelu_erf_mul: gates::GatedFn,
    soft_cap: unsafe fn(&mut [[f32; LANES]], f32),
    recurrence: unsafe fn(&mut Recurrence<'_, '_>),
    conv_silu: unsafe fn(&mut ConvSilu<'_>),
    l2_norm: unsafe fn(&mut [f32], f32, f32),
    sigmoid_mul: unsafe fn(&[[f32; LANES]], &mut [[f32; LANES]]),
    decays: DecaysFn,
    lora_down: unsafe fn(&LoraDown<'_>),
    lora_up: unsafe fn(&LoraUp<'_>),
}

/// Writes a tile ([`Store::Set`]) of rows in panels.
type MatmulFn = unsafe fn(&Matmul<'_>);
type DecaysFn = unsafe fn(&mut [f32], &[f32], &[f32], &mut [f32]);
type LayerNormFn = unsafe fn(&[f32], &[f32], &[f32], f32, &mut [f32]);

impl fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelTable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// All tables of this build but `scalar`, slowest first.
static VECTOR_TABLES: &[&KernelTable] = &[
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &AVX2,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &AVX512,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &x86_64::AMX,
];

/// Activations of types without exact sums.
const FLOATS: ActivationKinds = ActivationKinds::F32.union(ActivationKinds::BF16);

impl KernelTable {
    /// Every table that needs only features in `cpu`, slowest first; never empty.
    ///
    /// `cpu` is the result of [`CpuFeatures::detect`], or of [`CpuFeatures::detect_with_tiles`] where this process may
    /// use tiles, or a subset of it to leave tables out. Features that this machine lacks, or tiles before
    /// [`CpuFeatures::detect_with_tiles`] was called, add nothing: the CPU is checked again, because holding a table
    /// proves that it can run.
    pub fn available(cpu: CpuFeatures) -> impl DoubleEndedIterator<Item = &'static Self> {
        iter::once(&SCALAR).chain(Self::vectorized(cpu))
    }

    /// [`Self::available`] without `scalar`: for programs that have to be small and run only where
    /// there are vectors. One that takes its tables from here alone leaves 150 KB of scalar
    /// kernels to the linker to drop.
    pub fn vectorized(cpu: CpuFeatures) -> impl DoubleEndedIterator<Item = &'static Self> {
        let cpu = cpu & CpuFeatures::detect_permitted();
        VECTOR_TABLES
            .iter()
            .copied()
            .filter(move |table| cpu.contains(table.requires))
    }

    /// The fastest table for `cpu`.
    pub fn best(cpu: CpuFeatures) -> &'static Self {
        Self::available(cpu).next_back().unwrap_or(&SCALAR)
    }

    /// The table called `name`, if this build has it and `cpu` runs it.
    pub fn by_name(name: &str, cpu: CpuFeatures) -> Option<&'static Self> {
        Self::available(cpu).find(|table| table.name == name)
    }

    /// Names of all tables of this build, slowest first.
    pub fn names() -> impl Iterator<Item = &'static str> {
        iter::once(&SCALAR)
            .chain(VECTOR_TABLES.iter().copied())
            .map(|table| table.name)
    }

    /// The name, as `--isa` takes it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the CPU must have.
    pub const fn requires(&self) -> CpuFeatures {
        self.requires
    }

    /// Statistics of frames of samples, for the gate. No part of the table, so that a program without a
    /// gate does not link them.
    pub const fn frame(&self) -> &'static FrameKernels {
        #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
        if self.requires.contains(AVX512.requires) {
            return &frame::AVX512;
        } else if self.requires.contains(AVX2.requires) {
            return &frame::AVX2;
        }
        &frame::SCALAR
    }

    /// Computes a tile of a matrix product.
    ///
    /// # Safety
    /// - `args.out` is aligned for f32 and writable for tokens × rows with the stride given,
    ///   and nothing else accesses those elements meanwhile. With [`Store::Add`] they hold
    ///   numbers.
    ///
    /// # Panics
    /// If the tile does not lie within the matrix and the activations, a range ends before it
    /// starts, or the activations lack the kind that the weights multiply or are misaligned.
    pub unsafe fn matmul(&self, args: &Matmul<'_>) {
        self.check_matmul(args);
        if args.layout.form() != Form::Panels {
            // SAFETY: the arguments are checked; the caller vouches for `out`.
            return unsafe { self.matmul_by_neuron(args) };
        }
        if ActivationKinds::for_weights(args.layout.ty()).intersects(FLOATS) {
            // Kernels of floats read rows more than once.
            let n_panels = (args.rows.end - args.rows.start).div_ceil(PANEL_ROWS);
            args.prefetch_beside(args.rows.start, n_panels, 0, 1);
        }
        // The common case: no arguments are copied. There may be no rows.
        if args.rows.end <= args.layout.tail_start() {
            // SAFETY: holding the table proves the features; the tile is within its operands;
            // the caller vouches for `out`.
            return unsafe { self.matmul_in_panels(args) };
        }
        let product = self.panel_product[args.layout.ty() as usize];
        let TileRange { start, end } = args.rows;
        let split = args.layout.tail_start().max(start);
        if start < split {
            let rows = (start..split).into();
            // SAFETY: holding the table proves the features; the tile is within its operands;
            // the caller vouches for `out`.
            unsafe { self.matmul_in_panels(&Matmul { rows, ..*args }) };
        }
        if split < end {
            let (rows, out) = ((split..end).into(), args.out.wrapping_add(split - start));
            // SAFETY: as above.
            unsafe { matmul::tail(&Matmul { rows, out, ..*args }, product) };
        }
    }

    /// The checks of [`Self::matmul`].
    fn check_matmul(&self, args: &Matmul<'_>) {
        let acts = &args.activations;
        assert_eq!(acts.layout.n_cols(), args.layout.n_cols());
        assert!(
            acts.layout
                .kinds()
                .contains(ActivationKinds::for_weights(args.layout.ty()))
        );
        assert!(args.rows.start.is_multiple_of(PANEL_ROWS));
        assert!(args.rows.start <= args.rows.end);
        assert!(args.rows.end <= args.layout.n_rows());
        assert!(args.tokens.start <= args.tokens.end);
        let bytes = args.tokens.end.checked_mul(acts.layout.row_bytes());
        assert!(bytes.is_some_and(|bytes| bytes <= acts.bytes.len()));
        assert!(is_aligned(acts.bytes.as_ptr(), ACTIVATION_ALIGN));
        assert!(args.panels.len() >= args.layout.bytes());
    }

    /// [`Self::matmul`] of checked rows that are in panels.
    ///
    /// # Safety
    /// - As [`Self::matmul`].
    unsafe fn matmul_in_panels(&self, args: &Matmul<'_>) {
        let ty = args.layout.ty() as usize;
        match (args.store, self.matmul[ty]) {
            // SAFETY: holding the table proves the features; the caller vouches for the rest.
            (Store::Set | Store::Continue, Some(kernel)) => unsafe { kernel(args) },
            // SAFETY: as above.
            _ => unsafe { matmul::matmul(args, self.panel_product[ty]) },
        }
    }

    /// Continues online softmaxes with the blocks of a split, or some of them.
    ///
    /// # Panics
    /// If the shapes do not fit together, a head has no dimensions or more than
    /// [`KV_HEAD_DIM_MAX`], there are more than [`BLOCKS_MAX`] blocks, a row sees keys beyond
    /// them, or a block is misaligned.
    pub fn attention(&self, args: &AttentionArgs<'_>, state: &mut AttentionState<'_>) {
        let (layout, n_queries) = (&args.layout, state.max.len());
        assert!((1..=KV_HEAD_DIM_MAX).contains(&layout.head_dim_k));
        assert!((1..=KV_HEAD_DIM_MAX).contains(&layout.head_dim_v));
        assert!(args.blocks.len() <= BLOCKS_MAX);
        for block in args.blocks {
            assert_eq!(block.len(), layout.block_bytes());
            assert!(is_aligned(block.as_ptr(), KV_ALIGN));
        }
        let queries_len = args.n_group.checked_mul(layout.head_dim_k);
        for row in args.rows {
            assert_eq!(Some(row.queries.len()), queries_len);
            assert!(row.keys.end <= args.blocks.len() * KV_BLOCK);
        }
        assert!(args.slopes.is_empty() || args.slopes.len() == args.n_group);
        assert_eq!(n_queries, args.n_queries());
        assert_eq!(state.out.len(), n_queries * layout.head_dim_v);
        assert_eq!(state.sum.len(), n_queries);
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.attention)(args, state) }
    }

    /// Merges the state of a split into the running one; splits have to be merged in ascending order.
    ///
    /// A query that has seen no key of the split stays as it is.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn attention_merge(&self, from: &AttentionState<'_>, into: &mut AttentionState<'_>) {
        let n_queries = into.max.len();
        assert_eq!(into.sum.len(), n_queries);
        assert!(into.out.len().is_multiple_of(n_queries));
        assert_eq!(from.max.len(), n_queries);
        assert_eq!(from.sum.len(), n_queries);
        assert_eq!(from.out.len(), into.out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.attention_merge)(from, into) }
    }

    /// Writes a row (or whole groups of one) in the kinds of its layout.
    ///
    /// # Safety
    /// - `args.row` is writable for `args.layout.row_bytes()`, and nothing else accesses the given columns during the
    ///   call; `args.x` does not overlap them.
    ///
    /// # Panics
    /// If the columns do not lie in the row, are not whole groups (the row's last may be
    /// short), or the row is misaligned.
    pub unsafe fn quantize(&self, args: &Quantize<'_>) {
        let n_cols = args.layout.n_cols();
        assert!(args.first_col.is_multiple_of(GROUP));
        assert!(args.first_col <= n_cols);
        assert!(args.x.len() <= n_cols - args.first_col);
        let end = args.first_col + args.x.len();
        assert!(end == n_cols || end.is_multiple_of(GROUP));
        assert!(is_aligned(args.row, ACTIVATION_ALIGN));
        // SAFETY: holding the table proves the features; the caller vouches for the row.
        unsafe { (self.quantize)(args) }
    }

    /// Root-mean-square norm: `out = x · (1 / sqrt(mean(x²) + eps)) · weight`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len());
        assert_eq!(x.len(), out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.rms_norm)(x, weight, eps, out) }
    }

    /// Layer norm: `out = (x - mean) · (1 / sqrt(variance + eps)) · weight + bias`, each (n); without a bias
    /// where it is empty.
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn layer_norm(&self, x: &[f32], weight: &[f32], bias: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len());
        assert!(bias.is_empty() || x.len() == bias.len());
        assert_eq!(x.len(), out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.layer_norm)(x, weight, bias, eps, out) }
    }

    /// Softmax in place: `x = exp(x - max) / Σ exp(x - max)`; all NaN where one is, or all are
    /// `-∞`.
    pub fn softmax(&self, x: &mut [f32]) {
        // SAFETY: holding the table proves the features; the operand is a slice.
        unsafe { (self.softmax)(x) }
    }

    /// Rotary position embedding of one head, in place.
    ///
    /// # Panics
    /// If the head is shorter than the rotation.
    pub fn rope(&self, args: &mut RopeArgs<'_>) {
        assert_eq!(args.cos.len(), args.sin.len());
        assert!(args.cos.len() <= args.head.len() / 2);
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.rope)(args) }
    }

    /// A weighted addition: `out = fma(scale, x, out)`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn add_scaled(&self, scale: f32, x: &[f32], out: &mut [f32]) {
        assert_eq!(x.len(), out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.add_scaled)(scale, x, out) }
    }

    /// Writes the key (head_dim_k) of one position into a block.
    ///
    /// # Safety
    /// - `block` points to [`KvLayout::block_bytes`] writable bytes, aligned to
    ///   [`KV_ALIGN`].
    /// - Nothing else accesses the key at `slot` of the block meanwhile.
    ///
    /// # Panics
    /// If `slot` or the slice's length does not fit the layout, or the head is longer than
    /// [`KV_HEAD_DIM_MAX`].
    pub unsafe fn store_key(&self, layout: &KvLayout, block: *mut u8, slot: usize, key: &[f32]) {
        // SAFETY: holding the table proves the features; else by the caller.
        unsafe { layout.store_key(self.halves, block, slot, key) }
    }

    /// Writes the value (head_dim_v) of one position into a block.
    ///
    /// # Safety
    /// - As [`Self::store_key`], for the value at `slot`.
    ///
    /// # Panics
    /// As [`Self::store_key`].
    pub unsafe fn store_value(
        &self,
        layout: &KvLayout,
        block: *mut u8,
        slot: usize,
        value: &[f32],
    ) {
        // SAFETY: as in `store_key`.
        unsafe { layout.store_value(self.halves, block, slot, value) }
    }

    /// Takes tokens of a sequence through the state of a head, or of some of its values.
    ///
    /// # Panics
    /// If the state is not whole panels, one of them for each 16 values, or lengths differ.
    pub fn recurrence(&self, args: &mut Recurrence<'_, '_>) {
        let len = args.n_key * STATE_LANES;
        assert!(len > 0);
        assert!(args.state.len().is_multiple_of(len));
        let n_panels = args.state.len() / len;
        if let Some(from) = args.from {
            assert_eq!(from.len(), args.state.len());
        }
        for token in &*args.tokens {
            assert_eq!(token.key.len(), args.n_key);
            assert_eq!(token.query.len(), args.n_key);
            assert_eq!(token.value.len().div_ceil(STATE_LANES), n_panels);
            assert_eq!(token.out.len(), token.value.len());
        }
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.recurrence)(args) }
    }

    /// A convolution over the last tokens, then SiLU: `out = silu(bias + Σ taps · rows)`.
    ///
    /// # Panics
    /// If the lengths differ, or there are no taps.
    pub fn conv_silu(&self, args: &mut ConvSilu<'_>) {
        let (n, n_taps) = (args.out.len(), args.rows.len());
        assert!(n_taps > 0);
        assert_eq!(args.taps.len(), n * n_taps);
        assert!(args.rows.iter().all(|row| row.len() == n));
        assert!(args.bias.is_none_or(|bias| bias.len() == n));
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.conv_silu)(args) }
    }

    /// Scales in place to a length: `x = x · (scale / sqrt(Σ x² + eps))`.
    pub fn l2_norm(&self, x: &mut [f32], eps: f32, scale: f32) {
        // SAFETY: holding the table proves the features; the operand is a slice.
        unsafe { (self.l2_norm)(x, eps, scale) }
    }

    /// What states decay by: `x = softplus(x + bias)` in place, then `decay = exp(a · x)`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn decays(&self, x: &mut [f32], bias: &[f32], a: &[f32], decay: &mut [f32]) {
        assert_eq!(x.len(), bias.len());
        assert_eq!(x.len(), a.len());
        assert_eq!(x.len(), decay.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.decays)(x, bias, a, decay) }
    }
}

fn is_aligned(pointer: *const u8, align: usize) -> bool {
    pointer.addr().is_multiple_of(align)
}

/// Tables that only tests run, where the CPU has what they need.
#[cfg(test)]
pub(crate) static TEST_TABLES: &[&KernelTable] = &[
    &reference::PLAIN,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &x86_64::AVX512_SPLIT_OTHERWISE,
    #[cfg(all(target_arch = "x86_64", target_feature = "sse2"))]
    &x86_64::AMX_EMULATED,
];

#[cfg(test)]
mod tests;
