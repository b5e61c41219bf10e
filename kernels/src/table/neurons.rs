//! Products with matrices by neuron: strips of rows become panels, 256 columns at a time, in a buffer that stays in the
//! nearest cache.

use super::{KernelTable, Matmul, Store, TileRange};
use crate::contract::GROUP;
use crate::neuron::{Form, GroupPanels, STRIP_ROWS, Source, gather};

impl KernelTable {
    /// [`Self::matmul`] of the rows that `rows` lists instead of `args.rows`: element (token t, i) is the product with
    /// row `rows[i]`. The matrix is in [`Form::Rows`], and no other row of it is read.
    ///
    /// # Safety
    /// - As [`Self::matmul`], for as many rows.
    ///
    /// # Panics
    /// As [`Self::matmul`]; if the matrix has another form, or not all rows.
    pub unsafe fn matmul_listed(&self, args: &Matmul<'_>, rows: &[u32]) {
        self.check_matmul(args);
        assert_eq!(args.layout.form(), Form::Rows);
        assert!(
            rows.iter()
                .all(|&row| (row as usize) < args.layout.n_rows())
        );
        for (i, rows) in rows.chunks(STRIP_ROWS).enumerate() {
            let out = args.out.wrapping_add(i * STRIP_ROWS);
            // SAFETY: by the caller; the rows are the matrix's.
            unsafe { self.strip(args, Source::Listed(rows), rows.len(), out) };
        }
    }

    /// [`Self::matmul`] of checked arguments, with a matrix that is not in panels.
    ///
    /// # Safety
    /// - As [`Self::matmul`].
    // Not inlined: its buffer would be part of the frame of every other product.
    #[inline(never)]
    pub(super) unsafe fn matmul_by_neuron(&self, args: &Matmul<'_>) {
        let TileRange { start, end } = args.rows;
        for row in (start..end).step_by(STRIP_ROWS) {
            let out = args.out.wrapping_add(row - start);
            let n_rows = (end - row).min(STRIP_ROWS);
            // SAFETY: by the caller; the rows are within the tile.
            unsafe { self.strip(args, Source::From(row), n_rows, out) };
        }
    }

    /// # Safety
    /// - As [`Self::matmul`], for `n_rows` rows of `source` and their outputs from `out` on.
    unsafe fn strip(&self, args: &Matmul<'_>, source: Source<'_>, n_rows: usize, out: *mut f32) {
        let mut panels = GroupPanels::EMPTY;
        let acts = &args.activations;
        for g in 0..args.layout.n_cols().div_ceil(GROUP) {
            let (panels, n_cols) =
                gather(&args.layout, args.panels, source, n_rows, g, &mut panels);
            let mut activations = *acts;
            activations.layout = acts.layout.group(g);
            let group = Matmul {
                layout: args.layout.group_of_rows(n_rows, n_cols),
                panels,
                rows: (0..n_rows).into(),
                activations,
                tokens: args.tokens,
                out,
                out_stride: args.out_stride,
                store: if g == 0 { args.store } else { Store::Continue },
                prefetch: args.prefetch,
                beside: &[],
            };
            // SAFETY: by the caller.
            unsafe { self.matmul_in_panels(&group) };
        }
    }
}
