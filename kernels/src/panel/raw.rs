//! Panels of types without a layout of their own: GGUF blocks as they are, side by side.
//!
//! ```text
//! block 0 of rows 0, 1, … 15    block 1 of rows 0, 1, … 15    …
//! ```
//!
//! Exactly GGUF's size. The kernel dequantises a group of columns of the 16 rows and multiplies
//! as with F32 weights.

use super::{PANEL_ROWS, PanelFormat, WeightType};

/// Panels of the type with index `TYPE` in [`WeightType::ALL`].
pub(crate) struct Raw<const TYPE: usize>;

pub(crate) type Iq1S = Raw<{ WeightType::IQ1_S as usize }>;
pub(crate) type Iq1M = Raw<{ WeightType::IQ1_M as usize }>;
pub(crate) type Iq2Xxs = Raw<{ WeightType::IQ2_XXS as usize }>;
pub(crate) type Iq2Xs = Raw<{ WeightType::IQ2_XS as usize }>;
pub(crate) type Iq2S = Raw<{ WeightType::IQ2_S as usize }>;
pub(crate) type Iq3Xxs = Raw<{ WeightType::IQ3_XXS as usize }>;
pub(crate) type Iq3S = Raw<{ WeightType::IQ3_S as usize }>;
pub(crate) type Tq1_0 = Raw<{ WeightType::TQ1_0 as usize }>;
pub(crate) type Tq2_0 = Raw<{ WeightType::TQ2_0 as usize }>;
pub(crate) type Nvfp4 = Raw<{ WeightType::NVFP4 as usize }>;

impl<const TYPE: usize> Raw<TYPE> {
    /// Bytes of a block of one row.
    pub(crate) const BLOCK_BYTES: usize = WeightType::ALL[TYPE].ggml().block_bytes();
    /// Columns of a block.
    pub(crate) const BLOCK_LEN: usize = WeightType::ALL[TYPE].ggml().block_len();

    // Panels start at multiples of 32 bytes.
    const _EVEN: () = assert!(Self::BLOCK_BYTES.is_multiple_of(2));

    /// Block `index` of lane `row`: where it starts.
    const fn at(row: usize, index: usize) -> usize {
        (index * PANEL_ROWS + row) * Self::BLOCK_BYTES
    }
}

impl<const TYPE: usize> PanelFormat for Raw<TYPE> {
    const TYPE: WeightType = WeightType::ALL[TYPE];

    fn panel_bytes(n_cols: usize) -> usize {
        const { Self::_EVEN };
        n_cols / Self::BLOCK_LEN * PANEL_ROWS * Self::BLOCK_BYTES
    }

    fn pack_block(panel: &mut [u8], _: usize, row: usize, index: usize, block: &[u8]) {
        panel[Self::at(row, index)..][..Self::BLOCK_BYTES].copy_from_slice(block);
    }

    fn unpack_block(panel: &[u8], _: usize, row: usize, index: usize, block: &mut [u8]) {
        block.copy_from_slice(&panel[Self::at(row, index)..][..Self::BLOCK_BYTES]);
    }
}
