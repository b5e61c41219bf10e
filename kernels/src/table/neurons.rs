//! Products with matrices by neuron: strips of rows become panels, 256 columns at a time, in a buffer that stays in the
//! nearest cache.

use super::{KernelTable, Matmul, Store, TileRange};
use crate::contract::GROUP;
use crate::neuron::{Form, GroupPanels, LinesFn, STRIP_ROWS, Strip};
use crate::panel::PANEL_ROWS;
use crate::panel::form::CHUNK;
use crate::vector::neurons::{self, columns, listed::RowsAhead};

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
        // SAFETY: by the caller; the rows are the matrix's.
        unsafe { self.strips(args, 0, rows.len(), Some(rows), all_groups(args)) };
    }

    /// [`Self::matmul`] with a matrix in [`Form::Neurons`], of which columns whose activation codes are 0 are not read:
    /// the same bits.
    ///
    /// # Safety
    /// - As [`Self::matmul`].
    ///
    /// # Panics
    /// As [`Self::matmul`]; if the matrix has another form, the rows do not start at a multiple of
    /// [`PanelLayout::strip_rows`](crate::PanelLayout::strip_rows) or end at one, or at the matrix's end, or outputs are
    /// not overwritten.
    pub unsafe fn matmul_skipping(&self, args: &Matmul<'_>) {
        // SAFETY: by the caller.
        unsafe { self.matmul_skipping_groups(args, all_groups(args)) };
    }

    /// [`Self::matmul_skipping`] of some groups of 256 columns. Unless they are the first, the sums in `args.out` are
    /// continued, which the columns before have: the bits of one product.
    ///
    /// # Safety
    /// - As [`Self::matmul_skipping`]; sums that are continued are numbers.
    ///
    /// # Panics
    /// As [`Self::matmul_skipping`]; if the groups do not lie within the matrix.
    pub unsafe fn matmul_skipping_groups(&self, args: &Matmul<'_>, groups: TileRange) {
        self.check_matmul(args);
        assert!(groups.start <= groups.end);
        assert!(groups.end <= args.layout.n_cols().div_ceil(GROUP));
        assert_eq!(args.layout.form(), Form::Neurons);
        assert_eq!(args.store, Store::Set);
        let TileRange { start, end } = args.rows;
        assert!(start.is_multiple_of(CHUNK));
        assert!(end.is_multiple_of(CHUNK) || end == args.layout.n_rows());
        match (self.skip)(args.layout.ty()) {
            // SAFETY: holding the table proves the features; the tile is within its operands; the caller vouches for
            // `out`.
            Some(skip) => unsafe { columns::products(args, &skip, groups) },
            // SAFETY: as above.
            None => unsafe { self.strips(args, start, end - start, None, groups) },
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
        // SAFETY: by the caller; the rows are within the tile.
        unsafe { self.strips(args, start, end - start, None, all_groups(args)) };
    }

    /// Multiplies groups of columns of `n_rows` rows from row `start` on, or of those that are listed.
    ///
    /// # Safety
    /// - As [`Self::matmul`], for these rows.
    #[inline(never)]
    unsafe fn strips(
        &self,
        args: &Matmul<'_>,
        start: usize,
        n_rows: usize,
        listed: Option<&[u32]>,
        groups: TileRange,
    ) {
        let skip = (self.skip)(args.layout.ty());
        let as_they_lie = skip.as_ref().zip(self.transpose.as_ref());
        let as_they_lie =
            as_they_lie.filter(|(skip, _)| args.layout.form() == Form::Rows && skip.lists(args));
        let step = match as_they_lie {
            Some(_) => PANEL_ROWS,
            None => strip_rows(args),
        };
        let lines = skip.as_ref().map(|skip| skip.kernels.lines);
        // The next one is prefetched meanwhile; past the last it is empty.
        let strip = |first: usize| {
            let rows = first.min(n_rows)..n_rows.min(first + step);
            let listed = listed.map(|listed| &listed[rows.clone()]);
            let (first, n) = (start + rows.start, rows.len());
            Strip::new(&args.layout, args.panels, first, n, listed)
        };
        let mut room = GroupPanels::EMPTY;
        let mut strips = [strip(0), strip(step)];
        if as_they_lie.is_some() {
            RowsAhead::new(strips[0].each_row(), args.layout.gguf_row_bytes(), 1).at_once();
        }
        for (i, first) in (0..n_rows).step_by(step).enumerate() {
            let out = args.out.wrapping_add(first);
            let (now, next) = (&strips[i % 2], &strips[(i + 1) % 2]);
            match as_they_lie {
                Some((skip, transpose)) => {
                    // SAFETY: by the caller; holding the table proves the features.
                    unsafe { neurons::listed_strip(args, skip, transpose, now, next, out) };
                }
                // SAFETY: by the caller.
                None => unsafe { self.strip(args, [now, next], out, lines, groups, &mut room) },
            }
            strips[i % 2] = strip(first + 2 * step);
        }
    }

    /// Multiplies the rows of a strip; prefetches the next one, which is given second, meanwhile.
    ///
    /// # Safety
    /// - As [`Self::matmul`], for the rows of `strip` and their outputs from `out` on.
    unsafe fn strip(
        &self,
        args: &Matmul<'_>,
        [strip, next]: [&Strip<'_>; 2],
        out: *mut f32,
        lines: Option<LinesFn>,
        groups: TileRange,
        room: &mut GroupPanels,
    ) {
        let acts = &args.activations;
        let n_groups = args.layout.n_cols().div_ceil(GROUP);
        let n_rows = strip.n_rows();
        for g in groups.start..groups.end {
            next.prefetch(g, n_groups);
            let (panels, n_cols) = strip.gather(g, room, self.transpose.as_ref(), lines);
            let panel_bytes = panels.len() / n_rows.div_ceil(PANEL_ROWS);
            let mut activations = *acts;
            activations.layout = acts.layout.group(g);
            let group = Matmul {
                layout: args.layout.group_of_rows(n_rows, n_cols, panel_bytes),
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

/// All groups of columns.
fn all_groups(args: &Matmul<'_>) -> TileRange {
    (0..args.layout.n_cols().div_ceil(GROUP)).into()
}

/// Rows of a strip: of few tokens, which wait for memory, as few as make a panel; of columns half a chunk.
fn strip_rows(args: &Matmul<'_>) -> usize {
    match args.tokens.end - args.tokens.start {
        ..=4 if args.layout.form() == Form::Rows => PANEL_ROWS,
        _ => STRIP_ROWS,
    }
}
