//! Rows that make up no panel.
//!
//! They lie as in GGUF. A group of 256 columns of up to 16 of them is packed into a panel on the
//! stack, missing rows as zeros, and multiplied as any panel is: the result has the bits that it
//! would have in a panel. Packing takes longer than multiplying, so tokens share it; nothing else
//! is fast, and at most 15 rows of a matrix come here unless it is tiny.

use super::{GroupKernel, Lanes, store};
use crate::args::Matmul;
use crate::contract::{Arith, GROUP};
use crate::panel::{PANEL_ROWS, pack_lane};

/// Tokens that share the packing.
const TILE: usize = 16;

/// The largest panel of one group, that of F32.
#[repr(C, align(64))]
struct GroupPanel([u8; GROUP * PANEL_ROWS * 4]);

/// [`super::matmul`] for rows behind the last panel.
///
/// # Safety
/// - As [`super::matmul`].
#[inline(always)]
pub(crate) unsafe fn tail<F: Arith, K: GroupKernel>(args: &Matmul<'_>) {
    let acts = args.activations;
    let mut panel = GroupPanel([0; _]);
    for row in (args.rows.start..args.rows.end).step_by(PANEL_ROWS) {
        let n_rows = (args.rows.end - row).min(PANEL_ROWS);
        for token in (args.tokens.start..args.tokens.end).step_by(TILE) {
            let n_tokens = (args.tokens.end - token).min(TILE);
            let mut acc = [[0f32; PANEL_ROWS]; TILE];
            for g in 0..args.layout.n_cols().div_ceil(GROUP) {
                let layout = acts.layout.group(g);
                let panel = pack_group::<K>(args, row, n_rows, g, &mut panel);
                for (t, acc) in acc[..n_tokens].iter_mut().enumerate() {
                    let x = [&acts.bytes[(token + t) * acts.layout.row_bytes()..]];
                    let acc: &mut [Lanes; 1] = core::array::from_mut(acc);
                    K::panel::<F, 1>(panel, layout.n_cols(), &layout, &x, acc);
                }
            }
            // SAFETY: rows and tokens lie within args; by the caller's contract.
            unsafe { store(args, row, n_rows, token, &acc[..n_tokens]) };
        }
    }
}

/// A panel of the columns of group `g` of `n_rows` rows from `row` on.
fn pack_group<'p, K: GroupKernel>(
    args: &Matmul<'_>,
    row: usize,
    n_rows: usize,
    g: usize,
    panel: &'p mut GroupPanel,
) -> &'p [u8] {
    let n_cols = (args.layout.n_cols() - g * GROUP).min(GROUP);
    let panel = &mut panel.0[..K::panel_bytes(n_cols)];
    panel.fill(0);
    let bytes_of = |n_cols: usize| {
        let ty = K::TYPE.ggml();
        n_cols / ty.block_len() * ty.block_bytes()
    };
    for lane in 0..n_rows {
        let gguf_row = args.layout.tail_row(row + lane, args.panels);
        let blocks = &gguf_row[bytes_of(g * GROUP)..][..bytes_of(n_cols)];
        pack_lane::<K>(panel, n_cols, lane, blocks);
    }
    panel
}
