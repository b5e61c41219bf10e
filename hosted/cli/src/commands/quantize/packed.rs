//! `sluice quantize IN OUT.slc`: packing what was quantised, and types that exist there alone.

use super::{QuantizeArgs, tensor_type};
use crate::outcome::UsageError;
use crate::ui::progress::WorkBar;
use sluice::core::kernels::GgmlType;
use sluice::core::model::LoadProgress;
use sluice::core::team::StopFlag;
use sluice::file::{GgufHeader, GgufWriter, OutputError, OutputFile};
use sluice_make::quantize::{QuantizeFileError, QuantizeRequest};
use sluice_make::slc::{FfnLayout, PackOptions, SlcFileError, SlcWatch, pack_written};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// Whether an output of this name is a `.slc` file.
pub(super) fn is_slc(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("slc"))
}

/// Refuses lanes in a GGUF file, by the flag that asks for them.
pub(super) fn check_lanes(
    args: &QuantizeArgs,
    request: &QuantizeRequest,
) -> Result<(), UsageError> {
    if request.into_slc {
        return Ok(());
    }
    let budget = args.budget_types.iter().map(|name| tensor_type(name));
    let budget = budget.collect::<Result<Vec<_>, _>>()?;
    let patterns = request.tensor_types.iter().map(|(_, ty)| *ty);
    let asked = [("the type", request.file_type.base)]
        .into_iter()
        .chain(patterns.map(|ty| ("--tensor-type", ty)))
        .chain(request.output_type.map(|ty| ("--output-tensor-type", ty)))
        .chain(
            request
                .embedding_type
                .map(|ty| ("--token-embedding-type", ty)),
        )
        .chain(budget.into_iter().map(|ty| ("--budget-types", ty)));
    let mut lanes = asked.filter(|(_, ty): &(&str, GgmlType)| ty.is_lane());
    match lanes.next() {
        Some((flag, ty)) => Err(UsageError(format!(
            "{flag} {ty}: GGUF has no number for this type, it exists in .slc files only; name an output that ends in .slc"
        ))),
        None => Ok(()),
    }
}

/// Writes a model with this header to `output`, and its tensors by `tensors`; `false` if it was stopped.
pub(super) fn write(
    header: GgufHeader,
    output: OutputFile,
    into_slc: bool,
    n_threads: usize,
    stop: &StopFlag,
    tensors: impl FnOnce(&GgufWriter) -> Result<(), QuantizeFileError>,
) -> anyhow::Result<bool> {
    let (writer, packing) = Packing::start(header, output, into_slc)?;
    match tensors(&writer) {
        Err(QuantizeFileError::Stopped) => return Ok(false),
        result => result?,
    }
    let Some(packing) = packing else {
        writer.finish()?;
        return Ok(true);
    };
    match packing.finish(writer, n_threads, stop) {
        Err(SlcFileError::Stopped) => Ok(false),
        result => Ok(result.map(|()| true)?),
    }
}

/// A `.slc` file that is made once all tensors are quantised, of a file that never gets a name.
struct Packing {
    output: OutputFile,
    head: Vec<u8>,
    len_bytes: u64,
}

impl Packing {
    /// Starts the file to write tensors to: `output`, or with `into_slc` one that becomes it.
    fn start(
        header: GgufHeader,
        output: OutputFile,
        into_slc: bool,
    ) -> Result<(GgufWriter, Option<Self>), OutputError> {
        if !into_slc {
            return Ok((header.start(output)?, None));
        }
        let scratch = OutputFile::scratch(output.path())?;
        let packing = Self {
            output,
            head: header.bytes(),
            len_bytes: header.file_bytes(),
        };
        Ok((header.start_scratch(scratch)?, Some(packing)))
    }

    /// Packs what was written.
    fn finish(
        self,
        writer: GgufWriter,
        n_threads: usize,
        stop: &StopFlag,
    ) -> Result<(), SlcFileError> {
        let Self {
            output,
            head,
            len_bytes,
        } = self;
        let total_bytes = 2 * len_bytes;
        let bar = Mutex::new(WorkBar::of_bytes("packing", total_bytes));
        let report = |progress: LoadProgress| {
            let mut bar = bar.lock().unwrap_or_else(PoisonError::into_inner);
            bar.update(progress.done_bytes);
        };
        let options = PackOptions {
            n_threads,
            verify: false,
            ffn: FfnLayout::Panels,
        };
        let watch = SlcWatch::new(total_bytes, stop, &report);
        let written = writer.into_output();
        pack_written(&head, &written, len_bytes, output, options, &watch)?;
        Ok(())
    }
}
