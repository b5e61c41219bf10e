//! A 2-bit copy of a model, to draft for it.

use crate::quantize::{FileType, Plan, PlanError, QuantizeFileError, QuantizeRequest, quantize};
use core::sync::atomic::{AtomicU32, Ordering};
use sluice::Team;
use sluice::core::kernels::GgmlType;
use sluice::core::model::ModelConfig;
use sluice::core::team::StopFlag;
use sluice::file::{FileError, ModelFile, OutputError, OutputFile};
use std::io;
use std::path::{Path, PathBuf};

/// Number of copies that this process has made.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A `Q2_K` file, output layer included, in a temporary folder. Both are removed when this is dropped.
#[derive(Debug)]
pub struct DraftCopy {
    folder: PathBuf,
    path: PathBuf,
}

/// Why a copy cannot be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftCopyError {
    /// A mixture whose experts stay on disk: its copy would have all of them in memory.
    #[error(
        "the experts of {0} stay on disk, and a 2-bit copy of it has all of them in memory; ngram, draft-mtp and a \
         smaller model can draft for it"
    )]
    Experts(String),
    /// The model's header is invalid.
    #[error(transparent)]
    Open(#[from] FileError),
    /// The temporary folder cannot be made.
    #[error("{}: {error}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
    /// The model cannot be quantised.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The weights cannot be quantised or written.
    #[error(transparent)]
    Quantize(#[from] QuantizeFileError),
    /// The copy cannot be written.
    #[error(transparent)]
    Write(#[from] OutputError),
}

impl DraftCopy {
    /// The copy of a model, made by `team`; `None` if `stop` was set meanwhile. `experts_stay` is whether the model's
    /// experts stay on disk.
    ///
    /// # Errors
    /// [`DraftCopyError`].
    pub fn new(
        file: &ModelFile,
        experts_stay: bool,
        team: &Team,
        stop: &StopFlag,
    ) -> Result<Option<Self>, DraftCopyError> {
        let gguf = file.parse()?;
        let has_experts = || ModelConfig::from_gguf(&gguf).is_ok_and(|config| config.has_experts());
        if experts_stay && has_experts() {
            return Err(DraftCopyError::Experts(file.name().to_owned()));
        }
        let file_type = file_type();
        let request = QuantizeRequest {
            allow_requantize: true,
            output_type: Some(GgmlType::Q2_K),
            ..QuantizeRequest::new(file_type)
        };
        let plan = Plan::new(&gguf, &request)?;
        plan.check(&request, None)?;
        let copy = Self::in_temporary_folder()?;
        let output = OutputFile::create_model(&copy.path, false, *b"GGUF")?;
        let header = plan.header(&gguf, file_type, None, &[]);
        let writer = header.start(output)?;
        match quantize(file, &plan, None, &writer, team, stop, |_| ()) {
            Err(QuantizeFileError::Stopped) => return Ok(None),
            result => result?,
        }
        writer.finish()?;
        Ok(Some(copy))
    }

    fn in_temporary_folder() -> Result<Self, DraftCopyError> {
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("sluice-draft-{process}-{number}"));
        // A folder that exists already belongs to another program.
        match std::fs::create_dir(&folder) {
            Ok(()) => Ok(Self {
                path: folder.join("draft.gguf"),
                folder,
            }),
            Err(error) => Err(DraftCopyError::Folder { folder, error }),
        }
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn file_type() -> FileType {
    let found = "Q2_K".parse();
    found.expect("the table of file types has Q2_K")
}

impl Drop for DraftCopy {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(&self.path);
        let _removed = std::fs::remove_dir(&self.folder);
    }
}
