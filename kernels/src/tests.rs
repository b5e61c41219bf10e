//! What the tests of several modules share: numbers, aligned memory, matrices, tables.

use crate::activation::{ActivationKinds, ActivationLayout};
use crate::half::{f32_to_bf16, f32_to_f16};
use crate::panel::{self, PanelLayout, WeightType};
use crate::table::{Activations, Matmul, Prefetch, Quantize, Store};
use crate::{CpuFeatures, KernelTable};
#[cfg(test)]
extern crate std;
use std::io::Write as _;
use std::sync::Once;
use std::vec;
use std::vec::Vec;

/// A counter-based stream of test numbers.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn u32(&mut self) -> u32 {
        u32::try_from(self.u64() >> 32).expect("32 bits are left")
    }

    /// Any bytes are valid codes and scales, which is what round trips need.
    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.u64().to_le_bytes()[0]).collect()
    }

    /// Roughly normal, with an occasional outlier as real activations have.
    pub(crate) fn value(&mut self) -> f32 {
        let sum: f32 = (0..4)
            .map(|_| (self.u64() >> 40) as f32 / 16_777_216.0 - 0.5)
            .sum();
        if self.u64().is_multiple_of(97) {
            sum * 20.0
        } else {
            sum
        }
    }

    /// Ordinary numbers of any sign and of very different sizes, 1e-12 to 1e12.
    pub(crate) fn wide_values(&mut self, n: usize) -> Vec<f32> {
        let mut value = || match self.u64() % 32 {
            0 => self.value() * 1e-12,
            1 => self.value() * 1e-3,
            2 => self.value() * 1e3,
            3 => self.value() * 1e12,
            _ => self.value(),
        };
        (0..n).map(|_| value()).collect()
    }

    /// Any bits at all: denormals, infinities and NaN among them.
    pub(crate) fn any_values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| f32::from_bits(self.u32())).collect()
    }

    pub(crate) fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

/// Zeroed memory aligned to 64 bytes.
#[derive(Clone)]
pub(crate) struct Aligned(Vec<Line>, usize);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    pub(crate) fn new(len: usize) -> Self {
        Self(vec![Line([0; 64]); len.div_ceil(64)], len)
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `Line` is plain bytes and there are at least `self.1` of them.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), self.1) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), self.1) }
    }
}

/// Prints that a test, or a part of it, does not run, past the capture of the test harness.
pub(crate) fn skipped(why: &str) {
    let thread = std::thread::current();
    let test = thread.name().unwrap_or("a test");
    // If standard error is closed, there is nowhere to report it.
    let _ = std::io::stderr().write_all(std::format!("SKIPPED: {test}: {why}\n").as_bytes());
}

/// Every table that this machine runs, and those for tests alone. The others are named once.
pub(crate) fn tables() -> Vec<&'static KernelTable> {
    static NAMED: Once = Once::new();
    let cpu = match tiles_granted() {
        // SAFETY: Linux has just given the permission.
        true => unsafe { CpuFeatures::detect_with_tiles() },
        false => CpuFeatures::detect(),
    };
    let for_tests = crate::table::TEST_TABLES.iter().copied();
    let tables: Vec<_> = KernelTable::available(cpu)
        .chain(for_tests.filter(|table| cpu.contains(table.requires())))
        .collect();
    NAMED.call_once(|| {
        let for_tests = crate::table::TEST_TABLES.iter().map(|table| table.name());
        let absent = |name: &&str| tables.iter().all(|table| table.name() != *name);
        for name in KernelTable::names().chain(for_tests).filter(absent) {
            skipped(&std::format!(
                "the kernel table {name} does not run on this machine"
            ));
        }
    });
    tables
}

/// Whether the CPU has tiles and Linux, which is asked here, lets this process use them.
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub(crate) fn tiles_granted() -> bool {
    const TILES: CpuFeatures = CpuFeatures::AMX_TILE.union(CpuFeatures::AMX_INT8);
    let mut result = 158i64; // arch_prctl
    // SAFETY: the call takes two numbers (the code for requesting a permission and the code for tile data) and touches
    // no memory.
    unsafe {
        core::arch::asm!("syscall", inout("rax") result, in("rdi") 0x1023, in("rsi") 18,
            out("rcx") _, out("r11") _, options(nostack));
    }
    // SAFETY: Linux has just given the permission.
    result == 0 && unsafe { CpuFeatures::detect_with_tiles() }.contains(TILES)
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(miri))))]
pub(crate) fn tiles_granted() -> bool {
    false
}

/// The table that the others are compared with.
pub(crate) fn scalar() -> &'static KernelTable {
    KernelTable::by_name("scalar", CpuFeatures::empty()).expect("it requires nothing")
}

pub(crate) fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A GGUF row of random codes with scales and values of a plausible size.
fn gguf_row(ty: WeightType, n_bytes: usize, noise: &mut Noise) -> Vec<u8> {
    let mut row = noise.bytes(n_bytes);
    for block in row.chunks_exact_mut(ty.ggml().block_bytes()) {
        let scale = noise.value() * 0.01;
        match ty {
            WeightType::F32 => block.copy_from_slice(&noise.value().to_le_bytes()),
            WeightType::F16 => block.copy_from_slice(&f32_to_f16(noise.value()).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&f32_to_bf16(noise.value()).to_le_bytes()),
            WeightType::MXFP4 => block[0] = 116 + block[0] % 16,
            WeightType::NVFP4 => block[..4].iter_mut().for_each(|s| *s %= 0x40),
            _ => set_scale(ty, scale, block),
        }
    }
    row
}

/// Sets the half-precision numbers of a quantised block, or its exponents to 1.
pub(crate) fn set_scale(ty: WeightType, scale: f32, block: &mut [u8]) {
    let scale = f32_to_f16(scale).to_le_bytes();
    match ty {
        WeightType::F32 | WeightType::F16 | WeightType::BF16 => {}
        WeightType::Q6_K => block[208..].copy_from_slice(&scale),
        WeightType::Q3_K => block[108..].copy_from_slice(&scale),
        WeightType::Q2_K => {
            block[80..82].copy_from_slice(&scale);
            block[82..].copy_from_slice(&scale);
        }
        WeightType::Q4_K | WeightType::Q5_K | WeightType::Q4_1 | WeightType::Q5_1 => {
            block[..2].copy_from_slice(&scale);
            block[2..4].copy_from_slice(&scale);
        }
        WeightType::Q8_0
        | WeightType::Q4_0
        | WeightType::Q5_0
        | WeightType::LANE3
        | WeightType::LANE5
        | WeightType::LANE7
        | WeightType::IQ4_NL
        | WeightType::IQ4_XS
        | WeightType::IQ1_S
        | WeightType::IQ2_XXS
        | WeightType::IQ2_XS
        | WeightType::IQ2_S
        | WeightType::IQ3_XXS
        | WeightType::IQ3_S => block[..2].copy_from_slice(&scale),
        WeightType::IQ1_M => {
            let scale = u16::from_le_bytes(scale);
            for (i, word) in block[48..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                word[1] = word[1] & 0xf | (scale >> (4 * i) << 4).to_le_bytes()[0];
            }
        }
        WeightType::TQ1_0 => block[52..].copy_from_slice(&scale),
        WeightType::TQ2_0 => block[64..].copy_from_slice(&scale),
        WeightType::MXFP4 => block[0] = 128,
        WeightType::NVFP4 => block[..4].fill(0x40),
    }
}

/// A matrix in panels, and the same values in f64 (n_rows, n_cols).
pub(crate) struct Matrix {
    pub(crate) layout: PanelLayout,
    pub(crate) panels: Aligned,
    pub(crate) values: Vec<f64>,
}

impl Matrix {
    pub(crate) fn random(ty: WeightType, n_rows: usize, n_cols: usize, noise: &mut Noise) -> Self {
        Self::from_rows(ty, n_rows, n_cols, |_, n_bytes| {
            gguf_row(ty, n_bytes, noise)
        })
    }

    /// A matrix of the GGUF rows that `row` makes from their index and size in bytes.
    pub(crate) fn from_rows(
        ty: WeightType,
        n_rows: usize,
        n_cols: usize,
        mut row: impl FnMut(usize, usize) -> Vec<u8>,
    ) -> Self {
        let layout = PanelLayout::new(ty.ggml(), n_rows, n_cols).unwrap();
        let mut panels = Aligned::new(layout.bytes());
        let mut values = Vec::new();
        for r in 0..n_rows {
            let row = row(r, layout.gguf_row_bytes());
            let mut out = vec![0f32; n_cols];
            panel::dequantize_gguf_row(ty, &row, &mut out);
            values.extend(out.iter().map(|&x| f64::from(x)));
            let band = layout.byte_range(layout.band(r));
            layout.pack_row(r, &row, &mut panels.bytes_mut()[band]);
        }
        Self {
            layout,
            panels,
            values,
        }
    }

    /// The layout of activations that this matrix multiplies.
    pub(crate) fn activation_layout(&self) -> ActivationLayout {
        let kinds = ActivationKinds::for_weights(self.layout.ty());
        ActivationLayout::new(self.layout.n_cols(), kinds)
    }

    /// The first `n_tokens` of `rows` × this matrix, without a place for the result.
    pub(crate) fn product<'a>(&'a self, rows: &'a Aligned, n_tokens: usize) -> Matmul<'a> {
        Matmul {
            layout: self.layout,
            panels: self.panels.bytes(),
            rows: (0..self.layout.n_rows()).into(),
            activations: Activations {
                layout: self.activation_layout(),
                bytes: rows.bytes(),
            },
            tokens: (0..n_tokens).into(),
            out: core::ptr::null_mut(),
            out_stride: self.layout.n_rows(),
            store: Store::Set,
            prefetch: Prefetch::Near,
            beside: &[],
        }
    }

    /// The first `n_tokens` of `rows` × this matrix: (n_tokens, n_rows).
    pub(crate) fn multiply(
        &self,
        table: &KernelTable,
        rows: &Aligned,
        n_tokens: usize,
        store: Store,
    ) -> Vec<f32> {
        let mut out = vec![0.25f32; n_tokens * self.layout.n_rows()];
        let args = Matmul {
            out: out.as_mut_ptr(),
            store,
            ..self.product(rows, n_tokens)
        };
        // SAFETY: `out` has tokens × rows elements and is exclusively borrowed.
        unsafe { table.matmul(&args) };
        out
    }
}

/// Rows `x` (n_rows, layout.n_cols()) as `table` quantises them.
pub(crate) fn quantized(table: &KernelTable, layout: &ActivationLayout, x: &[f32]) -> Aligned {
    let n_rows = x.len() / layout.n_cols();
    let mut rows = Aligned::new(n_rows * layout.row_bytes());
    let chunks = rows.bytes_mut().chunks_mut(layout.row_bytes());
    for (x, row) in x.chunks(layout.n_cols()).zip(chunks) {
        let args = Quantize {
            x,
            first_col: 0,
            layout,
            row: row.as_mut_ptr(),
        };
        // SAFETY: the row is exclusively borrowed.
        unsafe { table.quantize(&args) };
    }
    rows
}
