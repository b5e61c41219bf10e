//! The model itself in two bits, as its own draft.

use anyhow::Context as _;
use core::sync::atomic::{AtomicU32, Ordering};
use sluice::Team;
use sluice::core::kernels::GgmlType;
use sluice::core::team::StopFlag;
use sluice::file::{ModelFile, OutputFile};
use sluice_make::quantize::{FileType, Plan, QuantizeFileError, QuantizeRequest, quantize};

use std::path::PathBuf;

/// Copies that this process has made.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// A file of two bits a weight in a folder that goes when this goes.
#[derive(Debug)]
pub(crate) struct Copy {
    folder: PathBuf,
    is_whole: bool,
}

impl Copy {
    /// Of a model's file, its output layer too.
    ///
    /// # Errors
    /// It cannot be quantised, or there is no room for it.
    pub(crate) fn of(file: &ModelFile, team: &Team, stop: &StopFlag) -> anyhow::Result<Self> {
        Self::make(file, team, stop).context("--spec-type draft-self")
    }

    fn make(file: &ModelFile, team: &Team, stop: &StopFlag) -> anyhow::Result<Self> {
        let file_type: FileType = "Q2_K".parse().map_err(anyhow::Error::msg)?;
        let request = QuantizeRequest {
            allow_requantize: true,
            output_type: Some(GgmlType::Q2_K),
            ..QuantizeRequest::new(file_type)
        };
        let gguf = file.parse()?;
        let plan = Plan::new(&gguf, &request)?;
        plan.check(&request, None)?;
        let (process, number) = (std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(format!("sluice-draft-{process}-{number}"));
        // One that is there already is somebody's.
        std::fs::create_dir(&folder).with_context(|| folder.display().to_string())?;
        let mut copy = Self {
            folder,
            is_whole: false,
        };
        let output = OutputFile::create_model(&copy.file(), false, *b"GGUF")?;
        let header = plan.header(&gguf, file_type, None, &[]);
        let writer = header.start(output)?;
        match quantize(file, &plan, None, &writer, team, stop, |_| ()) {
            Err(QuantizeFileError::Stopped) => return Ok(copy),
            result => result?,
        }
        writer.finish()?;
        copy.is_whole = true;
        Ok(copy)
    }

    fn file(&self) -> PathBuf {
        self.folder.join("draft.gguf")
    }

    /// The file; `None` if making it was stopped.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        self.is_whole.then(|| self.file())
    }
}

impl Drop for Copy {
    fn drop(&mut self) {
        let _removed = std::fs::remove_file(self.file());
        let _removed = std::fs::remove_dir(&self.folder);
    }
}
