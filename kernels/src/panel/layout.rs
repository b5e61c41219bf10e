//! Shape, type and form of a matrix, and where each part of it is.

use super::*;
use crate::blocks;
use crate::contract::GROUP;
use core::fmt;
use core::ops::Range;

/// Why a tensor cannot be laid out in panels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PanelError {
    /// There are no kernels for this type yet.
    TypeNotSupported(GgmlType),
    /// Rows or columns are zero.
    Empty,
    /// The row length is not a whole number of blocks.
    ColumnsNotMultipleOfBlock {
        /// The tensor's type.
        ty: GgmlType,
        /// The row length.
        n_cols: usize,
    },
    /// The size in bytes does not fit in a `usize`.
    TooLarge,
    /// The matrix has panels, but not this form.
    NoForm {
        /// The tensor's type.
        ty: GgmlType,
        /// Its rows.
        n_rows: usize,
        /// The form.
        form: Form,
    },
}

impl fmt::Display for PanelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TypeNotSupported(ty) => write!(f, "there are no kernels for type {ty} yet"),
            Self::Empty => f.write_str("a tensor has no rows or no columns"),
            Self::ColumnsNotMultipleOfBlock { ty, n_cols } => {
                write!(
                    f,
                    "row length {n_cols} is not a multiple of {} ({ty})",
                    ty.block_len()
                )
            }
            Self::TooLarge => f.write_str("the tensor is larger than the address space"),
            Self::NoForm { ty, n_rows, form } => write!(
                f,
                "a matrix of {n_rows} rows of type {ty} cannot be stored as {}: that takes an integer type, \
                 and a multiple of 32 rows",
                form.name()
            ),
        }
    }
}

impl core::error::Error for PanelError {}

/// [`pack_lane`] of a type.
type PackLane = fn(&mut [u8], usize, usize, &[u8]);

/// Shape and type of a matrix in panels and a tail; sizes are arithmetic on these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelLayout {
    ty: WeightType,
    form: Form,
    n_rows: usize,
    n_cols: usize,
    /// 0 where panels would be too large: then all rows are tail.
    panel_bytes: usize,
    gguf_row_bytes: usize,
}

impl PanelLayout {
    /// The layout of `n_rows` outputs × `n_cols` inputs.
    ///
    /// # Errors
    /// If the type has no kernels, the shape is empty, rows are not whole blocks, or the size
    /// overflows.
    pub fn new(ty: GgmlType, n_rows: usize, n_cols: usize) -> Result<Self, PanelError> {
        let weight_type = WeightType::from_ggml(ty).ok_or(PanelError::TypeNotSupported(ty))?;
        if n_rows == 0 || n_cols == 0 {
            return Err(PanelError::Empty);
        }
        if !n_cols.is_multiple_of(ty.block_len()) {
            return Err(PanelError::ColumnsNotMultipleOfBlock { ty, n_cols });
        }
        // 8 bytes a weight is more than any format takes, headers included.
        let rows = n_rows
            .checked_next_multiple_of(PANEL_ROWS)
            .ok_or(PanelError::TooLarge)?;
        let bound = rows.checked_mul(n_cols).and_then(|n| n.checked_mul(8));
        bound
            .filter(|&n| n < isize::MAX as usize / 2)
            .ok_or(PanelError::TooLarge)?;
        let panel_bytes = with_format!(weight_type, Format => Format::panel_bytes(n_cols));
        let gguf_row_bytes = n_cols / ty.block_len() * ty.block_bytes();
        let gguf_bytes = PANEL_ROWS * gguf_row_bytes;
        let too_large = (panel_bytes - gguf_bytes) * 100 > gguf_bytes;
        Ok(Self {
            ty: weight_type,
            form: Form::Panels,
            n_rows,
            n_cols,
            panel_bytes: if too_large { 0 } else { panel_bytes },
            gguf_row_bytes,
        })
    }

    /// The layout as plain numbers, for tables in memory of the caller's.
    pub const fn to_numbers(&self) -> [usize; 5] {
        [
            self.ty as usize | (self.form as usize) << 8,
            self.n_rows,
            self.n_cols,
            self.panel_bytes,
            self.gguf_row_bytes,
        ]
    }

    /// The layout that numbers were made of, without the divisions of [`Self::new`].
    ///
    /// # Safety
    /// - `numbers` are what [`Self::to_numbers`] gave.
    ///
    /// # Panics
    /// If the first number does not denote a type and a form.
    pub const unsafe fn from_numbers(numbers: &[usize; 5]) -> Self {
        let [ty, n_rows, n_cols, panel_bytes, gguf_row_bytes] = *numbers;
        Self {
            ty: WeightType::ALL[ty & 0xff],
            form: Form::ALL[ty >> 8],
            n_rows,
            n_cols,
            panel_bytes,
            gguf_row_bytes,
        }
    }

    /// The type of the weights.
    pub const fn ty(&self) -> WeightType {
        self.ty
    }

    /// How its numbers and codes are ordered.
    pub const fn form(&self) -> Form {
        self.form
    }

    /// The layout in a form that it can have.
    pub(crate) const fn set_form(self, form: Form) -> Self {
        Self { form, ..self }
    }

    /// The same matrix in panels.
    pub const fn in_panels(&self) -> Self {
        self.set_form(Form::Panels)
    }

    /// The layout of `n_cols` columns of `n_rows` rows, in panels of `panel_bytes` bytes.
    pub(crate) const fn group_of_rows(
        &self,
        n_rows: usize,
        n_cols: usize,
        panel_bytes: usize,
    ) -> Self {
        Self {
            ty: self.ty,
            form: Form::Panels,
            n_rows,
            n_cols,
            panel_bytes,
            gguf_row_bytes: self.gguf_bytes(n_cols),
        }
    }

    /// Rows (outputs) of the matrix.
    pub const fn n_rows(&self) -> usize {
        self.n_rows
    }

    /// Columns (inputs) of the matrix.
    pub const fn n_cols(&self) -> usize {
        self.n_cols
    }

    /// Panels in the matrix, all of 16 rows.
    pub const fn n_panels(&self) -> usize {
        if self.panel_bytes > 0 {
            self.n_rows / PANEL_ROWS
        } else {
            0
        }
    }

    /// Bytes of one panel, a multiple of 32; 0 where all rows are tail.
    pub const fn panel_bytes(&self) -> usize {
        self.panel_bytes
    }

    /// The first row that is in no panel, a multiple of 16; [`Self::n_rows`] where all are.
    pub const fn tail_start(&self) -> usize {
        self.n_panels() * PANEL_ROWS
    }

    /// Bytes of the matrix in its form: of panels and tail, for example.
    pub const fn bytes(&self) -> usize {
        match self.form {
            Form::Panels => self.offset(self.n_rows),
            Form::Rows | Form::Neurons => self.bytes_by_neuron(),
        }
    }

    /// Where `row` starts in the matrix: a panel's first, or one of the tail.
    const fn offset(&self, row: usize) -> usize {
        if row < self.tail_start() {
            row / PANEL_ROWS * self.panel_bytes
        } else {
            self.n_panels() * self.panel_bytes + (row - self.tail_start()) * self.gguf_row_bytes()
        }
    }

    /// GGUF row `row` of the whole matrix; it is one of the tail.
    fn tail_row<'p>(&self, row: usize, panels: &'p [u8]) -> &'p [u8] {
        assert!((self.tail_start()..self.n_rows).contains(&row));
        &panels[self.offset(row)..][..self.gguf_row_bytes()]
    }

    /// Packs the columns of group `g` of up to 16 `rows` of the tail into a panel of its own at
    /// the start of `panel`, missing rows as zeros.
    pub(crate) fn pack_tail<'p>(
        &self,
        panels: &[u8],
        rows: Range<usize>,
        g: usize,
        panel: &'p mut [u8],
    ) -> &'p [u8] {
        let n_cols = (self.n_cols - g * GROUP).min(GROUP);
        // Of each type two functions, and not this loop.
        let (panel_bytes, pack_lane): (fn(usize) -> usize, PackLane) = with_format!(
            self.ty, Format => (Format::panel_bytes, pack_lane::<Format>)
        );
        let panel = &mut panel[..panel_bytes(n_cols)];
        panel.fill(0);
        for (lane, row) in rows.enumerate() {
            let blocks = &self.tail_row(row, panels)[self.gguf_bytes(g * GROUP)..];
            pack_lane(panel, n_cols, lane, &blocks[..self.gguf_bytes(n_cols)]);
        }
        panel
    }

    /// The bytes of `rows` in the matrix: a band, or several. With [`Form::Neurons`] they are not in one piece, and
    /// only the number of bytes means something.
    ///
    /// # Panics
    /// If `rows` do not start and end at multiples of 16, the end of the matrix apart.
    pub fn byte_range(&self, rows: Range<usize>) -> Range<usize> {
        assert!(rows.start.is_multiple_of(PANEL_ROWS));
        assert!(rows.end.is_multiple_of(PANEL_ROWS) || rows.end == self.n_rows);
        assert!(rows.end <= self.n_rows);
        match self.form {
            Form::Panels => self.offset(rows.start)..self.offset(rows.end),
            Form::Rows | Form::Neurons => {
                rows.start * self.gguf_row_bytes..rows.end * self.gguf_row_bytes
            }
        }
    }

    /// The rows of each band, in order.
    pub fn bands(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let layout = *self;
        let starts = (0..layout.n_rows).step_by(PANEL_ROWS);
        starts.map(move |start| layout.band(start))
    }

    /// The rows of the band that holds `row`.
    ///
    /// # Panics
    /// If `row` is out of range.
    pub fn band(&self, row: usize) -> Range<usize> {
        assert!(row < self.n_rows);
        let start = row - row % PANEL_ROWS;
        start..self.n_rows.min(start + PANEL_ROWS)
    }

    /// Bytes of `n_cols` columns of a row in GGUF.
    pub(crate) const fn gguf_bytes(&self, n_cols: usize) -> usize {
        let ty = self.ty.ggml();
        n_cols / ty.block_len() * ty.block_bytes()
    }

    /// Writes the GGUF blocks of `n_cols` columns into lane `lane` of a panel of as many.
    pub(crate) fn pack_group_lane(
        &self,
        n_cols: usize,
        lane: usize,
        blocks: &[u8],
        panel: &mut [u8],
    ) {
        let pack: PackLane = with_format!(self.ty, Format => pack_lane::<Format>);
        pack(panel, n_cols, lane, blocks);
    }

    /// The inverse of [`Self::pack_group_lane`].
    pub(crate) fn unpack_group_lane(
        &self,
        n_cols: usize,
        lane: usize,
        panel: &[u8],
        blocks: &mut [u8],
    ) {
        let block_bytes = self.ty.ggml().block_bytes();
        with_format!(self.ty, Format => {
            for (index, block) in blocks.chunks_exact_mut(block_bytes).enumerate() {
                Format::unpack_block(panel, n_cols, lane, index, block);
            }
        });
    }

    /// Bytes of one row in GGUF.
    pub const fn gguf_row_bytes(&self) -> usize {
        self.gguf_row_bytes
    }

    /// Writes GGUF row `row` of the matrix into its band.
    ///
    /// Bytes that belong to no row (padding of panels) are left alone: panels start from zeroed
    /// memory where the same matrix is to give the same bytes. Results do not depend on them.
    ///
    /// # Panics
    /// If a slice's size does not match the layout, or `row` is out of range.
    pub fn pack_row(&self, row: usize, gguf_row: &[u8], band: &mut [u8]) {
        let row_bytes = self.gguf_row_bytes();
        assert_eq!(gguf_row.len(), row_bytes);
        assert_eq!(band.len(), self.byte_range(self.band(row)).len());
        let lane = row % PANEL_ROWS;
        if row >= self.tail_start() {
            band[lane * row_bytes..][..row_bytes].copy_from_slice(gguf_row);
            return;
        }
        self.pack_group_lane(self.n_cols, lane, gguf_row, band);
    }

    /// Writes GGUF row `row` of the matrix out of its band; the exact inverse of
    /// [`Self::pack_row`].
    ///
    /// # Panics
    /// As [`Self::pack_row`].
    pub fn unpack_row(&self, row: usize, band: &[u8], gguf_row: &mut [u8]) {
        let row_bytes = self.gguf_row_bytes();
        assert_eq!(gguf_row.len(), row_bytes);
        assert_eq!(band.len(), self.byte_range(self.band(row)).len());
        let lane = row % PANEL_ROWS;
        if row >= self.tail_start() {
            gguf_row.copy_from_slice(&band[lane * row_bytes..][..row_bytes]);
            return;
        }
        self.unpack_group_lane(self.n_cols, lane, band, gguf_row);
    }

    /// Whole blocks of row `row`, as GGUF has them: the columns `cols`, in `buffer` if they are in a panel.
    ///
    /// # Panics
    /// If the row or the columns are out of range, or `buffer` is too small.
    pub(crate) fn gguf_columns<'p>(
        &self,
        row: usize,
        cols: Range<usize>,
        panels: &'p [u8],
        buffer: &'p mut [u8],
    ) -> &'p [u8] {
        assert!(row < self.n_rows && self.form == Form::Panels);
        let ty = self.ty.ggml();
        let (first, n) = (cols.start / ty.block_len(), cols.len() / ty.block_len());
        if row >= self.tail_start() {
            return &self.tail_row(row, panels)[first * ty.block_bytes()..][..n * ty.block_bytes()];
        }
        let panel = &panels[self.offset(row)..][..self.panel_bytes];
        let bytes = &mut buffer[..n * ty.block_bytes()];
        with_format!(self.ty, Format => {
            for (index, block) in (first..).zip(bytes.chunks_exact_mut(ty.block_bytes())) {
                Format::unpack_block(panel, self.n_cols, row % PANEL_ROWS, index, block);
            }
        });
        bytes
    }

    /// The values of matrix row `row`, dequantised from the whole matrix (`out`: n_cols). This is
    /// how a tied output layer serves as the embedding.
    ///
    /// # Panics
    /// If `row` is out of range or a slice's size does not match the layout.
    pub fn dequantize_row(&self, row: usize, panels: &[u8], out: &mut [f32]) {
        assert_eq!(out.len(), self.n_cols);
        let mut buffer = [0u8; GROUP * size_of::<f32>()];
        for (first, out) in (0..).step_by(GROUP).zip(out.chunks_mut(GROUP)) {
            let cols = first..first + out.len();
            let row = self.gguf_columns(row, cols, panels, &mut buffer);
            blocks::dequantize_row(self.ty.ggml(), row, out);
        }
    }
}
