//! Rows that make up no panel.
//!
//! They lie as in GGUF. A group of 256 columns of up to 16 of them is packed into a panel on the
//! stack, missing rows as zeros, and multiplied as any panel is: the result has the bits that it
//! would have in a panel. Packing takes longer than multiplying, so tokens share it; nothing else
//! is fast, and at most 15 rows of a matrix come here unless it is tiny.

use super::{PanelFn, PanelProduct, TILE, rows_from, store};
use crate::args::Matmul;
use crate::contract::GROUP;
use crate::panel::PANEL_ROWS;

/// The largest panel of one group, that of F32.
#[repr(C, align(64))]
struct GroupPanel([u8; GROUP * PANEL_ROWS * 4]);

/// [`super::matmul`] for rows behind the last panel.
///
/// # Safety
/// - As [`super::matmul`].
// Inlined, its 16 KB of stack would lie below those of every other product.
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
