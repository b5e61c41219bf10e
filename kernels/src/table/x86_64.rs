//! Which types have hand-written kernels in which table.

use super::MatmulFn;
use crate::WeightType;
use crate::panel::{
    F16, F32, Iq4Nl, Iq4Xs, Mxfp4, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0,
};
use crate::x86_64::avx512;

/// A kernel for each weight type, `None` for those that are not named.
macro_rules! kernels {
    ($($ty:ident: $kernel:expr),* $(,)?) => {{
        let mut all: [Option<MatmulFn>; WeightType::ALL.len()] = [None; _];
        $(all[WeightType::$ty as usize] = Some($kernel);)*
        all
    }};
}

pub(super) const AVX512_MATMUL: [Option<MatmulFn>; WeightType::ALL.len()] = kernels! {
    F32: avx512::float_matmul::<F32>,
    F16: avx512::float_matmul::<F16>,
    BF16: avx512::bf16_matmul,
    Q8_0: avx512::block_matmul::<Q8_0>,
    Q4_0: avx512::block_matmul::<Q4_0>,
    Q4_1: avx512::block_matmul::<Q4_1>,
    Q5_0: avx512::block_matmul::<Q5_0>,
    Q5_1: avx512::block_matmul::<Q5_1>,
    IQ4_NL: avx512::block_matmul::<Iq4Nl>,
    MXFP4: avx512::block_matmul::<Mxfp4>,
    Q4_K: avx512::super_block_matmul::<Q4K>,
    Q5_K: avx512::super_block_matmul::<Q5K>,
    Q6_K: avx512::super_block_matmul::<Q6K>,
    Q3_K: avx512::super_block_matmul::<Q3K>,
    Q2_K: avx512::super_block_matmul::<Q2K>,
    IQ4_XS: avx512::super_block_matmul::<Iq4Xs>,
};
