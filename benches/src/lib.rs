//! Inputs for benches: seeded numbers, aligned memory, and one problem per kernel that owns its
//! operands and can be run on any table.
//!
//! The benches themselves are in `benches/`; each first compares its result with the scalar
//! table's, bit for bit.

pub mod limits;

use sluice_kernels::activation::{ActivationKinds, ActivationLayout};
use sluice_kernels::contract::{KV_BLOCK, KV_SPLIT};
use sluice_kernels::half::{f32_to_bf16, f32_to_f16};
use sluice_kernels::panel::PanelLayout;
use sluice_kernels::table::{
    Activations, AttentionArgs, AttentionRow, AttentionState, Matmul, Prefetch, Quantize, Store,
};
use sluice_kernels::{CpuFeatures, KernelTable, KvLayout, KvType, WeightType};

/// A counter-based stream of numbers.
#[derive(Debug)]
pub struct Noise(pub u64);

impl Noise {
    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number between -1 and 1.
    pub fn value(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits fit")]
        let unit = (self.bits() >> 40) as f32 / 16_777_216.0;
        2.0 * unit - 1.0
    }

    /// `n` numbers between -1 and 1.
    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }

    /// `n` numbers near a normal distribution, as activations are: how large the others are in relation to the largest
    /// one decides which path products of K-quants take.
    pub fn normal_values(&mut self, n: usize) -> Vec<f32> {
        (0..n)
            .map(|_| (0..12).map(|_| self.value()).sum())
            .collect()
    }
}

/// Zeroed memory aligned to 64 bytes.
#[derive(Clone, Debug)]
pub struct Aligned(Vec<Line>);

#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

impl Aligned {
    /// At least `len` bytes.
    pub fn new(len: usize) -> Self {
        Self(vec![Line([0; 64]); len.div_ceil(64)])
    }

    /// The bytes, a multiple of 64.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: lines are plain bytes, and the length is the size of the vector in bytes.
        unsafe { core::slice::from_raw_parts(self.0.as_ptr().cast(), size_of_val(&*self.0)) }
    }

    /// The bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let len = size_of_val(&*self.0);
        // SAFETY: as in `bytes`, borrowed exclusively.
        unsafe { core::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast(), len) }
    }
}

/// Every table that this machine runs; the scalar one is first.
pub fn tables() -> Vec<&'static KernelTable> {
    let cpu = match tiles_granted() {
        // SAFETY: Linux has just given the permission.
        true => unsafe { CpuFeatures::detect_with_tiles() },
        false => CpuFeatures::detect(),
    };
    KernelTable::available(cpu).collect()
}

/// Whether Linux lets this process use tiles. The call asks for the permission.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn tiles_granted() -> bool {
    /// `ARCH_REQ_XCOMP_PERM` of `asm/prctl.h`, and the tile data's component in XCR0.
    const REQUEST: [libc::c_long; 2] = [0x1023, 18];
    // SAFETY: takes two numbers and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, REQUEST[0], REQUEST[1]) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn tiles_granted() -> bool {
    false
}

/// The bits of `x`, to be compared.
pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// A weight matrix × some activation rows.
#[derive(Debug)]
pub struct Product {
    layout: PanelLayout,
    panels: Aligned,
    activation_layout: ActivationLayout,
    activations: Aligned,
    n_tokens: usize,
    /// The result, (n_tokens, n_rows).
    pub out: Vec<f32>,
}

impl Product {
    /// Random weights (n_rows, n_cols) of type `ty` and normal activations.
    ///
    /// # Panics
    /// If `n_cols` is not a whole number of blocks of `ty`.
    pub fn random(ty: WeightType, n_rows: usize, n_cols: usize, n_tokens: usize) -> Self {
        let mut noise = Noise(1);
        let layout = PanelLayout::new(ty.ggml(), n_rows, n_cols).expect("whole blocks");
        let mut panels = Aligned::new(layout.bytes());
        for r in 0..n_rows {
            let row = noisy_row(ty, layout.gguf_row_bytes(), &mut noise);
            let band = layout.byte_range(layout.band(r));
            layout.pack_row(r, &row, &mut panels.bytes_mut()[band]);
        }
        let activation_layout = ActivationLayout::new(n_cols, ActivationKinds::for_weights(ty));
        let mut activations = Aligned::new(n_tokens * activation_layout.row_bytes());
        let rows = activations
            .bytes_mut()
            .chunks_mut(activation_layout.row_bytes());
        for row in rows {
            let args = Quantize {
                x: &noise.normal_values(n_cols),
                first_col: 0,
                layout: &activation_layout,
                row: row.as_mut_ptr(),
            };
            // SAFETY: the row is exclusively borrowed.
            unsafe { tables()[0].quantize(&args) };
        }
        Self {
            layout,
            panels,
            activation_layout,
            activations,
            n_tokens,
            out: vec![0.0; n_tokens * n_rows],
        }
    }

    /// Bytes of the panels.
    pub fn panel_bytes(&self) -> usize {
        self.layout.bytes()
    }

    /// Multiplications and additions of one run.
    pub fn operations(&self) -> usize {
        2 * self.layout.n_rows() * self.layout.n_cols() * self.n_tokens
    }

    /// Computes `out`.
    pub fn run(&mut self, table: &KernelTable) {
        let args = Matmul {
            layout: self.layout,
            panels: self.panels.bytes(),
            rows: (0..self.layout.n_rows()).into(),
            activations: Activations {
                layout: self.activation_layout,
                bytes: self.activations.bytes(),
            },
            tokens: (0..self.n_tokens).into(),
            out: self.out.as_mut_ptr(),
            out_stride: self.layout.n_rows(),
            store: Store::Set,
            prefetch: Prefetch::Near,
            beside: &[],
        };
        // SAFETY: `out` has tokens × rows elements and is exclusively borrowed.
        unsafe { table.matmul(&args) };
    }
}

/// A GGUF row of `n_cols` random weights.
pub fn random_row(ty: WeightType, n_cols: usize) -> Vec<u8> {
    let n_bytes = n_cols / ty.ggml().block_len() * ty.ggml().block_bytes();
    noisy_row(ty, n_bytes, &mut Noise(5))
}

/// A GGUF row of random codes with scales of a plausible size.
fn noisy_row(ty: WeightType, n_bytes: usize, noise: &mut Noise) -> Vec<u8> {
    let mut row: Vec<u8> = (0..n_bytes)
        .map(|_| noise.bits().to_le_bytes()[0])
        .collect();
    for block in row.chunks_exact_mut(ty.ggml().block_bytes()) {
        let scale = f32_to_f16(noise.value() * 0.01).to_le_bytes();
        match ty {
            WeightType::F32 => block.copy_from_slice(&noise.value().to_le_bytes()),
            WeightType::F16 => block.copy_from_slice(&f32_to_f16(noise.value()).to_le_bytes()),
            WeightType::BF16 => block.copy_from_slice(&f32_to_bf16(noise.value()).to_le_bytes()),
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
            WeightType::MXFP4 => block[0] = 116 + block[0] % 16,
            WeightType::NVFP4 => block[..4].iter_mut().for_each(|s| *s %= 0x40),
        }
    }
    row
}

/// One row to quantise.
#[derive(Debug)]
pub struct Quantization {
    x: Vec<f32>,
    layout: ActivationLayout,
    /// The activation row.
    pub row: Aligned,
}

impl Quantization {
    /// A random row of `n_cols` columns.
    pub fn random(kinds: ActivationKinds, n_cols: usize) -> Self {
        let layout = ActivationLayout::new(n_cols, kinds);
        Self {
            x: Noise(2).values(n_cols),
            layout,
            row: Aligned::new(layout.row_bytes()),
        }
    }

    /// Writes `row`.
    pub fn run(&mut self, table: &KernelTable) {
        let args = Quantize {
            x: &self.x,
            first_col: 0,
            layout: &self.layout,
            row: self.row.bytes_mut().as_mut_ptr(),
        };
        // SAFETY: the row is exclusively borrowed.
        unsafe { table.quantize(&args) };
    }
}

/// A split of keys and the queries that see it.
#[derive(Debug)]
pub struct AttentionSplit {
    layout: KvLayout,
    blocks: Vec<Aligned>,
    n_group: usize,
    queries: Vec<f32>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// Sum of weighted values, (n_queries, head_dim).
    pub out: Vec<f32>,
}

impl AttentionSplit {
    /// Random keys, values and queries: `n_rows` tokens of `n_group` heads.
    pub fn random(ty: KvType, head_dim: usize, n_group: usize, n_rows: usize) -> Self {
        let (table, mut noise) = (tables()[0], Noise(3));
        let layout = KvLayout::uniform(ty, head_dim);
        let blocks = (0..KV_SPLIT / KV_BLOCK).map(|_| {
            let mut block = Aligned::new(layout.block_bytes());
            for slot in 0..KV_BLOCK {
                let (key, value) = (noise.values(head_dim), noise.values(head_dim));
                // SAFETY: the block is exclusively borrowed.
                unsafe { table.store_key(&layout, block.bytes_mut().as_mut_ptr(), slot, &key) };
                // SAFETY: as above.
                unsafe { table.store_value(&layout, block.bytes_mut().as_mut_ptr(), slot, &value) };
            }
            block
        });
        let blocks = blocks.collect();
        let n_queries = n_group * n_rows;
        Self {
            layout,
            blocks,
            n_group,
            queries: noise.values(n_queries * head_dim),
            max: vec![0.0; n_queries],
            sum: vec![0.0; n_queries],
            out: vec![0.0; n_queries * head_dim],
        }
    }

    /// Bytes of the split.
    pub fn bytes(&self) -> usize {
        self.blocks.len() * self.layout.block_bytes()
    }

    /// Multiplications and additions of one run.
    pub fn operations(&self) -> usize {
        4 * self.queries.len() * KV_SPLIT
    }

    /// Starts a softmax and continues it over the split.
    pub fn run(&mut self, table: &KernelTable) {
        let blocks: Vec<&[u8]> = self
            .blocks
            .iter()
            .map(|block| &block.bytes()[..self.layout.block_bytes()])
            .collect();
        let rows: Vec<_> = self
            .queries
            .chunks(self.n_group * self.layout.head_dim_k)
            .map(|queries| AttentionRow {
                queries,
                keys: (0..KV_SPLIT).into(),
                position: 0,
            })
            .collect();
        let args = AttentionArgs {
            next: core::ptr::null(),
            layout: self.layout,
            blocks: &blocks,
            n_group: self.n_group,
            rows: &rows,
            scale: 0.1,
            soft_cap: 0.0,
            slopes: &[],
        };
        let mut state = AttentionState {
            max: &mut self.max,
            sum: &mut self.sum,
            out: &mut self.out,
        };
        state.reset();
        table.attention(&args, &mut state);
    }
}
