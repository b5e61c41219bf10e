//! Which product multiplies how many tokens.

use super::tile;
use crate::args::Matmul;
use crate::cpu::Maker;
use crate::panel::WeightType;

/// Most tokens that lines in registers are multiplied with.
pub(super) const FEW: usize = 4;

/// A product of a type, as [`crate::KernelTable::matmul`] asks for it.
pub(crate) type Product = unsafe fn(&Matmul<'_>);

/// The products of a type with integer codes.
pub(super) struct Products {
    /// With one token, with one or two, …
    few: [Product; FEW],
    /// With a multiple of [`tile::TOKENS`].
    many: Product,
    /// On AMD's CPUs before Zen 5, up to so many tokens are faster in parts of few.
    few_max: usize,
}

/// Likewise on other CPUs. Zen 5, one core, in the cache, parts of few and tiles in GMAC/s of 575: 12
/// tokens of Q4_0 343 and 318, of Q8_0 297 and 296, of Q4_K 333 and 336; 24 343 and 358, 296 and 328,
/// 334 and 388; 512 337 and 402, 287 and 412, 340 and 447. On Intel's CPUs it was measured when tiles
/// multiplied one block at a time.
const FEW_MAX: usize = 2 * FEW;

impl Products {
    /// In constants alone: evaluated when the program runs, it would keep the code that is not chosen.
    pub(super) const fn new(ty: WeightType, few: [Product; FEW], many: Product) -> Self {
        let [one, .., most] = few;
        let few = if is_usual(ty) {
            few
        } else {
            [one, most, most, most]
        };
        let few_max = few_max(ty);
        Self { few, many, few_max }
    }

    /// The product with all tokens.
    ///
    /// # Safety
    /// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
    ///   Ice Lake set. `args.store` is `Set`.
    pub(super) unsafe fn run(&self, args: &Matmul<'_>) {
        // SAFETY: by the caller.
        unsafe { self.run_as_on(Maker::detect(), args) }
    }

    /// Likewise, as on a CPU of `maker`.
    ///
    /// # Safety
    /// - As [`Self::run`].
    pub(super) unsafe fn run_as_on(&self, maker: Maker, args: &Matmul<'_>) {
        let few_max = match maker {
            Maker::AmdBeforeZen5 => self.few_max,
            Maker::Amd | Maker::Other => FEW_MAX,
        };
        // SAFETY: by the caller.
        unsafe { self.run_up_to(few_max, args) }
    }

    /// Likewise; up to `few_max` tokens in parts of few.
    ///
    /// # Safety
    /// - As [`Self::run`].
    unsafe fn run_up_to(&self, few_max: usize, args: &Matmul<'_>) {
        let (start, end) = (args.tokens.start, args.tokens.end);
        // At once: to split costs as much as a few panels.
        if let Some(few) = (end - start).checked_sub(1).and_then(|n| self.few.get(n)) {
            // SAFETY: by the caller; there are as many tokens as it takes.
            return unsafe { few(args) };
        }
        let tiled = match end - start {
            n if n <= few_max => start,
            n => start + n / tile::TOKENS * tile::TOKENS,
        };
        if tiled > start {
            // SAFETY: by the caller; these are whole tiles.
            unsafe { (self.many)(&args.part(start..tiled)) };
        }
        for first in (tiled..end).step_by(FEW) {
            let rest = args.part(first..(first + FEW).min(end));
            let n = rest.tokens.end - rest.tokens.start;
            // SAFETY: by the caller; there are n tokens, 1 to `FEW`.
            unsafe { self.few[n - 1](&rest) };
        }
    }
}

/// Whether products with two and three tokens have code of their own: with two those of Q4_K and Q4_0
/// are 1.7 to 1.8 times as fast, of Q8_0 1.5 times, of Q6_K 1.4 times; with three 1.15 to 1.3 times.
/// That of all types would be another 60 KB, more than there is room for in an image without an
/// operating system, so the usual ones have it.
const fn is_usual(ty: WeightType) -> bool {
    use WeightType::{Q4_0, Q4_K, Q6_K, Q8_0};
    matches!(ty, Q4_0 | Q8_0 | Q4_K | Q6_K)
}

/// Whether a product with so many tokens asks for weights half a step at a time
/// ([`crate::vector::rows::Stream::ask_half`]): of the usual types those whose steps are many lines. For
/// all types an image without an operating system would have no room.
pub(super) const fn asks_in_halves(ty: WeightType, n_tokens: usize) -> bool {
    use WeightType::{Q4_K, Q6_K, Q8_0};
    n_tokens == 1 && matches!(ty, Q4_K | Q6_K | Q8_0)
}

/// Tokens up to which products in parts of few are faster than tiles on Zen 4: a tile's weights are
/// unpacked into memory first, a part's in registers, each time. In the cache, 12 tokens of Q4_K take
/// 0.82 of the time so, 32 0.94; of Q6_K 0.88 and 1.02; of Q4_0 0.81, 512 still 0.97. CPUs that multiply
/// 512 bits at once would have to load more at once for parts of few than they can ([`FEW_MAX`]).
const fn few_max(ty: WeightType) -> usize {
    use WeightType::{Q4_0, Q4_K, Q8_0};
    match ty {
        Q4_0 | Q8_0 => usize::MAX,
        Q4_K => 64,
        _ => 24,
    }
}

/// Whose CPUs split tokens in another way than this one.
#[cfg(test)]
pub(super) fn other_maker() -> Maker {
    match Maker::detect() {
        Maker::AmdBeforeZen5 => Maker::Other,
        Maker::Amd | Maker::Other => Maker::AmdBeforeZen5,
    }
}

/// The `matmul` of a family, types of the trait `$family`, from its `few_tokens` and `many_tokens`.
macro_rules! matmul {
    ($family:ident) => {
        /// Rows in panels × all tokens, written to `out`.
        ///
        /// # Safety
        /// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
        ///   Ice Lake set. `args.store` is `Set`.
        pub(crate) unsafe fn matmul<B: $family>(args: &Matmul<'_>) {
            // SAFETY: by the caller.
            unsafe { const { products::<B>() }.run(args) }
        }

        /// The same, with tokens split as on CPUs that split them in the other way.
        ///
        /// # Safety
        /// - As [`matmul`].
        #[cfg(test)]
        pub(crate) unsafe fn matmul_split_otherwise<B: $family>(args: &Matmul<'_>) {
            // SAFETY: by the caller.
            unsafe { const { products::<B>() }.run_as_on(super::products::other_maker(), args) }
        }

        const fn products<B: $family>() -> super::products::Products {
            use super::products::{FEW, Product, Products};
            let few: [Product; FEW] = [
                few_tokens::<B, 1>,
                few_tokens::<B, 2>,
                few_tokens::<B, 3>,
                few_tokens::<B, FEW>,
            ];
            Products::new(B::TYPE, few, many_tokens::<B>)
        }
    };
}

pub(super) use matmul;
