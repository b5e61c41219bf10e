//! Products of rows of f32 in AVX2 and AVX-512 instructions.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

/// Both functions, of vectors of `$lanes` numbers, `$n` of which are sixteen.
macro_rules! float_rows {
    ($name:ident, $features:literal, $vector:ty, $lanes:literal, $n:literal,
     $zero:ident, $set:ident, $load:ident, $store:ident, $add:ident, $mul:ident) => {
        pub(crate) mod $name {
            use crate::contract::LANES;
            use crate::float_rows::{add_one, finish};
            use core::arch::x86_64::*;

            /// Rows that are multiplied together, which hides the latency of additions.
            const ROWS: usize = 4;

            /// # Safety
            /// - The CPU has the features; rows are as long as `x`, and as many as `out`.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn dots(rows: &[&[f32]], x: &[f32], out: &mut [f32]) {
                let (fours, rest) = rows.as_chunks::<ROWS>();
                let (four_outs, rest_out) = out.as_chunks_mut::<ROWS>();
                for (four, out) in fours.iter().zip(four_outs) {
                    // SAFETY: by the caller.
                    unsafe { some(four, x, out) }
                }
                for (row, out) in rest.iter().zip(rest_out) {
                    // SAFETY: by the caller.
                    unsafe { some(&[*row], x, core::array::from_mut(out)) }
                }
            }

            /// # Safety
            /// - As `dots`.
            #[target_feature(enable = $features)]
            unsafe fn some<const R: usize>(rows: &[&[f32]; R], x: &[f32], out: &mut [f32; R]) {
                let mut sums = [[$zero(); $n]; R];
                for i in (0..x.len() / LANES * LANES).step_by(LANES) {
                    for v in 0..$n {
                        let at = i + v * $lanes;
                        // SAFETY: sixteen columns from `i` on are inside; rows are as long as `x`.
                        unsafe {
                            let x = $load(x.as_ptr().add(at));
                            for r in 0..R {
                                let product = $mul($load(rows[r].as_ptr().add(at)), x);
                                sums[r][v] = $add(sums[r][v], product);
                            }
                        }
                    }
                }
                for r in 0..R {
                    let mut lanes = [0f32; LANES];
                    for v in 0..$n {
                        // SAFETY: the lanes of all vectors are sixteen numbers.
                        unsafe { $store(lanes.as_mut_ptr().add(v * $lanes), sums[r][v]) };
                    }
                    out[r] = finish(&lanes, rows[r], x);
                }
            }

            /// # Safety
            /// - The CPU has the features; rows are as long as `out`, and as many as `values`.
            #[target_feature(enable = $features)]
            pub(crate) unsafe fn add(values: &[f32], rows: &[&[f32]], out: &mut [f32]) {
                let (fours, rest) = rows.as_chunks::<ROWS>();
                let (four_values, rest_values) = values.as_chunks::<ROWS>();
                for (rows, values) in fours.iter().zip(four_values) {
                    let factors: [$vector; ROWS] = [
                        $set(values[0]),
                        $set(values[1]),
                        $set(values[2]),
                        $set(values[3]),
                    ];
                    let whole = out.len() / $lanes * $lanes;
                    for i in (0..whole).step_by($lanes) {
                        // SAFETY: a vector from `i` on is inside; rows are as long as `out`.
                        unsafe {
                            let mut sum = $load(out.as_ptr().add(i));
                            for r in 0..ROWS {
                                sum = $add(sum, $mul(factors[r], $load(rows[r].as_ptr().add(i))));
                            }
                            $store(out.as_mut_ptr().add(i), sum);
                        }
                    }
                    for (row, value) in rows.iter().zip(values) {
                        add_one(*value, &row[whole..], &mut out[whole..]);
                    }
                }
                for (row, value) in rest.iter().zip(rest_values) {
                    add_one(*value, row, out);
                }
            }
        }
    };
}

float_rows!(
    avx2,
    "avx2",
    __m256,
    8,
    2,
    _mm256_setzero_ps,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_add_ps,
    _mm256_mul_ps
);
float_rows!(
    avx512,
    "avx512f",
    __m512,
    16,
    1,
    _mm512_setzero_ps,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_add_ps,
    _mm512_mul_ps
);
