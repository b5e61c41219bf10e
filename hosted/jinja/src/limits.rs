//! Limits of one rendering. None is based on time, so that the result is reproducible.

/// Maximum length of a template in bytes; the longest known ones have about 25,000.
pub const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Maximum size of all output, including output into variables, in bytes.
pub const OUTPUT_BYTES_MAX: usize = 16 << 20;
/// Maximum size of one value in bytes: its text, and 32 bytes for each element of a list or map.
pub const VALUE_BYTES_MAX: usize = 8 << 20;
/// Maximum number of bytes that all operations of a rendering may read or write; this includes the values that it
/// holds at any time.
pub const TOUCHED_BYTES_MAX: usize = 1 << 30;
/// Maximum number of minijinja instructions; a long conversation takes about 100,000.
pub const INSTRUCTIONS_MAX: u64 = 10_000_000;
