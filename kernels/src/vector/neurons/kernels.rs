//! The kernels of an instruction set, of all types.

/// The kernels of all types, with lines of type `$line`, compiled with `$features`: a function `skip` of a type.
macro_rules! skip_kernels {
    ($line:ty, $features:literal) => {
        use crate::neuron::{ChunkCodes, HALF, HalfChunk};
        use crate::panel::form::CHUNK;
        use crate::vector::neurons::dots::{self, Ahead, Chunks, DOTS, Dots};
        use crate::vector::neurons::finish::{self, Panel};
        use crate::vector::neurons::listed::{self, BLOCKS, RowsAhead};
        use crate::vector::neurons::panels;
        use crate::vector::neurons::{Kernels, Skip};
        use crate::vector::rows::Int8Rows;
        use crate::vector::unpack::{SubBlockBytes, SuperBlock};

        /// # Safety
        /// - As [`dots::dots`].
        #[target_feature(enable = $features)]
        unsafe fn dots(
            skip: &Skip,
            chunks: &Chunks<'_>,
            ahead: &mut Ahead,
            out: &mut [Dots; DOTS],
        ) {
            // SAFETY: by the caller.
            unsafe { dots::dots::<$line>(skip, chunks, ahead, out) };
        }

        /// # Safety
        /// - As [`dots::widen`].
        #[target_feature(enable = $features)]
        unsafe fn widen(
            skip: &Skip,
            codes: &ChunkCodes,
            at: [*const u8; 4],
            wide: &mut [[u8; CHUNK]; 4],
        ) {
            // SAFETY: by the caller.
            unsafe { dots::widen::<$line>(skip, codes, at, wide) };
        }

        /// # Safety
        /// - As [`panels::lines`].
        #[target_feature(enable = $features)]
        unsafe fn lines(chunk: &HalfChunk, panels: [*mut u8; HALF]) {
            // SAFETY: by the caller.
            unsafe { panels::lines::<$line>(chunk, panels) };
        }

        /// # Safety
        /// - As [`listed::dots`].
        #[target_feature(enable = $features)]
        unsafe fn listed(
            skip: &Skip,
            rows: &[*const u8; PANEL_ROWS],
            x: &Int8Rows,
            ahead: &mut RowsAhead<'_>,
            out: &mut [Dots; BLOCKS],
        ) {
            // SAFETY: by the caller.
            unsafe { listed::dots::<$line>(skip, rows, x, ahead, out) };
        }

        /// # Safety
        /// - As [`finish::blocks`].
        #[target_feature(enable = $features)]
        unsafe fn blocks(
            skip: &Skip,
            panel: &Panel<'_>,
            _: &mut [SubBlockBytes; 2],
            sums: &mut [f32; PANEL_ROWS],
        ) {
            // SAFETY: by the caller.
            unsafe { finish::blocks::<$line>(skip, panel, sums) };
        }

        /// # Safety
        /// - As [`finish::super_blocks`].
        #[target_feature(enable = $features)]
        unsafe fn super_blocks(
            skip: &Skip,
            panel: &Panel<'_>,
            numbers: &mut [SubBlockBytes; 2],
            sums: &mut [f32; PANEL_ROWS],
        ) {
            // SAFETY: by the caller.
            unsafe { finish::super_blocks::<$line>(skip, panel, numbers, sums) };
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
            let kernels = Kernels {
                dots,
                widen,
                listed,
                lines,
                blocks,
                super_blocks,
            };
            let of_blocks = Skip::of_blocks(ty, kernels)?;
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
