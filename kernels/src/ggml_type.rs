//! Tensor types as GGUF files number them, and types of `.slc` files alone, with their block geometry.
//!
//! All types that ggml has written to files are named here, so that a file with a type this
//! build cannot run is still described correctly ("there are no kernels for type Q8_K yet") and its size
//! can be checked. Source: `ggml.h` (`enum ggml_type`) and `ggml-common.h` of llama.cpp.

use core::fmt;

macro_rules! ggml_types {
    ($($name:ident = $id:literal, $text:literal, $block_len:literal, $block_bytes:literal;)*) => {
        /// A tensor element type, numbered as in GGUF files; of those that GGUF has no number for, as in `.slc` files.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u32)]
        #[expect(missing_docs, reason = "each variant is the type of that name in ggml, or a lane of blocks::lane")]
        #[expect(non_camel_case_types, reason = "ggml's own spelling")]
        pub enum GgmlType { $($name = $id,)* }

        impl GgmlType {
            /// Every type, in the order of its number.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The type with number `id`, if there is one.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$name),)* _ => None }
            }

            /// The name of the type, ggml's where it has one, such as `"Q4_K"`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// Elements in one block. Rows are a whole number of blocks long.
            pub const fn block_len(self) -> usize {
                match self { $(Self::$name => $block_len,)* }
            }

            /// Bytes of one block.
            pub const fn block_bytes(self) -> usize {
                match self { $(Self::$name => $block_bytes,)* }
            }
        }
    };
}

ggml_types! {
    F32 = 0, "F32", 1, 4;
    F16 = 1, "F16", 1, 2;
    Q4_0 = 2, "Q4_0", 32, 18;
    Q4_1 = 3, "Q4_1", 32, 20;
    Q5_0 = 6, "Q5_0", 32, 22;
    Q5_1 = 7, "Q5_1", 32, 24;
    Q8_0 = 8, "Q8_0", 32, 34;
    Q8_1 = 9, "Q8_1", 32, 36;
    Q2_K = 10, "Q2_K", 256, 84;
    Q3_K = 11, "Q3_K", 256, 110;
    Q4_K = 12, "Q4_K", 256, 144;
    Q5_K = 13, "Q5_K", 256, 176;
    Q6_K = 14, "Q6_K", 256, 210;
    Q8_K = 15, "Q8_K", 256, 292;
    IQ2_XXS = 16, "IQ2_XXS", 256, 66;
    IQ2_XS = 17, "IQ2_XS", 256, 74;
    IQ3_XXS = 18, "IQ3_XXS", 256, 98;
    IQ1_S = 19, "IQ1_S", 256, 50;
    IQ4_NL = 20, "IQ4_NL", 32, 18;
    IQ3_S = 21, "IQ3_S", 256, 110;
    IQ2_S = 22, "IQ2_S", 256, 82;
    IQ4_XS = 23, "IQ4_XS", 256, 136;
    I8 = 24, "I8", 1, 1;
    I16 = 25, "I16", 1, 2;
    I32 = 26, "I32", 1, 4;
    I64 = 27, "I64", 1, 8;
    F64 = 28, "F64", 1, 8;
    IQ1_M = 29, "IQ1_M", 256, 56;
    BF16 = 30, "BF16", 1, 2;
    TQ1_0 = 34, "TQ1_0", 256, 54;
    TQ2_0 = 35, "TQ2_0", 256, 66;
    MXFP4 = 39, "MXFP4", 32, 17;
    NVFP4 = 40, "NVFP4", 64, 36;
    LANE3 = 0x534c_0003, "LANE3", 32, 14;
    LANE5 = 0x534c_0005, "LANE5", 32, 22;
    LANE7 = 0x534c_0007, "LANE7", 32, 30;
}

impl GgmlType {
    /// Whether this is a precision lane ([`crate::blocks::lane`]): a type of `.slc` files, which GGUF has no number for.
    pub const fn is_lane(self) -> bool {
        matches!(self, Self::LANE3 | Self::LANE5 | Self::LANE7)
    }

    /// Bytes of a row of `n` elements, or `None` where `n` is not a whole number of blocks
    /// or the size does not fit in a `u64`.
    pub const fn row_bytes(self, n: u64) -> Option<u64> {
        if !n.is_multiple_of(self.block_len() as u64) {
            return None;
        }
        (n / self.block_len() as u64).checked_mul(self.block_bytes() as u64)
    }
}

impl fmt::Display for GgmlType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
