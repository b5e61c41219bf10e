//! Matrices of one tensor: stored by rows, or by columns.

use super::{Placed, Placer, Target, layout_of};
use crate::kernels::neuron::Form;
use crate::model::arch::turned_type;
use crate::model::check::check_shape;
use crate::model::error::{ModelError, Name};
use crate::model::refs::MatrixRef;
use crate::slc::Layout;

impl<'a> Placer<'_, 'a> {
    /// A matrix with its optional bias (`name` without `.weight`).
    pub(super) fn matrix(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        self.matrix_by(stem, shape, false, placed)
    }

    /// As [`Self::matrix`]; one that the file stores by columns is turned, in a type that can be.
    pub(super) fn matrix_by(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        is_by_columns: bool,
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        let (index, tensor) = self.find(&name)?;
        let (ty, stored) = match is_by_columns {
            true => (turned_type(tensor.ty), [shape[1], shape[0]]),
            false => (tensor.ty, shape),
        };
        check_shape(&tensor, name, stored)?;
        if is_by_columns && self.in_place.is_some() {
            return Err(ModelError::NotImplemented {
                what: "a matrix stored by columns in a packed file",
                name,
            });
        }
        let header = self.header_in_file(index, &tensor);
        let layout = layout_of(ty, name, shape, header.as_ref())?;
        let kind = match layout.form() {
            Form::Panels => Layout::Panels,
            Form::Rows | Form::Neurons => Layout::Neurons,
        };
        let offset = self.place(index, &tensor, name, kind, layout.bytes())?;
        let bias = self.bias(stem, [1, shape[0]], placed)?;
        let factor = self.factor(stem, 1, placed)?;
        let matrix = MatrixRef::new(&layout, offset, bias).with_factor(factor);
        let target = match is_by_columns {
            true => Target::Turned(matrix),
            false => Target::Panels(matrix),
        };
        placed(index, &tensor, target);
        Ok(matrix)
    }
}
