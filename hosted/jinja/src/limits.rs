//! What one rendering may use. Nothing here is a clock: what is refused once is refused always.

/// Of a template in bytes; the longest known ones have some 25,000.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Of everything that is printed, also into variables, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// What one value may weigh: its text, and 32 bytes for each element of a list or map.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// What all operations of a rendering may walk over or make, in bytes; the values that it holds
/// at a time are among them.
pub const TOUCHED_BYTES_MAX: usize = 1 << 30;
/// Instructions of minijinja's machine; a long conversation takes some 100,000.
pub const INSTRUCTIONS_MAX: u64 = 10_000_000;
