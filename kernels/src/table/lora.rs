//! Products of adapters.

use super::KernelTable;
use crate::lora::{LoraDown, LoraUp, PART};
use crate::panel::PANEL_ROWS;

impl KernelTable {
    /// `A · x` of an adapter.
    ///
    /// # Safety
    /// - `args.out` is aligned for f32 and writable for the tokens × the ranks of whole panels with the stride
    ///   given, and nothing else accesses those elements meanwhile.
    ///
    /// # Panics
    /// If panels, columns or tokens lie outside, columns begin or end elsewhere than at a multiple of [`PART`] or at the
    /// end of the matrix, or the rows are not kept in the type's kind.
    pub unsafe fn lora_down(&self, args: &LoraDown<'_>) {
        let (acts, matrix) = (&args.activations, &args.matrix);
        assert_eq!(acts.layout.n_cols(), matrix.n_cols());
        assert!(acts.layout.kinds().contains(matrix.ty().activations()));
        assert!(args.panels.end <= matrix.n_panels());
        assert!(args.columns.start.is_multiple_of(PART));
        let (end, n_cols) = (args.columns.end, matrix.n_cols());
        assert!(end == n_cols || end < n_cols && end.is_multiple_of(PART));
        assert!(
            args.out_stride >= (args.panels.end.saturating_sub(args.panels.start)) * PANEL_ROWS
        );
        let bytes = args.tokens.end.checked_mul(acts.layout.row_bytes());
        assert!(bytes.is_some_and(|bytes| bytes <= acts.bytes.len()));
        // SAFETY: holding the table proves the features; operands were checked, and the caller vouches for `out`.
        unsafe { (self.lora_down)(args) }
    }

    /// `out += B · t` of an adapter.
    ///
    /// # Safety
    /// - `args.out` is aligned for f32 and holds numbers for the tokens × rows with the stride given, and nothing
    ///   else accesses those elements meanwhile.
    ///
    /// # Panics
    /// If rows lie outside or do not begin at a multiple of 16, or there are too few factors.
    pub unsafe fn lora_up(&self, args: &LoraUp<'_>) {
        assert!(args.rows.start.is_multiple_of(PANEL_ROWS));
        assert!(args.rows.end <= args.matrix.n_rows());
        let rank = args.matrix.n_cols().next_multiple_of(PANEL_ROWS);
        assert!(args.t_stride >= rank);
        let before_last = args.n_tokens.saturating_sub(1).checked_mul(args.t_stride);
        let left = before_last.and_then(|n| args.t.len().checked_sub(n));
        assert!(left.is_some_and(|left| left >= rank));
        // SAFETY: as in `lora_down`.
        unsafe { (self.lora_up)(args) }
    }
}
