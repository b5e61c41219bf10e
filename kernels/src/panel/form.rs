//! The forms of a matrix other than panels: which there are, and where their parts are ([`crate::neuron`]).

use super::group::GroupFormat;
use super::{PANEL_ALIGN, PANEL_ROWS, PanelError, PanelLayout};
use crate::contract::GROUP;
use core::ops::Range;

/// Outputs whose codes are together in [`Form::Neurons`]; the last have 32, 64 or 96.
pub(crate) const CHUNK: usize = 128;
/// Outputs of a stripe in [`Form::Neurons`]; the last has what is left. Within a stripe a neuron's chunks are side by side.
pub(crate) const STRIPE: usize = 16 * CHUNK;

/// How the numbers and codes of a matrix are ordered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Form {
    /// Panels of 16 rows, then the remaining rows.
    #[default]
    Panels = 0,
    /// Row by row: any row can be left unread.
    Rows = 1,
    /// Scales by block, then codes column by column: any column can be left unread.
    Neurons = 2,
}

impl Form {
    pub(crate) const ALL: [Self; 3] = [Self::Panels, Self::Rows, Self::Neurons];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Panels => "panels",
            Self::Rows => "rows",
            Self::Neurons => "neurons",
        }
    }
}

/// Columns of group `g`.
pub(crate) fn group_cols(layout: &PanelLayout, g: usize) -> usize {
    (layout.n_cols() - g * GROUP).min(GROUP)
}

/// Bytes of a panel's heads before group `g`, in [`Form::Neurons`].
const fn heads_before(format: &GroupFormat, layout: &PanelLayout, g: usize) -> usize {
    // All groups but the last are whole.
    let whole = if g * GROUP > layout.n_cols() {
        g - 1
    } else {
        g
    };
    let rest = layout.n_cols().saturating_sub(whole * GROUP);
    let last = if whole < g {
        format.head_bytes(rest)
    } else {
        0
    };
    whole * format.head_bytes(GROUP) + last
}

/// Where the head of panel `panel` of group `g` is.
pub(crate) fn head_at(layout: &PanelLayout, panel: usize, g: usize) -> usize {
    let format = format_of(layout);
    let all = heads_before(&format, layout, layout.n_cols().div_ceil(GROUP));
    let stripe = panel - panel % (STRIPE / PANEL_ROWS);
    let n_panels = (layout.n_rows() / PANEL_ROWS - stripe).min(STRIPE / PANEL_ROWS);
    let head_bytes = format.head_bytes(group_cols(layout, g));
    stripe * all + n_panels * heads_before(&format, layout, g) + (panel - stripe) * head_bytes
}

/// Where the codes start.
const fn codes_start(format: &GroupFormat, layout: &PanelLayout) -> usize {
    let n_groups = layout.n_cols().div_ceil(GROUP);
    let n_panels = layout.n_rows() / PANEL_ROWS;
    (n_panels * heads_before(format, layout, n_groups)).next_multiple_of(PANEL_ALIGN)
}

/// Where the codes of the first neuron for the chunk of outputs from `first` on are, and the distance to the next neuron's.
pub(crate) const fn chunk_at(layout: &PanelLayout, first: usize) -> (usize, usize) {
    let format = format_of(layout);
    let stripe = first / STRIPE * STRIPE;
    let rest = layout.n_rows() - stripe;
    let stride = if rest < STRIPE { rest } else { STRIPE } * format.bits() / 8;
    let before = (stripe * layout.n_cols() + first % STRIPE) * format.bits() / 8;
    (codes_start(&format, layout) + before, stride)
}

impl PanelLayout {
    /// The bytes of the codes of columns `cols`, in [`Form::Neurons`]: a range in each stripe of outputs.
    pub fn code_ranges(&self, cols: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        let stripes = (0..self.n_rows()).step_by(STRIPE);
        stripes.map(move |first| {
            let (at, stride) = chunk_at(self, first);
            at + cols.start * stride..at + cols.end * stride
        })
    }

    /// The same matrix in another form.
    ///
    /// # Errors
    /// [`PanelError::NoForm`] if its type is not one of integers, it has rows that are in no panel, or, with
    /// [`Form::Neurons`], its rows are not a multiple of 32.
    pub fn with_form(&self, form: Form) -> Result<Self, PanelError> {
        let unit = match form {
            Form::Panels => return Ok(self.in_panels()),
            Form::Rows => PANEL_ROWS,
            Form::Neurons => 2 * PANEL_ROWS,
        };
        let is_whole = self.panel_bytes() > 0 && self.n_rows().is_multiple_of(unit);
        if GroupFormat::of(self.ty()).is_none() || !is_whole {
            return Err(PanelError::NoForm {
                ty: self.ty().ggml(),
                n_rows: self.n_rows(),
                form,
            });
        }
        Ok(self.set_form(form))
    }

    /// Bytes of the matrix in a form other than panels.
    pub(crate) const fn bytes_by_neuron(&self) -> usize {
        match (self.form(), GroupFormat::of(self.ty())) {
            (Form::Neurons, Some(format)) => {
                let codes = self.n_cols() * self.n_rows() / 8 * format.bits();
                codes_start(&format, self) + codes
            }
            _ => self.n_rows() * self.gguf_row_bytes(),
        }
    }

    /// Rows of a strip of work: in [`Form::Neurons`] a chunk of codes.
    pub const fn strip_rows(&self) -> usize {
        match self.form() {
            Form::Neurons => CHUNK,
            Form::Panels | Form::Rows => 4 * PANEL_ROWS,
        }
    }
}

/// The format of a matrix in a form other than panels.
pub(crate) const fn format_of(layout: &PanelLayout) -> GroupFormat {
    GroupFormat::of(layout.ty()).expect("a form other than panels has integer codes")
}
