//! Scans of scores in AVX2 and AVX-512 instructions.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

/// The three functions over sixteen scores at a time, by the helpers of the module they are in: masks of those above a
/// threshold and of those that are not numbers, the addition of a mask's indices to a list, and extremes.
macro_rules! score_scan {
    ($features:literal) => {
        use crate::contract::LANES;
        use crate::score_scan::{ScoreRange, list_from, scalar_count};
        use core::arch::x86_64::*;

        /// # Safety
        /// - The CPU has the features.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn range(scores: &[f32]) -> ScoreRange {
            let (chunks, rest) = scores.as_chunks::<LANES>();
            let (mut extremes, mut n_nan) = (Extremes::new(), 0);
            for chunk in chunks {
                n_nan += nan(chunk).count_ones() as usize;
                extremes.add(chunk);
            }
            let [lows, highs] = extremes.lanes();
            let all = rest.iter();
            let rest = all.fold(ScoreRange::EMPTY, |range, score| range.with(*score));
            // Lanes past the last score are infinite.
            ScoreRange {
                lowest: lows.into_iter().fold(rest.lowest, f32::min),
                highest: highs.into_iter().fold(rest.highest, f32::max),
                n_nan: n_nan + rest.n_nan,
            }
        }

        /// # Safety
        /// - The CPU has the features.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn count_above(scores: &[f32], threshold: f32) -> usize {
            let (chunks, rest) = scores.as_chunks::<LANES>();
            let mut n = 0;
            for chunk in chunks {
                n += above(chunk, threshold).count_ones() as usize;
            }
            n + scalar_count(rest, threshold)
        }

        /// # Safety
        /// - The CPU has the features; `list` is as long as `scores`.
        #[target_feature(enable = $features)]
        pub(crate) unsafe fn list_above(
            scores: &[f32],
            threshold: f32,
            list: &mut [usize],
        ) -> usize {
            let (chunks, rest) = scores.as_chunks::<LANES>();
            let mut n = 0;
            for (c, chunk) in chunks.iter().enumerate() {
                let mask = above(chunk, threshold) | nan(chunk);
                // SAFETY: sixteen indices fit from `c · 16` on, and no more than one for each earlier score is listed.
                n += unsafe { add(mask, c * LANES, list.as_mut_ptr().add(n)) };
            }
            list_from(chunks.len() * LANES, rest, threshold, list, n)
        }
    };
}

pub(crate) mod avx2 {
    score_scan!("avx2,popcnt");

    /// The mask of both halves.
    macro_rules! mask {
        ($chunk:ident, $compare:expr) => {{
            let [low, high] =
                halves($chunk).map(|half| _mm256_movemask_ps($compare(half)).cast_unsigned());
            low | high << 8
        }};
    }

    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    fn halves(chunk: &[f32; LANES]) -> [__m256; 2] {
        // SAFETY: sixteen floats.
        unsafe {
            [
                _mm256_loadu_ps(chunk.as_ptr()),
                _mm256_loadu_ps(chunk.as_ptr().add(8)),
            ]
        }
    }

    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    fn above(chunk: &[f32; LANES], threshold: f32) -> u32 {
        mask!(chunk, |half| _mm256_cmp_ps::<_CMP_GT_OQ>(
            half,
            _mm256_set1_ps(threshold)
        ))
    }

    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    fn nan(chunk: &[f32; LANES]) -> u32 {
        mask!(chunk, |half| _mm256_cmp_ps::<_CMP_UNORD_Q>(half, half))
    }

    /// # Safety
    /// - A place for each bit that is set.
    #[inline]
    #[target_feature(enable = "avx2,popcnt")]
    unsafe fn add(mut mask: u32, first: usize, list: *mut usize) -> usize {
        let n = mask.count_ones() as usize;
        for place in 0..n {
            // SAFETY: by the caller.
            unsafe { *list.add(place) = first + mask.trailing_zeros() as usize };
            mask &= mask.wrapping_sub(1);
        }
        n
    }

    /// The lowest and the highest score of each lane.
    struct Extremes([__m256; 4]);

    impl Extremes {
        #[inline]
        #[target_feature(enable = "avx2,popcnt")]
        fn new() -> Self {
            let [lowest, highest] = [f32::INFINITY, f32::NEG_INFINITY].map(|x| _mm256_set1_ps(x));
            Self([lowest, lowest, highest, highest])
        }

        /// With the scores first: what is compared with one that is not a number stays.
        #[inline]
        #[target_feature(enable = "avx2,popcnt")]
        fn add(&mut self, chunk: &[f32; LANES]) {
            let ([a, b], [a_low, b_low, a_high, b_high]) = (halves(chunk), self.0);
            self.0 = [
                _mm256_min_ps(a, a_low),
                _mm256_min_ps(b, b_low),
                _mm256_max_ps(a, a_high),
                _mm256_max_ps(b, b_high),
            ];
        }

        #[inline]
        #[target_feature(enable = "avx2,popcnt")]
        fn lanes(&self) -> [[f32; LANES]; 2] {
            let mut lanes = [[0.0; LANES]; 2];
            for (half, vector) in lanes.as_flattened_mut().chunks_exact_mut(8).zip(self.0) {
                // SAFETY: eight floats.
                unsafe { _mm256_storeu_ps(half.as_mut_ptr(), vector) };
            }
            lanes
        }
    }
}

pub(crate) mod avx512 {
    score_scan!("avx512f,popcnt");

    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn load(chunk: &[f32; LANES]) -> __m512 {
        // SAFETY: sixteen floats.
        unsafe { _mm512_loadu_ps(chunk.as_ptr()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn above(chunk: &[f32; LANES], threshold: f32) -> u32 {
        _mm512_cmp_ps_mask::<_CMP_GT_OQ>(load(chunk), _mm512_set1_ps(threshold)).into()
    }

    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    fn nan(chunk: &[f32; LANES]) -> u32 {
        _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(load(chunk), load(chunk)).into()
    }

    /// Eights are compressed in registers and stored whole: compressing stores are microcode on Zen 4.
    ///
    /// # Safety
    /// - Sixteen places.
    #[inline]
    #[target_feature(enable = "avx512f,popcnt")]
    unsafe fn add(mask: u32, first: usize, list: *mut usize) -> usize {
        const { assert!(size_of::<usize>() == size_of::<i64>()) };
        let low = _mm512_add_epi64(
            _mm512_set1_epi64(first.cast_signed() as i64),
            _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7),
        );
        let high = _mm512_add_epi64(low, _mm512_set1_epi64(8));
        let [low_mask, high_mask, ..] = mask.to_le_bytes();
        let n_low = low_mask.count_ones() as usize;
        // SAFETY: the second eight begins among the first eight places or after them; there are sixteen.
        unsafe {
            _mm512_storeu_epi64(list.cast(), _mm512_maskz_compress_epi64(low_mask, low));
            let high = _mm512_maskz_compress_epi64(high_mask, high);
            _mm512_storeu_epi64(list.add(n_low).cast(), high);
        }
        n_low + high_mask.count_ones() as usize
    }

    /// The lowest and the highest score of each lane.
    struct Extremes([__m512; 2]);

    impl Extremes {
        #[inline]
        #[target_feature(enable = "avx512f,popcnt")]
        fn new() -> Self {
            Self([f32::INFINITY, f32::NEG_INFINITY].map(|x| _mm512_set1_ps(x)))
        }

        /// With the scores first: what is compared with one that is not a number stays.
        #[inline]
        #[target_feature(enable = "avx512f,popcnt")]
        fn add(&mut self, chunk: &[f32; LANES]) {
            let (scores, [low, high]) = (load(chunk), self.0);
            self.0 = [_mm512_min_ps(scores, low), _mm512_max_ps(scores, high)];
        }

        #[inline]
        #[target_feature(enable = "avx512f,popcnt")]
        fn lanes(&self) -> [[f32; LANES]; 2] {
            let mut lanes = [[0.0; LANES]; 2];
            for (lanes, vector) in lanes.iter_mut().zip(self.0) {
                // SAFETY: sixteen floats.
                unsafe { _mm512_storeu_ps(lanes.as_mut_ptr(), vector) };
            }
            lanes
        }
    }
}
