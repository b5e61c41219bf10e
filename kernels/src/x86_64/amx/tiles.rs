//! Tile registers: the CPU's, by inline assembly (the intrinsics are not stable), and an emulation
//! that computes what the instructions are documented to.

use core::arch::asm;

/// Rows of a tile register.
pub(crate) const ROWS: usize = 16;
/// Bytes in a row of a tile register.
#[cfg(test)]
const ROW_BYTES: usize = 64;

/// Bytes per row and rows of the eight registers: three kinds of them.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Rows of the signed operands, registers 4 and 5, and of the sums: 1 to 16.
    pub(crate) a_rows: u8,
    /// Bytes in a row of the signed operands.
    pub(crate) a_row_bytes: u8,
    /// Rows of the other operands, registers 6 and 7; they have 64 bytes each.
    pub(crate) b_rows: u8,
}

/// Eight tile registers. Registers 0 to 3 hold sums, rows of 16 i32.
pub(crate) trait Tiles {
    /// Registers of these shapes, all zero.
    ///
    /// # Safety
    /// - The CPU has AMX-INT8 and this process may use it.
    unsafe fn configure(shape: Shape) -> Self;

    /// Fills register `T` from rows `stride` bytes apart.
    ///
    /// # Safety
    /// - The rows of the register are readable at `p`.
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize);

    /// Register `T` as rows `stride` bytes apart.
    ///
    /// # Safety
    /// - The rows of the register are writable at `p`.
    unsafe fn store<const T: usize>(&self, p: *mut i32, stride: usize);

    /// Zeroes register `T`.
    fn zero<const T: usize>(&mut self);

    /// `C += A · B`: signed times signed bytes, four at a time (`tdpbssd`).
    fn add_signed<const C: usize, const A: usize, const B: usize>(&mut self);

    /// `C += A · B`: signed times unsigned bytes (`tdpbsud`).
    fn add_unsigned<const C: usize, const A: usize, const B: usize>(&mut self);
}

/// What `ldtilecfg` reads, palette 1.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Config>() == 64);

impl Shape {
    fn config(self) -> Config {
        let mut config = Config {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        config.row_bytes[..8].fill(64);
        config.row_bytes[4..6].fill(self.a_row_bytes.into());
        config.rows[..6].fill(self.a_rows);
        config.rows[6..8].fill(self.b_rows);
        config
    }
}

/// The CPU's registers; given back when dropped, so that they cost nothing when threads change.
pub(crate) struct Hardware(());

impl Tiles for Hardware {
    unsafe fn configure(shape: Shape) -> Self {
        let config = shape.config();
        // SAFETY: the CPU has the instruction, by the caller; it reads the 64 bytes of `config`.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, preserves_flags));
        }
        Self(())
    }

    #[inline(always)]
    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize) {
        // SAFETY: a configured register; the caller vouches for the rows.
        unsafe {
            asm!("tileloadd tmm{t}, [{p} + {stride}*1]", t = const T, p = in(reg) p,
                stride = in(reg) stride, options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    unsafe fn store<const T: usize>(&self, p: *mut i32, stride: usize) {
        // SAFETY: as in `load`.
        unsafe {
            asm!("tilestored [{p} + {stride}*1], tmm{t}", t = const T, p = in(reg) p,
                stride = in(reg) stride, options(nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn zero<const T: usize>(&mut self) {
        // SAFETY: a configured register; no memory is touched.
        unsafe { asm!("tilezero tmm{t}", t = const T, options(nomem, nostack, preserves_flags)) };
    }

    #[inline(always)]
    fn add_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: registers whose shapes fit, by `Shape`; no memory is touched.
        unsafe {
            asm!("tdpbssd tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }

    #[inline(always)]
    fn add_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        // SAFETY: as in `add_signed`.
        unsafe {
            asm!("tdpbsud tmm{c}, tmm{a}, tmm{b}", c = const C, a = const A, b = const B,
                options(nomem, nostack, preserves_flags));
        }
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        // SAFETY: the CPU has the instruction, or there would be no `Hardware`.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) };
    }
}

/// Registers as arrays, by the pseudocode of Intel's instruction reference.
#[cfg(test)]
pub(crate) struct Emulated {
    config: Config,
    registers: [[[u8; ROW_BYTES]; ROWS]; 8],
}

#[cfg(test)]
impl Emulated {
    fn add(&mut self, [c, a, b]: [usize; 3], byte_of_b: impl Fn(u8) -> i32) {
        for m in 0..usize::from(self.config.rows[c]) {
            for k in 0..usize::from(self.config.row_bytes[a]) / 4 {
                for n in 0..usize::from(self.config.row_bytes[b]) / 4 {
                    let at = 4 * n..4 * n + 4;
                    let sum: i32 = (0..4)
                        .map(|i| {
                            let a = self.registers[a][m][4 * k + i].cast_signed();
                            i32::from(a) * byte_of_b(self.registers[b][k][4 * n + i])
                        })
                        .sum();
                    let out = &mut self.registers[c][m][at];
                    let before = i32::from_le_bytes(out.try_into().expect("four bytes"));
                    out.copy_from_slice(&before.wrapping_add(sum).to_le_bytes());
                }
            }
        }
    }
}

#[cfg(test)]
impl Tiles for Emulated {
    unsafe fn configure(shape: Shape) -> Self {
        let config = shape.config();
        assert_eq!(
            u16::from(config.rows[6]) * 4,
            config.row_bytes[4],
            "shapes fit"
        );
        Self {
            config,
            registers: [[[0; ROW_BYTES]; ROWS]; 8],
        }
    }

    unsafe fn load<const T: usize>(&mut self, p: *const u8, stride: usize) {
        let n_bytes = usize::from(self.config.row_bytes[T]);
        for (r, row) in self.registers[T][..self.config.rows[T].into()]
            .iter_mut()
            .enumerate()
        {
            // SAFETY: the caller vouches for the rows.
            let from = unsafe { core::slice::from_raw_parts(p.add(r * stride), n_bytes) };
            row[..n_bytes].copy_from_slice(from);
        }
    }

    unsafe fn store<const T: usize>(&self, p: *mut i32, stride: usize) {
        for (r, row) in self.registers[T][..self.config.rows[T].into()]
            .iter()
            .enumerate()
        {
            let to = p.cast::<u8>().wrapping_add(r * stride);
            // SAFETY: the caller vouches for the rows.
            unsafe { core::ptr::copy_nonoverlapping(row.as_ptr(), to, ROW_BYTES) };
        }
    }

    fn zero<const T: usize>(&mut self) {
        self.registers[T] = [[0; ROW_BYTES]; ROWS];
    }

    fn add_signed<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.add([C, A, B], |b| b.cast_signed().into());
    }

    fn add_unsigned<const C: usize, const A: usize, const B: usize>(&mut self) {
        self.add([C, A, B], i32::from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Noise, skipped, tiles_granted};

    /// Sums in both kinds of registers after the same instructions on the same bytes.
    fn sums<T: Tiles>(shape: Shape, a: &[u8], b: &[u8]) -> [[[i32; 16]; 16]; 2] {
        let mut out = [[[0; 16]; 16]; 2];
        // SAFETY: the caller has asked; operands have 16 rows of 64 bytes, sums as many.
        unsafe {
            let mut tiles = T::configure(shape);
            tiles.load::<4>(a.as_ptr(), 64);
            tiles.load::<7>(b.as_ptr(), 64);
            tiles.zero::<0>();
            for _ in 0..2 {
                tiles.add_signed::<0, 4, 7>();
                tiles.add_unsigned::<3, 4, 7>();
            }
            tiles.store::<0>(out[0].as_mut_ptr().cast(), 64);
            tiles.store::<3>(out[1].as_mut_ptr().cast(), 64);
        }
        out
    }

    #[test]
    fn the_emulation_is_the_instruction() {
        if !tiles_granted() {
            skipped("no AMX-INT8 here, or no permission to use it");
            return;
        }
        let mut noise = Noise(61);
        for (a_rows, a_row_bytes, b_rows) in [(16, 64, 16), (5, 64, 16), (16, 32, 8)] {
            for _ in 0..50 {
                let (a, b) = (noise.bytes(1024), noise.bytes(1024));
                let shape = Shape {
                    a_rows,
                    a_row_bytes,
                    b_rows,
                };
                assert_eq!(
                    sums::<Hardware>(shape, &a, &b),
                    sums::<Emulated>(shape, &a, &b)
                );
            }
        }
    }
}
