//! Matrices that files store by columns.

use super::{Placed, Placer, Target};
use crate::kernels::panel::PanelLayout;
use crate::model::arch::turned_type;
use crate::model::check::check_shape;
use crate::model::error::{ModelError, Name};
use crate::model::refs::MatrixRef;
use crate::slc::Layout;

impl<'a> Placer<'_, 'a> {
    /// A matrix whose columns are the tensor's rows (`name` without `.weight`), in a type that can be turned.
    pub(super) fn turned(
        &mut self,
        stem: &Name,
        shape: [usize; 2],
        placed: Placed<'_, 'a>,
    ) -> Result<MatrixRef, ModelError> {
        let name = Name::format(format_args!("{}.weight", stem.as_str()));
        if self.in_place.is_some() {
            return Err(ModelError::NotImplemented {
                what: "a matrix stored by columns in a packed file",
                name,
            });
        }
        let (index, tensor) = self.find(&name)?;
        check_shape(&tensor, name, [shape[1], shape[0]])?;
        let panel_error = |error| ModelError::Panel { name, error };
        // Also refuses types without kernels.
        let stored = PanelLayout::new(tensor.ty, shape[1], shape[0]).map_err(panel_error)?;
        let ty = turned_type(stored.ty());
        let layout = PanelLayout::new(ty.ggml(), shape[0], shape[1]).map_err(panel_error)?;
        let offset = self.place(index, &tensor, name, Layout::Panels, layout.bytes())?;
        let matrix = MatrixRef::new(&layout, offset, None);
        placed(index, &tensor, Target::Turned(matrix));
        Ok(matrix)
    }
}
