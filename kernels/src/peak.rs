//! What the loops of [`crate::probe`] compute, and how they read.

/// What to compute with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peak {
    /// 8-bit integers, summed in 32 bits.
    Int8,
    /// bfloat16, summed in f32; on tables without such instructions f32.
    Bf16,
    /// f32 with fused multiply-add.
    F32,
}

impl Peak {
    /// Every kind.
    pub const ALL: [Self; 3] = [Self::Int8, Self::Bf16, Self::F32];
}

/// How memory is read. None is the fastest everywhere, so a probe takes the best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadLoop {
    /// From the first byte to the last.
    Forward,
    /// As [`Self::Forward`], with prefetches some lines ahead.
    Prefetched,
    /// Four quarters side by side.
    FourStreams,
}

impl ReadLoop {
    /// Every way.
    pub const ALL: [Self; 3] = [Self::Forward, Self::Prefetched, Self::FourStreams];
}
