//! Kernel tables: one row of function pointers per instruction-set level.
//!
//! A table is chosen once ([`KernelTable::best`], [`KernelTable::by_name`]) and passed down.
//! Calls are whole tiles, so the indirect call costs nothing. Only this module hands tables
//! out, and only to a CPU that has their features: holding a `&KernelTable` is the proof that
//! its functions may run here.

mod reference;

use crate::activation::{ACTIVATION_ALIGN, ActivationKinds};
use crate::contract::{GROUP, KV_BLOCK};
use crate::cpu::CpuFeatures;
use crate::kv::KvType;
use crate::panel::{PANEL_ROWS, WeightType};
use core::fmt;
#[cfg(target_arch = "x86_64")]
use reference::AVX2;
use reference::SCALAR;

pub use crate::args::{
    Activations, AttentionBlock, AttentionState, Matmul, Quantize, Rope, RopePairing, Store,
    TileRange,
};

/// The kernels of one instruction-set level.
pub struct KernelTable {
    name: &'static str,
    requires: CpuFeatures,
    matmul: [unsafe fn(&Matmul<'_>); WeightType::ALL.len()],
    attention_block: [AttentionBlockFn; KvType::ALL.len()],
    attention_merge: unsafe fn(&AttentionState<'_>, &mut AttentionState<'_>),
    quantize: unsafe fn(&Quantize<'_>),
    rms_norm: unsafe fn(&[f32], &[f32], f32, &mut [f32]),
    rope: unsafe fn(&mut Rope<'_>),
    silu_mul: unsafe fn(&[f32], &[f32], &mut [f32]),
}

type AttentionBlockFn = unsafe fn(&AttentionBlock<'_>, &mut AttentionState<'_>);

impl fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelTable")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// All tables of this build, slowest first.
static TABLES: &[&KernelTable] = &[
    &SCALAR,
    #[cfg(target_arch = "x86_64")]
    &AVX2,
];

impl KernelTable {
    /// Every table that a CPU with `cpu` runs, slowest first; never empty.
    pub fn available(cpu: CpuFeatures) -> impl DoubleEndedIterator<Item = &'static Self> {
        TABLES
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
        TABLES.iter().map(|table| table.name)
    }

    /// The name, as `--isa` takes it.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// What the CPU must have.
    pub const fn requires(&self) -> CpuFeatures {
        self.requires
    }

    /// Computes a tile of a matrix product.
    ///
    /// # Safety
    /// - `args.out` is writable for tokens × rows with the stride given, and nobody else
    ///   accesses those elements meanwhile.
    ///
    /// # Panics
    /// If the tile does not lie within the matrix and the activations.
    pub unsafe fn matmul(&self, args: &Matmul<'_>) {
        let acts = &args.activations;
        assert_eq!(acts.layout.n_cols(), args.layout.n_cols());
        assert!(
            acts.layout
                .kinds()
                .contains(ActivationKinds::for_weights(args.layout.ty()))
        );
        assert!(args.rows.start.is_multiple_of(PANEL_ROWS));
        assert!(args.rows.end <= args.layout.n_rows());
        assert!(args.tokens.end * acts.layout.row_bytes() <= acts.bytes.len());
        assert!(args.panels.len() >= args.layout.bytes());
        // SAFETY: holding the table proves the features; the tile is within its operands; the
        // caller vouches for `out`.
        unsafe { self.matmul[args.layout.ty() as usize](args) }
    }

    /// Continues an online softmax with one block of keys.
    ///
    /// # Panics
    /// If the shapes do not fit together.
    pub fn attention_block(&self, args: &AttentionBlock<'_>, state: &mut AttentionState<'_>) {
        let n_queries = state.max.len();
        assert!((1..=KV_BLOCK).contains(&args.n_keys));
        assert_eq!(args.block.len(), args.layout.block_bytes());
        assert_eq!(args.queries.len(), n_queries * args.layout.head_dim_k);
        assert_eq!(state.sum.len(), n_queries);
        assert_eq!(state.out.len(), n_queries * args.layout.head_dim_v);
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { self.attention_block[args.layout.ty as usize](args, state) }
    }

    /// Merges the state of a split into the running one; splits come in ascending order.
    ///
    /// # Panics
    /// If the shapes differ.
    pub fn attention_merge(&self, from: &AttentionState<'_>, into: &mut AttentionState<'_>) {
        assert_eq!(from.max.len(), into.max.len());
        assert_eq!(from.sum.len(), into.sum.len());
        assert_eq!(from.out.len(), into.out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.attention_merge)(from, into) }
    }

    /// Writes a row (or whole groups of one) in the kinds of its layout.
    ///
    /// # Safety
    /// - `args.row` is writable for `args.layout.row_bytes()`, and nobody else accesses the
    ///   columns given meanwhile.
    ///
    /// # Panics
    /// If the columns do not lie in the row.
    pub unsafe fn quantize(&self, args: &Quantize<'_>) {
        let end = args.first_col + args.x.len();
        assert!(args.first_col.is_multiple_of(GROUP));
        assert!(end <= args.layout.n_cols());
        assert!(end == args.layout.n_cols() || end.is_multiple_of(GROUP));
        debug_assert!(args.row.addr().is_multiple_of(ACTIVATION_ALIGN));
        // SAFETY: holding the table proves the features; the caller vouches for the row.
        unsafe { (self.quantize)(args) }
    }

    /// Root-mean-square norm: `out = x / sqrt(mean(x²) + eps) · weight`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn rms_norm(&self, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
        assert_eq!(x.len(), weight.len());
        assert_eq!(x.len(), out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.rms_norm)(x, weight, eps, out) }
    }

    /// Rotary position embedding of one head, in place.
    ///
    /// # Panics
    /// If the head is shorter than the rotation.
    pub fn rope(&self, args: &mut Rope<'_>) {
        assert_eq!(args.cos.len(), args.sin.len());
        assert!(args.head.len() >= 2 * args.cos.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.rope)(args) }
    }

    /// SwiGLU: `out = silu(gate) · up`, each (n).
    ///
    /// # Panics
    /// If the lengths differ.
    pub fn silu_mul(&self, gate: &[f32], up: &[f32], out: &mut [f32]) {
        assert_eq!(gate.len(), up.len());
        assert_eq!(gate.len(), out.len());
        // SAFETY: holding the table proves the features; all operands are slices.
        unsafe { (self.silu_mul)(gate, up, out) }
    }
}

#[cfg(test)]
mod tests;
