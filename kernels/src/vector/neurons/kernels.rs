//! The kernels of an instruction set, of all types.

/// The kernels of all types, with lines of type `$line`, compiled with `$features`: a function `skip` of a type.
macro_rules! skip_kernels {
    ($line:ty, $features:literal) => {
        use crate::activation::ActivationKinds;
        use crate::panel::PANEL_ROWS;
        use crate::scalar::matmul::IQ4_TABLE;
        use crate::vector::neurons::finish::{self, FinishFn, SubBlocks};
        use crate::vector::neurons::{self, Columns, Dots, Four, Skip};
        use crate::vector::rows::Int8Rows;
        use crate::vector::unpack::{Block, SubBlockBytes, SuperBlock};

        /// # Safety
        /// - As [`neurons::dots`].
        #[target_feature(enable = $features)]
        unsafe fn dots(columns: &Columns, fours: &[Four], start: i32, out: &mut Dots) {
            // SAFETY: by the caller.
            unsafe { neurons::dots::<$line>(columns, fours, start, out) };
        }

        /// # Safety
        /// - As [`finish::blocks`].
        #[target_feature(enable = $features)]
        unsafe fn finish_blocks<B: Block>(
            subs: &SubBlocks,
            head: &[u8],
            dots: *const [i32; PANEL_ROWS],
            x: &Int8Rows,
            out: *mut f32,
        ) {
            // SAFETY: by the caller.
            unsafe { finish::blocks::<$line, B>(subs, head, dots, x, out) };
        }

        /// # Safety
        /// - As [`finish::super_block`].
        #[target_feature(enable = $features)]
        unsafe fn finish_super_block(
            subs: &SubBlocks,
            head: &[u8],
            dots: *const [i32; PANEL_ROWS],
            x: &Int8Rows,
            out: *mut f32,
        ) {
            // SAFETY: by the caller.
            unsafe { finish::super_block::<$line>(subs, head, dots, x, out) };
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
            const BLOCKS: SubBlocks = SubBlocks::BLOCKS;
            let (nibbles, bytes) = ((true, true), (true, false));
            let others = (false, false);
            let values = Some(&IQ4_TABLE);
            let scale: FinishFn = finish_blocks::<Q4_0>;
            let scale_and_min: FinishFn = finish_blocks::<Q4_1>;
            let sums: FinishFn = finish_super_block;
            let ((is_plain, are_nibbles), finish, subs, offset, table) = match ty {
                WeightType::Q8_0 => (bytes, scale, BLOCKS, 128, None),
                WeightType::Q4_0 => (nibbles, scale, BLOCKS, 8, None),
                WeightType::Q4_1 => (nibbles, scale_and_min, BLOCKS, 0, None),
                WeightType::Q5_0 => (others, scale, BLOCKS, 16, None),
                WeightType::Q5_1 => (others, scale_and_min, BLOCKS, 0, None),
                WeightType::IQ4_NL => (nibbles, scale, BLOCKS, 128, values),
                WeightType::MXFP4 => {
                    let finish: FinishFn = finish_blocks::<Mxfp4>;
                    (nibbles, finish, BLOCKS, 128, Mxfp4::TABLE.as_ref())
                }
                WeightType::Q4_K => (nibbles, sums, SubBlocks::of::<Q4K>(scales::<Q4K>), 0, None),
                WeightType::Q5_K => (others, sums, SubBlocks::of::<Q5K>(scales::<Q5K>), 0, None),
                WeightType::Q6_K => (others, sums, SubBlocks::of::<Q6K>(scales::<Q6K>), 32, None),
                WeightType::Q3_K => (others, sums, SubBlocks::of::<Q3K>(scales::<Q3K>), 4, None),
                WeightType::Q2_K => (others, sums, SubBlocks::of::<Q2K>(scales::<Q2K>), 0, None),
                WeightType::IQ4_XS => {
                    let subs = SubBlocks::of::<Iq4Xs>(scales::<Iq4Xs>);
                    (nibbles, sums, subs, 128, values)
                }
                _ => return None,
            };
            let kinds = ActivationKinds::for_weights(ty);
            Some(Skip {
                dots,
                is_plain,
                are_nibbles,
                finish,
                per_32: kinds.contains(ActivationKinds::INT8_32),
                subs,
                offset,
                table,
            })
        }
    };
}

pub(crate) use skip_kernels;
