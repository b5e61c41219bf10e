//! The kernels of an instruction set, of all types.

/// The kernels of all types, with lines of type `$line`, compiled with `$features`: a function `skip` of a type.
macro_rules! skip_kernels {
    ($line:ty, $features:literal) => {
        use crate::vector::neurons::listed::{self, Listed, RowsAhead};
        use crate::vector::neurons::{Ahead, Chunk, Four, Skip, Wide, chunk};
        use crate::vector::unpack::{SubBlockBytes, SuperBlock};

        /// # Safety
        /// - As [`chunk::blocks`].
        #[target_feature(enable = $features)]
        unsafe fn blocks(skip: &Skip, chunk: &Chunk<'_>, ahead: &mut Ahead<'_>, wide: &mut Wide) {
            // SAFETY: by the caller.
            unsafe { chunk::blocks::<$line>(skip, chunk, ahead, wide) };
        }

        /// # Safety
        /// - As [`chunk::super_blocks`].
        #[target_feature(enable = $features)]
        unsafe fn super_blocks(
            skip: &Skip,
            chunk: &Chunk<'_>,
            ahead: &mut Ahead<'_>,
            wide: &mut Wide,
        ) {
            // SAFETY: by the caller.
            unsafe { chunk::super_blocks::<$line>(skip, chunk, ahead, wide) };
        }

        /// # Safety
        /// - As [`listed::blocks`].
        #[target_feature(enable = $features)]
        unsafe fn listed_blocks(
            skip: &Skip,
            listed: &Listed<'_>,
            ahead: &mut RowsAhead<'_>,
            sums: &mut [f32; PANEL_ROWS],
        ) {
            // SAFETY: by the caller.
            unsafe { listed::blocks::<$line>(skip, listed, ahead, sums) };
        }

        /// # Safety
        /// - As [`listed::super_blocks`].
        #[target_feature(enable = $features)]
        unsafe fn listed_super_blocks(
            skip: &Skip,
            listed: &Listed<'_>,
            ahead: &mut RowsAhead<'_>,
            sums: &mut [f32; PANEL_ROWS],
        ) {
            // SAFETY: by the caller.
            unsafe { listed::super_blocks::<$line>(skip, listed, ahead, sums) };
        }

        /// # Safety
        /// - As [`chunk::widen`].
        #[target_feature(enable = $features)]
        unsafe fn widen(skip: &Skip, chunk: &Chunk<'_>, fours: &[Four], wide: &mut Wide) {
            // SAFETY: by the caller.
            unsafe { chunk::widen::<$line>(skip, chunk, fours, wide) };
        }

        /// # Safety
        /// - As [`SuperBlock::scale_lines`].
        #[target_feature(enable = $features)]
        unsafe fn scales<B: SuperBlock>(super_block: &[u8], out: &mut [SubBlockBytes; 2]) {
            // SAFETY: by the caller.
            unsafe { B::scale_lines::<$line>(super_block, out) };
        }

        /// The kernels of a type with integer codes.
        pub(crate) fn skip(ty: WeightType) -> Option<Skip> {
            let of_blocks = Skip::of_blocks(
                ty,
                [blocks, super_blocks],
                [listed_blocks, listed_super_blocks],
                widen,
            )?;
            Some(match ty {
                WeightType::Q4_K => of_blocks.of_sums::<Q4K>(scales::<Q4K>),
                WeightType::Q5_K => of_blocks.of_sums::<Q5K>(scales::<Q5K>),
                WeightType::Q6_K => of_blocks.of_sums::<Q6K>(scales::<Q6K>),
                WeightType::Q3_K => of_blocks.of_sums::<Q3K>(scales::<Q3K>),
                WeightType::Q2_K => of_blocks.of_sums::<Q2K>(scales::<Q2K>),
                WeightType::IQ4_XS => of_blocks.of_sums::<Iq4Xs>(scales::<Iq4Xs>),
                _ => of_blocks,
            })
        }
    };
}

pub(crate) use skip_kernels;
