//! The tables `avx2` (with FMA and F16C), `avx512` and `amx`: which types have hand-written kernels.

use super::reference::{for_every_format, reference_table};
use super::{KernelTable, MatmulFn};
use crate::CpuFeatures;
use crate::panel;
use crate::panel::WeightType;
use crate::panel::{
    Bf16, F16, F32, Iq4Nl, Iq4Xs, Lane, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K,
    Q8_0,
};
use crate::scalar::elementwise::Loops;
use crate::scalar::matmul;
use crate::x86_64::avx2::{block, super_block};
use crate::x86_64::fma3::Fma3;
use crate::x86_64::{amx, avx2, avx512};

/// A kernel for each weight type, `None` for those that are not named.
macro_rules! kernels {
    ($($ty:ident: $kernel:expr),* $(,)?) => {{
        let mut all: [Option<MatmulFn>; WeightType::ALL.len()] = [None; _];
        $(all[WeightType::$ty as usize] = Some($kernel);)*
        all
    }};
}

const AVX2_MATMUL: [Option<MatmulFn>; WeightType::ALL.len()] = kernels! {
    F32: avx2::float_matmul::<F32>,
    F16: avx2::float_matmul::<F16>,
    BF16: avx2::float_matmul::<Bf16>,
    Q8_0: avx2::block_matmul::<Q8_0>,
    Q4_0: avx2::block_matmul::<Q4_0>,
    Q4_1: avx2::block_matmul::<Q4_1>,
    Q5_0: avx2::block_matmul::<Q5_0>,
    Q5_1: avx2::block_matmul::<Q5_1>,
    IQ4_NL: avx2::block_matmul::<Iq4Nl>,
    MXFP4: avx2::block_matmul::<Mxfp4>,
    LANE3: avx2::block_matmul::<Lane<3>>,
    LANE5: avx2::block_matmul::<Q5_0>,
    LANE7: avx2::block_matmul::<Lane<7>>,
    Q4_K: avx2::super_block_matmul::<Q4K>,
    Q5_K: avx2::super_block_matmul::<Q5K>,
    Q6_K: avx2::super_block_matmul::<Q6K>,
    Q3_K: avx2::super_block_matmul::<Q3K>,
    Q2_K: avx2::super_block_matmul::<Q2K>,
    IQ4_XS: avx2::super_block_matmul::<Iq4Xs>,
};

reference_table!(
    AVX2,
    avx2_table,
    "avx2",
    CpuFeatures::AVX2
        .union(CpuFeatures::FMA)
        .union(CpuFeatures::F16C),
    Fma3,
    AVX2_MATMUL,
    for_every_format!(avx2_table, block, super_block),
    avx2::neurons::skip,
    Some(avx2::neurons::TRANSPOSE),
    avx2::attention::attend,
    Loops,
    avx2::recurrent::recurrence,
    avx2::lora::down,
    avx2::lora::up,
    "avx2,fma,f16c"
);

/// AVX-512's, integer types' by `$block` and `$super_block`.
macro_rules! avx512_kernels {
    ($block:ident, $super_block:ident) => {
        kernels! {
            F32: avx512::float_matmul::<F32>,
            F16: avx512::float_matmul::<F16>,
            BF16: avx512::bf16_matmul,
            Q8_0: avx512::$block::<Q8_0>,
            Q4_0: avx512::$block::<Q4_0>,
            Q4_1: avx512::$block::<Q4_1>,
            Q5_0: avx512::$block::<Q5_0>,
            Q5_1: avx512::$block::<Q5_1>,
            IQ4_NL: avx512::$block::<Iq4Nl>,
            MXFP4: avx512::$block::<Mxfp4>,
            LANE3: avx512::$block::<Lane<3>>,
            LANE5: avx512::$block::<Q5_0>,
            LANE7: avx512::$block::<Lane<7>>,
            Q4_K: avx512::$super_block::<Q4K>,
            Q5_K: avx512::$super_block::<Q5K>,
            Q6_K: avx512::$super_block::<Q6K>,
            Q3_K: avx512::$super_block::<Q3K>,
            Q2_K: avx512::$super_block::<Q2K>,
            IQ4_XS: avx512::$super_block::<Iq4Xs>,
        }
    };
}

const AVX512_MATMUL: [Option<MatmulFn>; WeightType::ALL.len()] =
    avx512_kernels!(block_matmul, super_block_matmul);

// The features are those that rustc names for the CPUs which have the features required, those
// that the kernels use: `rustc --print cfg -C target-cpu=icelake-server`.
reference_table!(
    AVX512,
    avx512_table,
    "avx512",
    AVX2.requires
        .union(CpuFeatures::AVX512)
        .union(CpuFeatures::AVX512_VNNI)
        .union(CpuFeatures::AVX512_ICE_LAKE),
    Fma3,
    AVX512_MATMUL,
    for_every_format!(avx2_table, block, super_block),
    avx512::neurons::skip,
    Some(avx512::neurons::TRANSPOSE),
    avx512::attention::attend,
    avx512::quantize::Avx512,
    avx512::recurrent::recurrence,
    avx512::lora::down,
    avx512::lora::up,
    "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512vbmi"
);

/// `avx512` with tokens split as on other CPUs: by tiles where it can, or in parts of few.
#[cfg(test)]
pub(super) static AVX512_SPLIT_OTHERWISE: KernelTable = KernelTable {
    name: "avx512-split-otherwise",
    requires: AVX512.requires,
    matmul: avx512_kernels!(
        block_matmul_split_otherwise,
        super_block_matmul_split_otherwise
    ),
    ..AVX512
};

/// Kernels with tiles of kind `$tiles`; for the other types, and few tokens, AVX-512.
macro_rules! amx_kernels {
    ($tiles:ty) => {
        kernels! {
            F32: avx512::float_matmul::<F32>,
            F16: avx512::float_matmul::<F16>,
            BF16: avx512::bf16_matmul,
            Q8_0: amx::block_matmul::<Q8_0, $tiles>,
            Q4_0: amx::block_matmul::<Q4_0, $tiles>,
            Q4_1: amx::block_matmul::<Q4_1, $tiles>,
            Q5_0: amx::block_matmul::<Q5_0, $tiles>,
            Q5_1: amx::block_matmul::<Q5_1, $tiles>,
            IQ4_NL: amx::block_matmul::<Iq4Nl, $tiles>,
            MXFP4: amx::block_matmul::<Mxfp4, $tiles>,
            LANE3: amx::block_matmul::<Lane<3>, $tiles>,
            LANE5: amx::block_matmul::<Q5_0, $tiles>,
            LANE7: amx::block_matmul::<Lane<7>, $tiles>,
            Q4_K: amx::super_block_matmul::<Q4K, $tiles>,
            Q5_K: amx::super_block_matmul::<Q5K, $tiles>,
            Q6_K: amx::super_block_matmul::<Q6K, $tiles>,
            Q3_K: amx::super_block_matmul::<Q3K, $tiles>,
            Q2_K: amx::super_block_matmul::<Q2K, $tiles>,
            IQ4_XS: amx::super_block_matmul::<Iq4Xs, $tiles>,
        }
    };
}

/// `avx512` with products of many tokens by AMX.
pub(super) const AMX: KernelTable = KernelTable {
    name: "amx",
    requires: AVX512
        .requires
        .union(CpuFeatures::AMX_TILE)
        .union(CpuFeatures::AMX_INT8),
    matmul: amx_kernels!(amx::Hardware),
    ..AVX512
};

/// `amx` on machines without: the algorithm with emulated tiles.
#[cfg(test)]
pub(super) static AMX_EMULATED: KernelTable = KernelTable {
    name: "amx-emulated",
    requires: AVX512.requires,
    matmul: amx_kernels!(amx::Emulated),
    ..AVX512
};
