//! `--spec-type` and related flags: speculation. Answers do not depend on it.

use crate::flags::engine::{DraftFile, kv_types};
use crate::outcome::UsageError;
use crate::ui::output::note;
use crate::ui::progress::LoadBar;
use anyhow::{Context as _, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};
use sluice::core::kernels::KvType;
use sluice::core::team::{StopFlag, WORKERS_MAX};
use sluice::draft::{DraftKind, DraftOptions};
use sluice::file::{LoadMode, ModelFile};
use sluice::model::{LoadOptions, ModelSource};
use sluice::speculate::{Figures, POSITIONS_MAX};
use sluice::{Limits, Session, Team};
use sluice_make::draft_copy::{DraftCopy, DraftCopyError};
use std::path::PathBuf;

/// What drafts, and how far.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Speculation: answers are the same with and without")]
pub(crate) struct SpeculationArgs {
    /// Select the drafting methods, separated by commas
    ///
    /// ngram drafts from repetitions in the text and from earlier texts; draft-simple from the model of
    /// --model-draft; draft-mtp from the model's own heads for further tokens; draft-self from a 2-bit copy of
    /// the model, made when it is loaded; none disables drafting. auto is ngram together with draft-simple if
    /// --model-draft is given, or with draft-mtp if the file has such heads. llama.cpp's ngram-simple,
    /// ngram-map-k, ngram-map-k4v, ngram-mod and ngram-cache are ngram.
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "auto", value_parser = kinds())]
    spec_type: Vec<DraftKind>,
    /// Set the draft model, which needs the same vocabulary [short: -md]
    #[arg(long, value_name = "FILE", visible_alias = "spec-draft-model")]
    model_draft: Option<PathBuf>,
    /// Set the maximum number of draft tokens per text and step
    ///
    /// By default 8, or 4 if the model is recurrent.
    #[arg(long, value_name = "N", visible_aliases = ["draft", "draft-n", "draft-max"],
        value_parser = value_parser!(u8).range(1..=POSITIONS_MAX as i64))]
    spec_draft_n_max: Option<u8>,
    /// Set the minimum number of draft tokens that is worth verifying
    #[arg(long, value_name = "N", visible_aliases = ["draft-min", "draft-n-min"], default_value_t = 0,
        value_parser = value_parser!(u8).range(0..=POSITIONS_MAX as i64))]
    spec_draft_n_min: u8,
    /// Stop drafting at a token that is less probable than this in the draft model
    #[arg(long, value_name = "P", visible_alias = "draft-p-min", default_value_t = 0.0, value_parser = probability)]
    spec_draft_p_min: f32,
    /// Verify all draft tokens even if it does not pay, for measurements
    #[arg(long)]
    spec_fixed: bool,
    /// Set the number of threads of the draft model [short: -td]
    ///
    /// By default the number of threads of the model.
    #[arg(long, value_name = "N", visible_alias = "spec-draft-threads",
        value_parser = value_parser!(u16).range(1..=WORKERS_MAX as i64))]
    threads_draft: Option<u16>,
    /// Set the draft model's context size; 0 uses the model's [short: -cd]
    ///
    /// In tokens. Longer texts continue without the draft model.
    #[arg(long, value_name = "N", default_value_t = 0,
        value_parser = value_parser!(u32).range(0..=1 << 24))]
    ctx_size_draft: u32,
    /// Set the draft model's KV cache type of keys [short: -ctkd]
    ///
    /// By default the type of the model.
    #[arg(long, value_name = "TYPE", visible_alias = "spec-draft-type-k", value_parser = kv_types())]
    cache_type_k_draft: Option<KvType>,
    /// Set the draft model's KV cache type of values [short: -ctvd]
    ///
    /// By default the type of the model.
    #[arg(long, value_name = "TYPE", visible_alias = "spec-draft-type-v", value_parser = kv_types())]
    cache_type_v_draft: Option<KvType>,
}

fn kinds() -> impl TypedValueParser<Value = DraftKind> {
    let ngrams = [
        "ngram-simple",
        "ngram-map-k",
        "ngram-map-k4v",
        "ngram-mod",
        "ngram-cache",
    ];
    let trained = ["draft-eagle3", "draft-dflash", "draft-dspark"];
    let names = [
        PossibleValue::new("auto"),
        PossibleValue::new("ngram").aliases(ngrams),
        PossibleValue::new("draft-simple").alias("draft"),
        PossibleValue::new("draft-mtp").alias("mtp"),
        PossibleValue::new("draft-self").alias("self"),
        PossibleValue::new("none"),
    ];
    // Known, so that the error can explain why they are not supported.
    let trained = trained.map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(names.into_iter().chain(trained)).try_map(|name| name.parse())
}

fn probability(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|p| (0.0..=1.0).contains(p));
    number.ok_or_else(|| "a number from 0 to 1 is expected".to_owned())
}

impl SpeculationArgs {
    /// The flags as options.
    ///
    /// # Errors
    /// Flags that contradict each other.
    pub(crate) fn options(&self) -> Result<DraftOptions, UsageError> {
        let options = DraftOptions {
            kinds: self.spec_type.clone(),
            model: self.model_draft.clone(),
            n_max: self.spec_draft_n_max.map(usize::from),
            n_min: self.spec_draft_n_min.into(),
            p_min: self.spec_draft_p_min,
            is_fixed: self.spec_fixed,
            n_threads: self.threads_draft.map(usize::from),
            n_ctx: self.ctx_size_draft as usize,
            type_k: self.cache_type_k_draft,
            type_v: self.cache_type_v_draft,
        };
        options.check().map_err(usage)?;
        Ok(options)
    }

    /// # Errors
    /// Flags that contradict each other; a draft model that is not there, or whose header is broken.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if let Some(path) = self.options()?.draft_model() {
            ModelFile::open(path, LoadMode::Map)?.parse()?;
        }
        Ok(())
    }

    /// The limits with room for draft tokens.
    ///
    /// # Errors
    /// A head for further tokens is asked for that the file does not have.
    pub(crate) fn limits(&self, file: &ModelSource, limits: Limits) -> anyhow::Result<Limits> {
        let options = self.options()?;
        let Some(setup) = options.setup(LoadMode::Map).map_err(usage)? else {
            return Ok(limits);
        };
        if options.has(DraftKind::Head) && !setup.has_head(file) {
            let name = file.name();
            bail!("--spec-type draft-mtp: {name} has no head for further tokens");
        }
        Ok(setup.limits(file, limits))
    }

    /// Lets `session`, which was made with `limits`, speculate. Loads the draft model, where there is one; false if
    /// `stop` was set meanwhile.
    ///
    /// # Errors
    /// The draft model cannot be loaded, or does not go with the model.
    pub(crate) fn begin(
        &self,
        session: &mut Session,
        file: DraftFile,
        limits: &Limits,
        stop: &StopFlag,
    ) -> anyhow::Result<bool> {
        let options = self.options()?;
        let Some(mut setup) = options.setup(file.load_mode).map_err(usage)? else {
            return Ok(true);
        };
        let model = session.model().clone();
        let copied = options.has(DraftKind::Copy).then(|| {
            let experts_stay = model.experts().is_some();
            copy(model.file(), experts_stay, session.team(), stop)
        });
        let copy = match copied.transpose()? {
            Some(None) => return Ok(false),
            copy => copy.flatten(),
        };
        setup.draft = match &copy {
            Some(copy) => Some(options.copied(copy.path().to_path_buf())),
            None => setup.draft,
        };
        session.set_speculation(Some(setup.options(limits)));
        let mut bar = LoadBar::new();
        let mut progress = |progress| bar.update(progress);
        let load = LoadOptions {
            stop: Some(stop),
            progress: Some(&mut progress),
            check_tensors: file.is_checked,
            ..LoadOptions::default()
        };
        let team = session.team().clone();
        let loaded = setup.load(&model, &team, limits, load);
        let loaded = match &setup.draft {
            Some(source) => loaded.with_context(|| source.path.display().to_string()),
            None => loaded.context("the head for further tokens"),
        };
        let Some(draft) = loaded? else {
            return Ok(false);
        };
        session.set_drafter(draft);
        Ok(true)
    }
}

/// The error of drafting methods that contradict each other.
pub(crate) fn usage(why: &str) -> UsageError {
    UsageError(format!("--spec-type: {why}"))
}

/// A 2-bit copy of a model; `None` if `stop` was set meanwhile. `experts_stay` is whether its experts stay on disk.
///
/// # Errors
/// It cannot be made.
pub(crate) fn copy(
    file: &ModelFile,
    experts_stay: bool,
    team: &Team,
    stop: &StopFlag,
) -> anyhow::Result<Option<DraftCopy>> {
    let made = DraftCopy::new(file, experts_stay, team, stop);
    made.map_err(|error| match error {
        DraftCopyError::Experts(_) => UsageError(format!(
            "--spec-type draft-self: {error} (--expert-cache, -md)"
        ))
        .into(),
        error => anyhow::Error::new(error).context("--spec-type draft-self"),
    })
}

/// Reports statistics of draft tokens, in full for a profile, and why a draft model stopped.
pub(crate) fn say(session: &mut Session, is_profile: bool) {
    let Some(speculation) = session.speculation_mut() else {
        return;
    };
    if let Some(failure) = speculation.failure() {
        note(format_args!("warning: drafting stopped: {failure}"));
    }
    let figures = *speculation.figures();
    if is_profile {
        note(format_args!("\n{figures}"));
    } else if figures.n_draft > 0 {
        note(format_args!("{}", line(&figures)));
    }
}

/// A line of the footer, in llama.cpp's format.
fn line(figures: &Figures) -> String {
    format!(
        "   draft acceptance = {:>10.5} ({:>5} accepted / {:>5} generated), {:.2} tokens per pass",
        figures.acceptance(),
        figures.n_accepted,
        figures.n_draft,
        figures.tokens_per_pass()
    )
}
