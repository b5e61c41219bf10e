//! The functions of a table: the texts, compiled with its features.

/// Writes `attend`, a table's [`KernelTable`](crate::KernelTable) function, and the `scores`, `values` and
/// `Functions` that [`Vector`](super::Vector) hands out: for vectors `$vector`, with `$features` enabled
/// (plain code: none). With `bf16`, pairs of bf16 are multiplied as `$elements` do where `$serves` says
/// that the CPU can.
#[cfg_attr(
    not(all(target_arch = "x86_64", target_feature = "sse2")),
    allow(unused_macros, reason = "no vector table for this processor yet")
)]
macro_rules! attention_functions {
    ($vector:ty $(, $features:literal)? $(, bf16: $elements:ty, $serves:path, $bf16_features:literal)?) => {
        /// Continues the online softmax of every query with the keys that it sees.
        ///
        /// # Safety
        /// - The CPU has the features.
        /// - The operands are as [`crate::KernelTable::attention`] checks them.
        $(#[target_feature(enable = $features)])?
        pub(crate) unsafe fn attend(
            args: &crate::attention::AttentionArgs<'_>,
            state: &mut crate::attention::AttentionState<'_>,
        ) {
            // SAFETY: by the caller.
            unsafe { attention::attention::<$vector>(args, state) }
        }

        attention_functions!(@ $vector, scores, values $(, $features)?);

        $(#[target_feature(enable = $features)])?
        unsafe fn int8_scores<const NIBBLES: bool, const Q: usize, const L: usize>(args: &Scores) {
            // SAFETY: by the caller.
            unsafe { attention::int8_scores::<$vector, NIBBLES, Q, L>(args) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn int8_values<const NIBBLES: bool, const Q: usize>(args: &Values) {
            // SAFETY: by the caller.
            unsafe { attention::int8_values::<$vector, NIBBLES, Q>(args) }
        }

        $(attention_functions!(@ $vector, bf16_scores, bf16_values, $bf16_features);)?

        /// `values` of four queries at a time.
        ///
        /// # Safety
        /// - As `values`, for a multiple of four queries.
        unsafe fn by_four<E: Elements<$vector>, const Q: usize>(args: &Values) {
            for first in (0..Q).step_by(4) {
                // SAFETY: by the caller.
                unsafe { values::<E, 4>(&args.of_queries_from(first)) };
            }
        }

        /// The functions of every type for chunks of `Q` queries, scores by `L` vectors of keys.
        struct Functions<const Q: usize, const L: usize>;

        impl<const Q: usize, const L: usize> Functions<Q, L> {
            fn scores(ty: KvType) -> ScoresFn {
                match ty {
                    KvType::F32 => scores::<F32, Q, L>,
                    KvType::F16 => scores::<F16, Q, L>,
                    $(KvType::BF16 if $serves() => bf16_scores::<$elements, Q, L>,)?
                    KvType::BF16 => scores::<Bf16, Q, L>,
                    KvType::FP8 => scores::<Fp8, Q, L>,
                    KvType::Q8_0 => int8_scores::<false, Q, L>,
                    KvType::Q4_0 => int8_scores::<true, Q, L>,
                }
            }

            fn values(ty: KvType) -> ValuesFn {
                match ty {
                    KvType::F32 => values::<F32, Q>,
                    KvType::F16 => values::<F16, Q>,
                    $(KvType::BF16 if $serves() => bf16_values::<$elements, Q>,)?
                    // Arithmetic is most of it, so that larger chunks gain nothing by a body of their own.
                    KvType::BF16 if Q > 4 => by_four::<Bf16, Q>,
                    KvType::BF16 => values::<Bf16, Q>,
                    KvType::FP8 => values::<Fp8, Q>,
                    KvType::Q8_0 => int8_values::<false, Q>,
                    KvType::Q4_0 => int8_values::<true, Q>,
                }
            }
        }
    };
    (@ $vector:ty, $scores:ident, $values:ident $(, $features:literal)?) => {
        $(#[target_feature(enable = $features)])?
        unsafe fn $scores<E: Elements<$vector>, const Q: usize, const L: usize>(args: &Scores) {
            // SAFETY: by the caller.
            unsafe { attention::scores::<$vector, E, Q, L>(args) }
        }

        $(#[target_feature(enable = $features)])?
        unsafe fn $values<E: Elements<$vector>, const Q: usize>(args: &Values) {
            // SAFETY: by the caller.
            unsafe { attention::values::<$vector, E, Q>(args) }
        }
    };
}

pub(crate) use attention_functions;
