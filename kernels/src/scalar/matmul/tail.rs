//! Rows that do not fill a panel.
//!
//! They are stored as in GGUF. A group of 256 columns of up to 16 of them is packed into a panel on the stack, missing
//! rows as zeros, and multiplied as any panel is: the result has the same bits as in a panel. Packing takes longer than
//! multiplying, so tokens share it; nothing else is fast, and only up to 15 rows of a matrix take this path unless it
//! is tiny.

use super::{PanelFn, PanelProduct, TILE, rows_from, store};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;

/// A group of the largest panel, F32.
#[repr(C, align(64))]
struct GroupPanel([u8; GROUP * PANEL_ROWS * 4]);

/// [`super::matmul`] for the rows after the last panel.
///
/// # Safety
/// - As [`super::matmul`].
// Not inlined: its 16 KB of stack would be part of the frame of every other product.
#[inline(never)]
pub(crate) unsafe fn tail(args: &Matmul<'_>, kernel: PanelFn) {
    let acts = &args.activations;
    let mut panel = GroupPanel([0; _]);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let n_rows = (args.rows.end - row).min(PANEL_ROWS);
        for token in (args.tokens.start..args.tokens.end).step_by(TILE) {
            let n_tokens = (args.tokens.end - token).min(TILE);
            let rows = rows_from(acts, token, n_tokens);
            let mut acc = [[0f32; PANEL_ROWS]; TILE];
            for g in 0..args.layout.n_cols().div_ceil(GROUP) {
                let layout = acts.layout.group(g);
                let rows_of_panel = row..row + n_rows;
                let product = PanelProduct {
                    ty: args.layout.ty(),
                    panel: args
                        .layout
                        .pack_tail(args.panels, rows_of_panel, g, &mut panel.0),
                    n_cols: layout.n_cols(),
                    layout: &layout,
                    rows: &rows[..n_tokens],
                };
                // SAFETY: the CPU has what the kernel needs, by the caller.
                unsafe { kernel(&product, &mut acc[..n_tokens]) };
            }
            // SAFETY: rows and tokens lie within args; by the caller's contract.
            unsafe { store(args, row, n_rows, token, &acc[..n_tokens]) };
        }
    }
}
