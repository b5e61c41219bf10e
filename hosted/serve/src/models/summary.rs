//! What files of models say of them, also while they are not in memory.

use super::{Models, State};
use crate::chat::prompt::Prompts;
use sha2::{Digest as _, Sha256};
use sluice::file::{FileStamp, HashRecords};
use sluice::identity::Identity;
use sluice::model::ModelSource;
use sluice_core::pooling::Pooling;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// What a model is and can do.
#[derive(Clone, Debug)]
pub(crate) struct Summary {
    /// Bytes of all its files.
    pub(crate) size_bytes: u64,
    pub(crate) modified: SystemTime,
    /// The SHA-256 of its GGUF file if it is known, or else that of the file's header.
    pub(crate) digest: Identity,
    pub(crate) architecture: String,
    pub(crate) n_params: u64,
    /// The type of most weights.
    pub(crate) weights: &'static str,
    pub(crate) n_ctx_train: usize,
    pub(crate) n_embd: usize,
    pub(crate) can: Capabilities,
}

/// What a model can do.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a capability")]
pub(crate) struct Capabilities {
    /// It continues texts.
    pub(crate) complete: bool,
    /// Its template describes tools, and it was trained to call them.
    pub(crate) call: bool,
    /// Its template has reasoning.
    pub(crate) reason: bool,
    /// Its vocabulary has tokens for filling in the middle.
    pub(crate) fill: bool,
    /// It is made for vectors: an encoder, or a file that names a pooling.
    pub(crate) embed: bool,
}

/// Those of files, by path. Each file is read by one thread at a time.
pub(super) type Summaries = Mutex<HashMap<PathBuf, Arc<Slot>>>;

/// What was read of a file with this stamp; `None` for a file that cannot be read, which is not tried again.
type Slot = tokio::sync::Mutex<Option<(FileStamp, Option<Arc<Summary>>)>>;

impl Models {
    /// What the file of the model called `name` says; `None` if it cannot be read.
    pub(crate) async fn summary(self: &Arc<Self>, name: &str) -> Option<Arc<Summary>> {
        let index = self.find(name).ok()?;
        let path = self.listed.get(index)?.path.clone();
        let stamp = FileStamp::of([&*path])?;
        let slot = {
            let mut slots = self
                .summaries
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(slots.entry(path).or_default())
        };
        let mut known = slot.lock_owned().await;
        if let Some((of, summary)) = &*known
            && *of == stamp
        {
            return summary.clone();
        }
        let models = Arc::clone(self);
        // The thread holds the slot, also when the client does not wait any more.
        let read = move || {
            let summary = models.read_summary(index).map(Arc::new);
            *known = Some((stamp, summary.clone()));
            summary
        };
        tokio::task::spawn_blocking(read).await.ok()?
    }

    /// The header of the file of the model with number `index`, which is opened unless the model is in memory.
    pub(crate) fn source(&self, index: usize) -> Option<ModelSource> {
        if let State::Loaded(loaded) = &*self.entries.get(index)?.state.borrow() {
            return Some(ModelSource::clone(loaded.model()));
        }
        let listed = self.listed.get(index)?;
        listed.options(&self.options).open_file(&listed.path).ok()
    }

    /// Maximum number of tokens of a text of the model with number `index`, if it was trained on `n_ctx_train`.
    pub(crate) fn context(&self, index: usize, n_ctx_train: usize) -> usize {
        if let Some(entry) = self.entries.get(index)
            && let State::Loaded(loaded) = &*entry.state.borrow()
        {
            return loaded.n_ctx();
        }
        let listed = self.listed.get(index);
        let options = listed.map_or(&self.options, |listed| listed.options(&self.options));
        match options.limits.n_ctx {
            0 => n_ctx_train,
            n_ctx => n_ctx,
        }
    }

    /// The template of the model with number `index`: the server's, if it has one, or the file's.
    pub(crate) fn template(&self, index: usize, source: &ModelSource) -> Option<Prompts> {
        let options = self.listed.get(index)?.options(&self.options);
        Prompts::new(source, options.chat_template.as_deref()).ok()
    }

    fn read_summary(&self, index: usize) -> Option<Summary> {
        let source = self.source(index)?;
        let prompts = self.template(index, &source);
        let pooling = self.listed.get(index)?.options(&self.options).pooling;
        Some(summary(&source, prompts.as_ref(), pooling))
    }
}

fn summary(source: &ModelSource, prompts: Option<&Prompts>, pooling: Option<Pooling>) -> Summary {
    let (gguf, config) = (source.gguf(), source.config());
    let paths: Vec<&Path> = source.file().paths().collect();
    let found = paths.iter().filter_map(|path| fs::metadata(path).ok());
    let (size_bytes, modified) = found.fold((0, SystemTime::UNIX_EPOCH), |(size, at), file| {
        (size + file.len(), at.max(file.modified().unwrap_or(at)))
    });
    let mut n_params = 0;
    let mut by_type = HashMap::<&'static str, u64>::new();
    for tensor in gguf.tensors() {
        n_params += tensor.n_elements();
        *by_type.entry(tensor.ty.name()).or_default() += tensor.n_elements();
    }
    let most = by_type.into_iter().max_by_key(|&(name, n)| (n, name));
    let marks = source.tokenizer().special_tokens();
    let names_pooling =
        pooling.is_some() || matches!(Pooling::from_gguf(gguf, config), Ok(Some(_)));
    Summary {
        size_bytes,
        modified,
        digest: digest(source, &paths),
        architecture: gguf
            .str("general.architecture")
            .unwrap_or_default()
            .to_owned(),
        n_params,
        weights: most.map_or("unknown", |(name, _)| name),
        n_ctx_train: config.n_ctx_train,
        n_embd: config.n_embd,
        can: Capabilities {
            complete: !source.embeds(),
            call: !source.embeds() && prompts.is_some_and(Prompts::calls),
            reason: !source.embeds() && prompts.is_some_and(Prompts::reasons),
            fill: [marks.fim_pre, marks.fim_suf, marks.fim_mid]
                .iter()
                .all(Option::is_some),
            embed: source.embeds() || names_pooling,
        },
    }
}

/// The hash of a file, if it was hashed before, or that of its header.
fn digest(source: &ModelSource, paths: &[&Path]) -> Identity {
    let recorded = || HashRecords::of_user()?.find(&FileStamp::of(paths.iter().copied())?);
    recorded().unwrap_or_else(|| Identity(Sha256::digest(source.gguf().header_bytes()).into()))
}
