//! Which product multiplies how many tokens.

use super::tile;
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::WeightType;
use crate::tuning::Tuning;

/// Maximum number of tokens that lines in registers are multiplied with.
pub(super) const FEW: usize = 4;

/// Maximum number of tokens that are multiplied [`FEW`] at a time with a matrix of one group of columns.
const ONE_GROUP_FEW_MAX: usize = 64;

/// A product of a type, as [`crate::KernelTable::matmul`] calls it.
pub(crate) type Product = unsafe fn(&Matmul<'_>);

/// The products of a type with integer codes.
pub(super) struct Products {
    pub(super) ty: WeightType,
    /// With one token, with two, … Each may have room for more.
    pub(super) few: [Product; FEW],
    /// With a multiple of [`tile::TOKENS`].
    pub(super) many: Product,
}

impl Products {
    /// The product with all tokens, as is fastest by `tuning`.
    ///
    /// # Safety
    /// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
    ///   Ice Lake set. `args.store` is `Set` or `Continue`.
    pub(super) unsafe fn run(&self, args: &Matmul<'_>, tuning: fn() -> &'static Tuning) {
        let (start, end) = (args.tokens.start, args.tokens.end);
        // First, because splitting costs as much as a few panels.
        if let Some(few) = (end - start).checked_sub(1).and_then(|n| self.few.get(n)) {
            // SAFETY: by the caller; there are as many tokens as it takes.
            return unsafe { few(args) };
        }
        let mut few_max = tuning().few_max.of(self.ty);
        if args.layout.n_cols() <= GROUP {
            // Sums of so few columns are read and written often, and rows of activations are far apart.
            few_max = few_max.min(ONE_GROUP_FEW_MAX);
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
            let mut rest = args.part(first..(first + FEW).min(end));
            if first > start {
                rest.beside = &[];
            }
            let n = rest.tokens.end - rest.tokens.start;
            // SAFETY: by the caller; there are n tokens, 1 to `FEW`.
            unsafe { self.few[n - 1](&rest) };
        }
    }
}

/// The tuning of CPUs that split tokens differently from this one.
#[cfg(test)]
pub(super) fn other_tuning() -> &'static Tuning {
    use crate::cpu::Maker;
    Tuning::of(match Maker::detect() {
        Maker::AmdBeforeZen5 => Maker::Other,
        Maker::Amd | Maker::Other => Maker::AmdBeforeZen5,
    })
}

/// The `matmul` of a family, types of the trait `$family`, from its `few_tokens` and `many_tokens`.
macro_rules! matmul {
    ($family:ident) => {
        /// Rows in panels × all tokens, written to `out`.
        ///
        /// # Safety
        /// - The contract of [`crate::KernelTable::matmul`], whose checks have passed; the CPU has the
        ///   Ice Lake set. `args.store` is `Set` or `Continue`.
        pub(crate) unsafe fn matmul<B: $family>(args: &Matmul<'_>) {
            // SAFETY: by the caller.
            unsafe { const { &products::<B>() }.run(args, crate::tuning::Tuning::detect) }
        }

        /// [`matmul`] with tokens split as on CPUs that split them differently.
        ///
        /// # Safety
        /// - As [`matmul`].
        #[cfg(test)]
        pub(crate) unsafe fn matmul_split_otherwise<B: $family>(args: &Matmul<'_>) {
            // SAFETY: by the caller.
            unsafe { const { &products::<B>() }.run(args, super::products::other_tuning) }
        }

        const fn products<B: $family>() -> super::products::Products {
            use super::products::{FEW, Product, Products};
            let few: [Product; FEW] = [
                few_tokens::<B, 1>,
                few_tokens::<B, 2>,
                // Three read what four do, and a kernel of their own takes a thirtieth of the bare-metal image.
                few_tokens::<B, FEW>,
                few_tokens::<B, FEW>,
            ];
            Products {
                ty: B::TYPE,
                few,
                many: many_tokens::<B>,
            }
        }
    };
}

pub(super) use matmul;
