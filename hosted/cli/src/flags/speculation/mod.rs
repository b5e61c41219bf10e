//! `--spec-type` and its kin: what speculates. Answers are the same with and without.

mod quantised;

pub(crate) use quantised::Copy;

use crate::outcome::UsageError;
use crate::ui::output::note;
use crate::ui::progress::LoadBar;
use anyhow::{Context as _, bail};
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, value_parser};
use sluice::core::kernels::KvType;
use sluice::core::model::ModelConfig;
use sluice::core::team::{StopFlag, WORKERS_MAX};
use sluice::draft::{DraftSource, SpeculationSetup};
use sluice::file::{LoadMode, ModelFile};
use sluice::model::{LoadOptions, ModelSource};
use sluice::speculate::{Figures, POSITIONS_MAX, SpeculationOptions};
use sluice::{Limits, Session, Team};
use sluice_serve::ModelsOptions;
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
    spec_type: Vec<Kind>,
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
    /// Stop drafting at a token that the draft model finds less probable
    #[arg(long, value_name = "P", visible_alias = "draft-p-min", default_value_t = 0.0, value_parser = probability)]
    spec_draft_p_min: f32,
    /// Verify all draft tokens whether it pays or not, for measurements
    #[arg(long)]
    spec_fixed: bool,
    /// Set the number of threads of the draft model [short: -td]
    ///
    /// By default that of the model.
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
    /// By default the model's.
    #[arg(long, value_name = "TYPE", visible_alias = "spec-draft-type-k", value_parser = crate::flags::engine::kv_types())]
    cache_type_k_draft: Option<String>,
    /// Set the draft model's KV cache type of values [short: -ctvd]
    ///
    /// By default the model's.
    #[arg(long, value_name = "TYPE", visible_alias = "spec-draft-type-v", value_parser = crate::flags::engine::kv_types())]
    cache_type_v_draft: Option<String>,
}

/// A source of draft tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    Auto,
    Ngram,
    Draft,
    Itself,
    Head,
}

fn kinds() -> impl TypedValueParser<Value = Kind> {
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
    // Known, to say why they are refused.
    let trained = trained.map(|name| PossibleValue::new(name).hide(true));
    PossibleValuesParser::new(names.into_iter().chain(trained)).try_map(|name| kind(&name))
}

fn kind(text: &str) -> Result<Kind, &'static str> {
    Ok(match text {
        "none" => Kind::None,
        "auto" => Kind::Auto,
        "ngram" | "ngram-simple" | "ngram-map-k" | "ngram-map-k4v" | "ngram-mod"
        | "ngram-cache" => Kind::Ngram,
        "draft-simple" | "draft" => Kind::Draft,
        "draft-self" | "self" => Kind::Itself,
        "draft-mtp" | "mtp" => Kind::Head,
        _ => return Err("models that are trained to draft for another are not supported"),
    })
}

fn probability(text: &str) -> Result<f32, String> {
    let number = text.parse().ok().filter(|p| (0.0..=1.0).contains(p));
    number.ok_or_else(|| "a number from 0 to 1 is expected".to_owned())
}

impl SpeculationArgs {
    fn has(&self, kind: Kind) -> bool {
        self.spec_type.contains(&kind)
    }

    fn has_draft(&self) -> bool {
        self.has(Kind::Draft) || (self.has(Kind::Auto) && self.model_draft.is_some())
    }

    /// # Errors
    /// Flags that contradict each other; a draft model that is not there, or whose header is broken.
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        self.check_types()?;
        if let Some(path) = self.model_draft.as_deref().filter(|_| self.has_draft()) {
            ModelFile::open(path, LoadMode::Map)?.parse()?;
        }
        Ok(())
    }

    /// # Errors
    /// Flags that contradict each other.
    fn check_types(&self) -> Result<(), UsageError> {
        let several = self.spec_type.len() > 1;
        let message = if several && (self.has(Kind::None) || self.has(Kind::Auto)) {
            "--spec-type none and auto stand alone"
        } else if self.has(Kind::Draft) && self.model_draft.is_none() {
            "--spec-type draft-simple needs the smaller model: -md FILE"
        } else if self.model_draft.is_some() && !self.has_draft() {
            "-md is given, but --spec-type does not name draft-simple"
        } else if [
            self.has_draft(),
            self.has(Kind::Itself),
            self.has(Kind::Head),
        ]
        .into_iter()
        .filter(|is_one| *is_one)
        .count()
            > 1
        {
            "one model drafts: --spec-type draft-simple, draft-mtp or draft-self"
        } else {
            return Ok(());
        };
        Err(UsageError(message.to_owned()))
    }

    /// What drafts, where anything does, with the draft model's file. A copy in two bits is not among it.
    ///
    /// # Errors
    /// Flags that contradict each other.
    pub(crate) fn setup(
        &self,
        load_mode: LoadMode,
    ) -> Result<Option<SpeculationSetup>, UsageError> {
        self.check_types()?;
        let path = self.model_draft.clone().filter(|_| self.has_draft());
        let setup = SpeculationSetup {
            options: SpeculationOptions {
                n_min: usize::from(self.spec_draft_n_min).max(1),
                p_min: self.spec_draft_p_min,
                ngrams: self.has(Kind::Ngram) || self.has(Kind::Auto),
                is_fixed: self.spec_fixed,
                ..SpeculationOptions::default()
            },
            n_max: self.spec_draft_n_max.map(usize::from),
            draft: path.map(|path| self.source(path, "draft-simple", load_mode)),
            head: self.has(Kind::Auto) || self.has(Kind::Head),
        };
        Ok(Some(setup).filter(|_| !self.has(Kind::None)))
    }

    fn source(&self, path: PathBuf, name: &'static str, load_mode: LoadMode) -> DraftSource {
        let ty = |name: &Option<String>| name.as_deref().and_then(KvType::from_name);
        DraftSource {
            path,
            name,
            rescores: name == "draft-self",
            load_mode,
            n_threads: self.threads_draft.map(usize::from),
            n_ctx: self.ctx_size_draft as usize,
            type_k: ty(&self.cache_type_k_draft),
            type_v: ty(&self.cache_type_v_draft),
        }
    }

    /// A server's first model in two bits, to draft for it, where that is asked for.
    ///
    /// # Errors
    /// No model is named, it cannot be quantised, or `stop` was set meanwhile.
    pub(crate) fn copy_of_first(
        &self,
        models: &mut ModelsOptions,
        team: &Team,
        stop: &StopFlag,
    ) -> anyhow::Result<Option<Copy>> {
        if !self.has(Kind::Itself) {
            return Ok(None);
        }
        let message = "--spec-type draft-self is for a model that is named: -m FILE";
        let first = models.named.first();
        let first = first.ok_or_else(|| UsageError(message.to_owned()))?;
        let file = ModelFile::open(&first.path, models.load_mode)?;
        if models.experts.is_some() && ModelConfig::from_gguf(&file.parse()?)?.has_experts() {
            return Err(no_copy(file.name()).into());
        }
        let copy = Copy::of(&file, team, stop)?;
        let Some(path) = copy.path() else {
            bail!("--spec-type draft-self: stopped");
        };
        if let Some(setup) = &mut models.speculation {
            setup.draft = Some(self.source(path, "draft-self", LoadMode::Read));
        }
        Ok(Some(copy))
    }

    /// The limits with room for draft tokens.
    ///
    /// # Errors
    /// A head for further tokens is asked for that the file does not have.
    pub(crate) fn limits(&self, file: &ModelSource, limits: Limits) -> anyhow::Result<Limits> {
        let Some(setup) = self.setup(LoadMode::Map)? else {
            return Ok(limits);
        };
        if self.has(Kind::Head) && !setup.has_head(file) {
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
        load_mode: LoadMode,
        limits: &Limits,
        stop: &StopFlag,
    ) -> anyhow::Result<bool> {
        let Some(mut setup) = self.setup(load_mode)? else {
            return Ok(true);
        };
        if self.has(Kind::Itself) && session.model().experts().is_some() {
            return Err(no_copy(session.model().name()).into());
        }
        let copy = match self.has(Kind::Itself) {
            true => Some(Copy::of(session.model().file(), session.team(), stop)?),
            false => None,
        };
        if let Some(copy) = &copy {
            let Some(path) = copy.path() else {
                return Ok(false);
            };
            setup.draft = Some(self.source(path, "draft-self", LoadMode::Read));
        }
        session.set_speculation(Some(setup.options(limits)));
        let mut bar = LoadBar::new();
        let mut progress = |progress| bar.update(progress);
        let load = LoadOptions {
            stop: Some(stop),
            progress: Some(&mut progress),
            ..LoadOptions::default()
        };
        let (model, team) = (session.model().clone(), session.team().clone());
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

/// The copy would take into memory what is to stay on disk.
fn no_copy(name: &str) -> UsageError {
    UsageError(format!(
        "--spec-type draft-self: the experts of {name} stay on disk (--expert-cache), and a copy of it in two bits has \
         all of them in memory; ngram, draft-mtp and a smaller model (-md) can draft for it"
    ))
}

/// Says what came of draft tokens, in full for a profile, and why a draft model stopped.
pub(crate) fn say(session: &mut Session, is_profile: bool) {
    let Some(speculation) = session.speculation_mut() else {
        return;
    };
    if let Some(failure) = speculation.failure() {
        note(format_args!("warning: drafts ended: {failure}"));
    }
    let figures = *speculation.figures();
    if is_profile {
        note(format_args!("\n{figures}"));
    } else if figures.n_draft > 0 {
        note(format_args!("{}", line(&figures)));
    }
}

/// A line of the footer, in llama.cpp's words.
fn line(figures: &Figures) -> String {
    format!(
        "   draft acceptance = {:>10.5} ({:>5} accepted / {:>5} generated), {:.2} tokens per pass",
        figures.acceptance(),
        figures.n_accepted,
        figures.n_draft,
        figures.tokens_per_pass()
    )
}
