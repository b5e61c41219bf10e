//! Int8 rows of activations and rows of outputs, as the kernels of integer types walk them.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    reason = "a kernel's safety argument is one: pointers stay inside operands that were checked"
)]

use crate::activation::{ActivationLayout, BLOCK_COLS, GroupNumbers, SUM_COLS};
use crate::args::{Matmul, Prefetch};
use crate::contract::GROUP;
use crate::cpu::Maker;
use crate::panel::{LINE_BYTES, PANEL_ROWS};
use crate::prefetch::prefetch;
use crate::scalar::matmul::Lanes;
use core::arch::x86_64::*;
use core::sync::atomic::{Ordering, compiler_fence};

/// Int8 rows of activations, by pointer.
#[derive(Clone, Copy)]
pub(crate) struct Int8Rows {
    pub(crate) q: *const u8,
    pub(crate) d: *const u8,
    pub(crate) sums: *const u8,
    /// Bytes from a row to the next.
    pub(crate) stride: usize,
}

impl Int8Rows {
    /// The rows from token `token` on; `per_32`: those with a scale per 32 columns.
    pub(crate) fn new(args: &Matmul<'_>, token: usize, per_32: bool) -> Self {
        let layout = &args.activations.layout;
        let stride = layout.row_bytes();
        let row = args.activations.bytes[token * stride..].as_ptr();
        let (q, d, sums) = layout.int8_offsets(per_32);
        Self {
            q: row.wrapping_add(q),
            d: row.wrapping_add(d),
            sums: row.wrapping_add(sums),
            stride,
        }
    }

    /// One row, of groups of whole codes, scales and sums.
    pub(crate) fn of_row(layout: &ActivationLayout, row: &[u8], per_32: bool) -> Self {
        let (q, d, sums) = layout.int8_offsets(per_32);
        Self {
            q: row[q..].as_ptr(),
            d: row[d..].as_ptr(),
            sums: row[sums..].as_ptr(),
            stride: 0,
        }
    }

    /// `n` blocks of 32 columns on, in rows with a scale for each.
    #[inline(always)]
    pub(crate) fn skip_blocks(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(BLOCK_COLS * n),
            d: self.d.wrapping_add(4 * n),
            sums: self.sums.wrapping_add(2 * BLOCK_COLS / SUM_COLS * n),
            ..self
        }
    }

    /// `n` groups on, in rows with a scale for each.
    #[inline(always)]
    pub(crate) fn skip_groups(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(GROUP * n),
            d: self.d.wrapping_add(size_of::<GroupNumbers>() * n),
            sums: self.sums.wrapping_add(size_of::<GroupNumbers>() * n),
            ..self
        }
    }

    /// What the group has beside its codes, in rows with one scale for each.
    #[inline(always)]
    pub(crate) fn numbers(self) -> *const GroupNumbers {
        self.d.cast()
    }

    /// Asks for a group of the next `n` tokens: rows are far apart, so the prefetcher of the CPU
    /// does not see what comes.
    #[inline(always)]
    pub(crate) fn prefetch(self, n: usize) {
        for t in 0..n {
            let x = self.tokens(t);
            for at in (0..GROUP).step_by(LINE_BYTES) {
                prefetch_line(x.q.wrapping_add(at));
            }
            prefetch_line(x.d);
            prefetch_line(x.sums);
        }
    }

    /// The same columns `n` tokens on.
    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            q: self.q.wrapping_add(n * self.stride),
            d: self.d.wrapping_add(n * self.stride),
            sums: self.sums.wrapping_add(n * self.stride),
            ..self
        }
    }
}

/// Where the outputs of up to 16 rows and some tokens go.
#[derive(Clone, Copy)]
pub(crate) struct Out {
    pub(crate) at: *mut f32,
    pub(crate) stride: usize,
    /// Rows that there are.
    pub(crate) mask: __mmask16,
}

impl Out {
    /// Outputs of panel rows from `row` on (none past the end of `args.rows`), first token.
    pub(crate) fn new(args: &Matmul<'_>, row: usize) -> Self {
        let n_rows = args.rows.end.saturating_sub(row).min(PANEL_ROWS);
        Self {
            at: args.out.wrapping_add(row - args.rows.start),
            stride: args.out_stride,
            mask: u16::try_from((1u32 << n_rows) - 1).expect("16 rows"),
        }
    }

    /// Sums of one token and the rows of a panel.
    pub(crate) const fn of_sums(sums: &mut Lanes) -> Self {
        Self {
            at: sums.as_mut_ptr(),
            stride: PANEL_ROWS,
            mask: __mmask16::MAX,
        }
    }

    #[inline(always)]
    pub(crate) fn tokens(self, n: usize) -> Self {
        Self {
            at: self.at.wrapping_add(n * self.stride),
            ..self
        }
    }
}

/// Scales and sums of a group of some tokens, close together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct BlockScales<const T: usize> {
    pub(crate) d: [[f32; 8]; T],
    /// Sums of the codes of each block.
    pub(crate) sums: [[f32; 8]; T],
    /// What the offset of the weights adds to the dots of a block: it is taken off at the start.
    pub(crate) correction: [[i32; 8]; T],
}

impl<const T: usize> BlockScales<T> {
    pub(crate) const EMPTY: Self = Self {
        d: [[0.0; _]; _],
        sums: [[0.0; _]; _],
        correction: [[0; _]; _],
    };

    /// # Safety
    /// - A group is readable at each of `x`.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) unsafe fn gather(&mut self, x: &[Int8Rows; T], offset: i16, min: bool) {
        for (t, x) in x.iter().enumerate() {
            // SAFETY: eight scales and 16 sums, by the caller.
            unsafe {
                _mm256_storeu_ps(self.d[t].as_mut_ptr(), _mm256_loadu_ps(x.d.cast()));
                // What is not needed is not touched: a line of memory for each token.
                if offset != 0 {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let correction = _mm256_madd_epi16(sums, _mm256_set1_epi16(-offset));
                    _mm256_storeu_si256(self.correction[t].as_mut_ptr().cast(), correction);
                }
                if min {
                    let sums = _mm256_loadu_si256(x.sums.cast());
                    let sums = _mm256_madd_epi16(sums, _mm256_set1_epi16(1));
                    _mm256_storeu_ps(self.sums[t].as_mut_ptr(), _mm256_cvtepi32_ps(sums));
                }
            }
        }
    }
}

/// Scales and sums of a group of some tokens, close together.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct SuperBlockScales<const T: usize> {
    /// Pairs of i16: sums of 32 columns, at most 4064, or of 16, as minima have them.
    pub(crate) pairs: [[i32; 8]; T],
    pub(crate) d: [f32; T],
}

impl<const T: usize> SuperBlockScales<T> {
    pub(crate) const EMPTY: Self = Self {
        pairs: [[0; _]; _],
        d: [0.0; _],
    };

    /// `PAIRS`: pairs of minima in a group, 4, 8, or none.
    ///
    /// # Safety
    /// - A group is readable at `x` for `T` tokens.
    #[target_feature(enable = "avx2")]
    #[inline]
    pub(crate) unsafe fn gather<const PAIRS: usize>(&mut self, x: &Int8Rows) {
        for t in 0..T {
            let x = x.tokens(t);
            // SAFETY: a group's numbers, by the caller; rows are aligned, which the table has
            // checked.
            unsafe {
                let numbers = x.numbers();
                let pairs = self.pairs[t].as_mut_ptr();
                self.d[t] = (*numbers).d;
                if PAIRS == 4 {
                    let sums = _mm_load_si128((&raw const (*numbers).sums_of_32).cast());
                    _mm_storeu_si128(pairs.cast(), sums);
                }
                if PAIRS == 8 {
                    let sums = _mm256_load_si256((&raw const (*numbers).sums).cast());
                    _mm256_storeu_si256(pairs.cast(), sums);
                }
            }
        }
    }
}

/// The weights that come next, asked for while others are multiplied: where few tokens share
/// them, memory is what a product waits for, and it must not stand still meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<const P: usize> {
    at: [*const u8; P],
    /// Bytes of a group of each panel.
    bytes: usize,
}

impl<const P: usize> Ahead<P> {
    /// Nothing.
    pub(crate) const NONE: Self = Self {
        at: [core::ptr::null(); P],
        bytes: 0,
    };

    /// What follows group `g` of `P` panels from row `row` on: their next group, or the first of
    /// the next panels. `start` is where a group starts in its panel.
    #[inline(always)]
    pub(crate) fn new(
        args: &Matmul<'_>,
        row: usize,
        g: usize,
        start: impl Fn(usize) -> usize,
    ) -> Self {
        let panel_bytes = args.layout.panel_bytes();
        let n_groups = args.layout.n_cols().div_ceil(GROUP);
        let panel = args
            .panels
            .as_ptr()
            .wrapping_add(row / PANEL_ROWS * panel_bytes);
        let next = match g + 1 < n_groups {
            true => start(g + 1),
            false => P * panel_bytes + start(0),
        };
        let mut at = [panel.wrapping_add(next); P];
        for (p, at) in at.iter_mut().enumerate() {
            *at = at.wrapping_add(p * panel_bytes);
        }
        let bytes = panel_bytes / n_groups;
        Self { at, bytes }
    }

    /// Asks for part `i` of `n`.
    #[inline(always)]
    pub(crate) fn part(&self, i: usize, n: usize) {
        if self.bytes > 0 {
            self.ask(i, n);
        }
    }

    /// Lines of a group of each panel.
    pub(crate) const fn n_lines(&self) -> usize {
        self.bytes.div_ceil(LINE_BYTES)
    }

    /// Asks for `n` lines of each panel from line `first` on, or for what is behind its last one,
    /// into the second-level cache: until they are needed the first-level one would lose them.
    #[inline(always)]
    pub(crate) fn lines(&self, first: usize, n: usize) {
        let at = self.at.map(|at| at.wrapping_add(first * LINE_BYTES));
        for line in 0..n {
            for at in at {
                prefetch_line_to_l2(at.wrapping_add(line * LINE_BYTES));
            }
        }
    }

    /// Not in each of the many tiles: unrolled there it was a fifth of their code.
    #[inline(never)]
    fn ask(&self, i: usize, n: usize) {
        let bytes = self.bytes.div_ceil(n).next_multiple_of(LINE_BYTES);
        for at in self.at {
            prefetch(at.wrapping_add(i * bytes), bytes);
        }
    }
}

#[inline(always)]
pub(super) fn prefetch_line(p: *const u8) {
    // SAFETY: a hint; it may point anywhere.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) };
}

#[inline(always)]
pub(super) fn prefetch_line_to_l2(p: *const u8) {
    // SAFETY: a hint; it may point anywhere.
    unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) };
}

/// How a product with few tokens, which waits for memory, asks for the weights that come.
///
/// Zen 4's first-level cache waits for two dozen lines at most, too few for what memory takes to
/// answer, while its prefetchers fetch into the second level. One token's loads come fast enough
/// for them to keep up if they see what is next: small steps want two lines ahead, since lines
/// farther on take the room of nearer ones. Steps of Q8_0, over 512 bytes, and the products of more
/// tokens, whose loads come slowly, want pages further on in the second level.
///
/// One token near on Zen 4, two threads, 128 bytes ahead against 512 and against none, in turn: Q4_K 1.0
/// to 1.2 and 1.0 times as fast, Q4_0 1.0 to 1.15 and 1.0, Q5_0 1.1 to 1.15 and 1.0, Q6_K 1.1 and
/// 1.0, Q5_K 1.0, Q3_K 0.92 to 1.0. Q8_0's 6144 and 64 bytes against 512: 1.06 to 1.35 times. Four
/// tokens: 6144 bytes 1.1 to 1.5 times as fast as 64, 1.0 to 1.05 times as fast as 8192.
///
/// How memory answers changes on shared machines, from second to second. Where it is slow, 6144
/// bytes are up to 1.6 times as fast for one token of small steps, too; where it is fast, 0.85
/// to 1.0 times (Q8_0: 0.97). So [`Prefetch`] says which.
///
/// Zen 5, two threads, 300 MB of weights each, in turn, parts of what a loop that only reads gets: one
/// token 6144 bytes ahead into the first level, and 64 into the first and 4096 into the second. Where
/// memory gives 80 GB/s, Q4_K 0.95 and 0.80, Q6_K 0.97 and 0.91, Q4_0 0.92 and 0.87, Q8_0 0.91 and 0.89;
/// where it gives 50, and answers so late that more lines are needed than the first level waits for,
/// 0.97 and 0.97, 1.02 and 1.03, 1.01 and 1.03, 0.98 and 1.02. Each line that is asked for takes the
/// turn of a load: four tokens ask for each once, 12288 bytes ahead, where memory is fast, 6144 where it
/// is slow, Q4_K 1.08, Q4_0 1.03, Q6_K 1.07 times as fast so; fast, Q6_K 0.91. Four of Q8_0 take both
/// levels: 6144 and 12288 bytes where memory is fast, 64 and 4096 where it is slow, 1.06 to 1.09 times
/// as fast so; fast, 0.87.
///
/// What is asked for nine lines at a time comes later than what is asked for four at a time between
/// loads ([`Self::ask_half`]): one token of Q4_K 0.85 where memory is fast, Q6_K 0.95, Q8_0 0.89.
///
/// Intel's second level waits for three times as many lines as its first. Emerald Rapids, two
/// threads, 12288 bytes into the second level and 3072 into the first against 4096 bytes into the
/// first alone, in turn: one token of Q4_0 1.14 to 1.2 times as fast, of Q4_K_M 1.1 to 1.15, of Q8_0 1.0 to
/// 1.09, of a model in the caches 0.9 times; four tokens 1.03 to 1.1 times. None: 0.72.
#[derive(Clone, Copy)]
pub(crate) struct Stream {
    /// Bytes ahead that lines are asked for into the first-level cache.
    to_l1: Option<usize>,
    /// Likewise, into the second.
    to_l2: Option<usize>,
}

impl Stream {
    /// For `n_tokens` tokens on this CPU, and `bytes` in a step.
    pub(crate) fn new(n_tokens: usize, bytes: usize, prefetch: Prefetch) -> Self {
        let (to_l1, to_l2) = match (Maker::detect(), n_tokens, prefetch) {
            (Maker::AmdBeforeZen5, 1, _) if bytes > 512 => (Some(LINE_BYTES), Some(6144)),
            (Maker::AmdBeforeZen5, 1, Prefetch::Near) => (Some(128), None),
            (Maker::AmdBeforeZen5, ..) => (None, Some(6144)),
            (Maker::Amd, 1, Prefetch::Near) => (Some(6144), None),
            (Maker::Amd, _, Prefetch::Near) if bytes > 512 => (Some(6144), Some(12288)),
            (Maker::Amd, _, Prefetch::Near) => (Some(12288), None),
            (Maker::Amd, n, Prefetch::Far) if n == 1 || bytes > 512 => {
                (Some(LINE_BYTES), Some(4096))
            }
            (Maker::Amd, _, Prefetch::Far) => (Some(6144), None),
            (Maker::Other, 1, Prefetch::Near) => (Some(4096), None),
            (Maker::Other, ..) => (Some(3072), Some(12288)),
        };
        Self { to_l1, to_l2 }
    }

    /// [`Self::ask`] for half `half`, 0 or 1, of the `bytes`. Compilers move no load across it: they
    /// would load both halves at once.
    #[inline(always)]
    pub(crate) fn ask_half(self, p: *const u8, bytes: usize, half: usize) {
        let first = bytes / 2 / LINE_BYTES * LINE_BYTES;
        match half {
            0 => self.ask(p, first),
            _ => self.ask(p.wrapping_add(first), bytes - first),
        }
        compiler_fence(Ordering::SeqCst);
    }

    /// Asks for what lies so far behind the `bytes` from `p` on, which are read next.
    #[inline(always)]
    pub(crate) fn ask(self, p: *const u8, bytes: usize) {
        if let Some(distance) = self.to_l2 {
            for at in (distance..distance + bytes).step_by(LINE_BYTES) {
                prefetch_line_to_l2(p.wrapping_add(at));
            }
        }
        if let Some(distance) = self.to_l1 {
            prefetch(p.wrapping_add(distance), bytes);
        }
    }
}
