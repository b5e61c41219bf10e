//! Kernel tables: one row of function pointers per instruction-set level.
//!
//! A table is chosen once ([`KernelTable::best`], [`KernelTable::by_name`]) and passed down.
//! Calls are whole tiles, so the indirect call costs nothing. Only this module hands tables
//! out, and only to a CPU that has their features: holding a `&KernelTable` is the proof that
//! its functions may run here.

use crate::activation::ActivationLayout;
use crate::contract::{Arith, KV_BLOCK, Portable};
use crate::cpu::CpuFeatures;
use crate::kv::{KvLayout, KvType};
use crate::panel::{self, PANEL_ROWS, PanelLayout, WeightType};
use crate::scalar;
use core::fmt;
use core::ops::Range;

/// What to do with a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    /// Overwrite `out`.
    Set,
    /// Add to `out` (a residual connection).
    Add,
}

/// Activation rows in memory: `n_rows × layout.row_bytes()`.
#[derive(Clone, Copy, Debug)]
pub struct Activations<'a> {
    /// Layout of a row.
    pub layout: ActivationLayout,
    /// The rows, aligned to [`crate::activation::ACTIVATION_ALIGN`].
    pub bytes: &'a [u8],
}

/// A tile of a matrix product: some rows of a weight matrix × some activation rows.
#[derive(Clone, Copy, Debug)]
pub struct Matmul<'a> {
    /// Shape and type of the whole matrix.
    pub layout: PanelLayout,
    /// All of its panels.
    pub panels: &'a [u8],
    /// Weight rows (outputs) to compute; starts at a panel's first row.
    pub rows: TileRange,
    /// Activation rows.
    pub activations: Activations<'a>,
    /// Which of them to multiply.
    pub tokens: TileRange,
    /// Element (token t, row r) goes to `out[(t - tokens.start) * out_stride + r - rows.start]`.
    pub out: *mut f32,
    /// Distance between the outputs of two tokens, in elements.
    pub out_stride: usize,
    /// Whether outputs are written or added.
    pub store: Store,
}

/// A half-open range of indices that is `Copy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileRange {
    /// First index.
    pub start: usize,
    /// One past the last index.
    pub end: usize,
}

impl From<Range<usize>> for TileRange {
    fn from(range: Range<usize>) -> Self {
        Self {
            start: range.start,
            end: range.end,
        }
    }
}

/// A row, or whole groups of one, to quantise.
#[derive(Clone, Copy, Debug)]
pub struct Quantize<'a> {
    /// Values of the columns from `first_col` on.
    pub x: &'a [f32],
    /// First column; a multiple of [`crate::contract::GROUP`].
    pub first_col: usize,
    /// Layout of the row.
    pub layout: &'a ActivationLayout,
    /// The row, aligned to [`crate::activation::ACTIVATION_ALIGN`].
    pub row: *mut u8,
}

/// Which dimensions a rotary embedding rotates together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopePairing {
    /// (2i, 2i + 1): llama.cpp's "norm", GGUF files of the `llama` architecture.
    Interleaved,
    /// (i, i + n_rot / 2): llama.cpp's "neox", most other architectures.
    Halves,
}

/// A rotation of one head.
#[derive(Debug)]
pub struct Rope<'a> {
    /// The head, rotated in place; its first `2 · cos.len()` dimensions.
    pub head: &'a mut [f32],
    /// Cosines, n_rot / 2.
    pub cos: &'a [f32],
    /// Sines, n_rot / 2.
    pub sin: &'a [f32],
    /// Which dimensions belong together.
    pub pairing: RopePairing,
}

/// One block of keys and values, and the query heads that share it.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBlock<'a> {
    /// Shape and type of the block.
    pub layout: KvLayout,
    /// The block's bytes ([`KvLayout::block_bytes`], aligned to [`crate::kv::KV_ALIGN`]).
    pub block: &'a [u8],
    /// Keys that the queries see, `1..=64`, counted from the block's first.
    pub n_keys: usize,
    /// Rotated queries, (n_queries, head_dim_k).
    pub queries: &'a [f32],
    /// Factor on scores, usually `1 / sqrt(head_dim_k)`.
    pub scale: f32,
}

/// A running softmax over keys, per query.
#[derive(Debug)]
pub struct AttentionState<'a> {
    /// Largest score so far, (n_queries).
    pub max: &'a mut [f32],
    /// Sum of weights relative to `max`, (n_queries).
    pub sum: &'a mut [f32],
    /// Sum of weighted values, (n_queries, head_dim_v).
    pub out: &'a mut [f32],
}

impl AttentionState<'_> {
    /// Before any key.
    pub fn reset(&mut self) {
        self.max.fill(f32::NEG_INFINITY);
        self.sum.fill(0.0);
        self.out.fill(0.0);
    }

    /// Divides by the sums: the attention output.
    pub fn finish(&mut self) {
        let head_dim = self.out.len() / self.sum.len();
        for (out, sum) in self.out.chunks_exact_mut(head_dim).zip(&*self.sum) {
            let inverse = 1.0 / *sum;
            out.iter_mut().for_each(|x| *x *= inverse);
        }
    }
}

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
        Self::available(cpu)
            .next_back()
            .expect("the scalar table requires nothing")
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
                .contains(crate::activation::ActivationKinds::for_weights(
                    args.layout.ty()
                ))
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
        assert!(args.first_col.is_multiple_of(crate::contract::GROUP));
        assert!(end <= args.layout.n_cols());
        assert!(end == args.layout.n_cols() || end.is_multiple_of(crate::contract::GROUP));
        debug_assert!(
            args.row
                .addr()
                .is_multiple_of(crate::activation::ACTIVATION_ALIGN)
        );
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

/// Compiles the reference loops into a table, with `$feature`s enabled and `$fma`.
macro_rules! reference_table {
    ($table:ident, $module:ident, $name:literal, $requires:expr, $fma:ty $(, $feature:literal)?) => {
        #[doc = concat!("The reference loops as the table `", $name, "`.")]
        static $table: KernelTable = KernelTable {
            name: $name,
            requires: $requires,
            matmul: [
                $module::matmul::<panel::F32>,
                $module::matmul::<panel::F16>,
                $module::matmul::<panel::Bf16>,
                $module::matmul::<panel::Q8_0>,
                $module::matmul::<panel::Q4_0>,
                $module::matmul::<panel::Q4K>,
                $module::matmul::<panel::Q6K>,
            ],
            attention_block: [
                $module::attention_block::<scalar::attention::F32>,
                $module::attention_block::<scalar::attention::F16>,
                $module::attention_block::<scalar::attention::Bf16>,
            ],
            attention_merge: $module::attention_merge,
            quantize: $module::quantize,
            rms_norm: $module::rms_norm,
            rope: $module::rope,
            silu_mul: $module::silu_mul,
        };

        mod $module {
            use super::*;

            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn matmul<K: scalar::matmul::GroupKernel>(args: &Matmul<'_>) {
                // SAFETY: the contract of `KernelTable::matmul` is the reference's.
                unsafe { scalar::matmul::matmul::<$fma, K>(args) }
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn attention_block<E: scalar::attention::Elements>(
                args: &AttentionBlock<'_>,
                state: &mut AttentionState<'_>,
            ) {
                scalar::attention::block::<$fma, E>(args, state);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn attention_merge(
                from: &AttentionState<'_>,
                into: &mut AttentionState<'_>,
            ) {
                scalar::attention::merge::<$fma>(from, into);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) unsafe fn quantize(args: &Quantize<'_>) {
                // SAFETY: the contract of `KernelTable::quantize` is the reference's.
                unsafe { scalar::elementwise::quantize(args) }
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rms_norm(x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
                scalar::elementwise::rms_norm::<$fma>(x, weight, eps, out);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn rope(args: &mut Rope<'_>) {
                scalar::elementwise::rope::<$fma>(args);
            }

            $(#[target_feature(enable = $feature)])?
            pub(super) fn silu_mul(gate: &[f32], up: &[f32], out: &mut [f32]) {
                scalar::elementwise::silu_mul::<$fma>(gate, up, out);
            }
        }
    };
}

reference_table!(
    SCALAR,
    scalar_table,
    "scalar",
    CpuFeatures::empty(),
    Portable
);

#[cfg(target_arch = "x86_64")]
reference_table!(
    AVX2,
    avx2_table,
    "avx2",
    CpuFeatures::AVX2
        .union(CpuFeatures::FMA)
        .union(CpuFeatures::F16C),
    Fma3,
    "avx2,fma,f16c"
);

/// FMA3 and F16C instructions. Only for code compiled with `fma` and `f16c` enabled.
#[cfg(target_arch = "x86_64")]
#[derive(Clone, Copy, Debug)]
struct Fma3;

#[cfg(target_arch = "x86_64")]
impl Arith for Fma3 {
    #[inline(always)]
    fn fma(a: f32, b: f32, c: f32) -> f32 {
        use core::arch::x86_64::{_mm_cvtss_f32, _mm_fmadd_ss, _mm_set_ss};
        // SAFETY: SSE is part of x86-64.
        let scalar = |x| unsafe { _mm_set_ss(x) };
        // SAFETY: this type is private and named only by the AVX2 table, whose functions run
        // only where FMA was detected.
        let sum = unsafe { _mm_fmadd_ss(scalar(a), scalar(b), scalar(c)) };
        // SAFETY: SSE is part of x86-64.
        unsafe { _mm_cvtss_f32(sum) }
    }

    #[inline(always)]
    fn halves(bytes: &[u8; 32]) -> [f32; 16] {
        use core::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps, _mm256_storeu_ps};
        let mut out = [0f32; 16];
        for (out, half) in out
            .as_chunks_mut::<8>()
            .0
            .iter_mut()
            .zip(bytes.as_chunks::<16>().0)
        {
            // SAFETY: `half` has the 16 bytes that are loaded.
            let half = unsafe { _mm_loadu_si128(half.as_ptr().cast()) };
            // SAFETY: as in `fma`, F16C was detected where this type is used.
            let floats = unsafe { _mm256_cvtph_ps(half) };
            // SAFETY: `out` has room for the 8 floats; AVX is implied by F16C.
            unsafe { _mm256_storeu_ps(out.as_mut_ptr(), floats) };
        }
        out
    }
}

#[cfg(test)]
mod tests;
