//! Where the numbers and the codes of 256 columns of a panel are.

use super::{LINE_BYTES, PANEL_ROWS, WeightType, q4_k};
use crate::contract::GROUP;

/// Numbers of the blocks of 256 columns: `n` of `bytes` bytes for each of 16 rows, from byte `at` on.
#[derive(Clone, Copy)]
pub(crate) struct Numbers {
    at: usize,
    bytes: usize,
    n: usize,
}

/// 256 columns of a panel, or as many as the last group has: a head with the numbers, then lines.
#[derive(Clone, Copy)]
pub(crate) struct GroupFormat {
    numbers: [Numbers; 2],
    /// Bytes before the lines.
    head: usize,
    /// Bits of each part of a code that has lines of its own, low ones first.
    pub(crate) planes: &'static [usize],
    /// Columns whose lines follow each other, one plane after the other.
    pub(crate) run_cols: usize,
}

const NONE: Numbers = Numbers {
    at: 0,
    bytes: 1,
    n: 0,
};

const fn numbers(at: usize, bytes: usize, n: usize) -> Numbers {
    Numbers { at, bytes, n }
}

/// Blocks of 32 columns with `n` numbers of `bytes` bytes each.
const fn blocks(bytes: usize, n: usize, planes: &'static [usize]) -> GroupFormat {
    GroupFormat {
        numbers: [numbers(0, bytes, 8 * n), NONE],
        head: 8 * n * bytes * PANEL_ROWS,
        planes,
        run_cols: 32,
    }
}

const fn super_block(
    numbers: [Numbers; 2],
    head: usize,
    planes: &'static [usize],
    run_cols: usize,
) -> GroupFormat {
    GroupFormat {
        numbers,
        head,
        planes,
        run_cols,
    }
}

impl GroupFormat {
    /// The format of a type, if its codes are integers.
    pub(crate) const fn of(ty: WeightType) -> Option<Self> {
        let six_bits = [numbers(0, 2, 2), numbers(q4_k::LOW, 1, 12)];
        Some(match ty {
            WeightType::Q8_0 => blocks(2, 1, &[8]),
            WeightType::Q4_0 | WeightType::IQ4_NL => blocks(2, 1, &[4]),
            WeightType::Q4_1 => blocks(2, 2, &[4]),
            WeightType::Q5_0 => blocks(2, 1, &[4, 1]),
            WeightType::Q5_1 => blocks(2, 2, &[4, 1]),
            WeightType::MXFP4 => blocks(1, 1, &[4]),
            WeightType::Q4_K => super_block(six_bits, 256, &[4], 32),
            WeightType::Q5_K => super_block(six_bits, 256, &[4, 1], 32),
            WeightType::Q6_K => {
                super_block([numbers(0, 2, 1), numbers(64, 1, 16)], 320, &[4, 2], 16)
            }
            WeightType::Q3_K => {
                super_block([numbers(0, 2, 1), numbers(32, 1, 12)], 224, &[2, 1], 32)
            }
            WeightType::Q2_K => super_block([numbers(0, 2, 2), numbers(64, 1, 16)], 320, &[2], 16),
            WeightType::IQ4_XS => super_block([numbers(0, 2, 1), numbers(32, 1, 6)], 128, &[4], 32),
            _ => return None,
        })
    }

    /// Bits of a code.
    pub(crate) const fn bits(&self) -> usize {
        let (mut bits, mut i) = (0, 0);
        while i < self.planes.len() {
            bits += self.planes[i];
            i += 1;
        }
        bits
    }

    /// Bytes of the head of `n_cols` columns.
    pub(crate) const fn head_bytes(&self, n_cols: usize) -> usize {
        (self.head * n_cols / GROUP).next_multiple_of(32)
    }

    /// Bytes of the lines of `n_cols` columns.
    pub(crate) const fn line_bytes(&self, n_cols: usize) -> usize {
        PANEL_ROWS * n_cols * self.bits() / 8
    }

    /// Bytes of `n_cols` columns of a panel that has no others.
    pub(crate) const fn group_bytes(&self, n_cols: usize) -> usize {
        self.head_bytes(n_cols) + self.line_bytes(n_cols)
    }

    /// Bytes that each row has of the head of `n_cols` columns.
    pub(crate) const fn numbers_of_row(&self, n_cols: usize) -> usize {
        let [a, b] = self.numbers;
        (a.bytes * a.n + b.bytes * b.n) * n_cols / GROUP
    }

    /// Bytes that each row has of a group of `n_cols` columns: as many as in GGUF.
    pub(crate) const fn row_bytes(&self, n_cols: usize) -> usize {
        self.numbers_of_row(n_cols) + self.line_bytes(n_cols) / PANEL_ROWS
    }

    /// The offsets in the head of a row's numbers of two bytes and of one, if they are first in a row and last, and their
    /// number.
    pub(crate) const fn words_and_bytes(&self, n_cols: usize) -> [(usize, usize); 2] {
        let [a, b] = self.numbers;
        let (a_n, b_n) = (a.n * n_cols / GROUP, b.n * n_cols / GROUP);
        match (a.bytes, b.bytes) {
            (2, _) => [(a.at, a_n), (b.at, b_n)],
            _ => [(0, 0), (a.at, a_n)],
        }
    }

    /// Where the numbers of row 0 are in the head, and their size: each as many bytes of a row.
    pub(crate) fn numbers(&self, n_cols: usize) -> impl Iterator<Item = (usize, usize)> + use<> {
        let each = |run: Numbers| {
            let at = move |i| (run.at + i * run.bytes * PANEL_ROWS, run.bytes);
            (0..run.n * n_cols / GROUP).map(at)
        };
        let [a, b] = self.numbers;
        each(a).chain(each(b))
    }

    /// The plane and the first byte line of each line of `n_cols` columns, in order.
    pub(crate) fn lines(&self, n_cols: usize) -> impl Iterator<Item = PlaneLine> + use<> {
        let Self {
            planes, run_cols, ..
        } = *self;
        (0..n_cols).step_by(run_cols).flat_map(move |col| {
            let mut first = 0;
            planes.iter().flat_map(move |&bits| {
                let shift = first;
                first += bits;
                let cols = 32 / bits;
                (col..col + run_cols)
                    .step_by(cols)
                    .map(move |col| PlaneLine {
                        bits,
                        shift,
                        byte_line: col / 4,
                    })
            })
        })
    }
}

/// A line of a panel: `bits` bits of each code from bit `shift` on, of the columns of `8 / bits` byte lines.
pub(crate) struct PlaneLine {
    pub(crate) bits: usize,
    pub(crate) shift: usize,
    pub(crate) byte_line: usize,
}

/// Byte lines of a group: line `i` holds columns `4 i..4 i + 4` of 16 rows.
pub(crate) type ByteLines = [[u8; LINE_BYTES]; GROUP / 4];

impl PlaneLine {
    /// Makes the line of byte lines.
    #[inline(never)]
    pub(crate) fn pack(&self, codes: &ByteLines, line: &mut [u8; LINE_BYTES]) {
        *line = [0; _];
        let mask = 0xff >> (8 - self.bits);
        for step in 0..8 / self.bits {
            let codes = &codes[self.byte_line + step];
            for (out, code) in line.iter_mut().zip(codes) {
                *out |= (code >> self.shift & mask) << (step * self.bits);
            }
        }
    }

    /// Adds its bits to byte lines.
    #[inline(never)]
    pub(crate) fn unpack(&self, line: &[u8; LINE_BYTES], codes: &mut ByteLines) {
        let mask = 0xff >> (8 - self.bits);
        for step in 0..8 / self.bits {
            let codes = &mut codes[self.byte_line + step];
            for (code, byte) in codes.iter_mut().zip(line) {
                *code |= (byte >> (step * self.bits) & mask) << self.shift;
            }
        }
    }
}
