//! `--models-preset`: models with flags of their own, from an INI file as llama-server's.

use super::args::ServeArgs;
use super::each::{named, of_a_model};
use super::ini::{Section, Setting, sections};
use super::{Defaults, defaults};
use crate::argv::setting;
use crate::commands::Command;
use crate::outcome::UsageError;
use crate::ui::input;
use anyhow::Context as _;
use clap::parser::ValueSource;
use clap::{Arg, ArgMatches};
use core::time::Duration;
use sluice::core::kernels::{KernelTable, words};
use sluice::draft::DraftKind;
use sluice_pull::PullRequest;
use sluice_serve::{AdaptersOptions, ModelPreset, ModelsOptions, NamedModel, models_of};
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The models of the file, and the server's adapters with theirs.
pub(super) struct Presets {
    pub(super) models: Vec<ModelPreset>,
    pub(super) adapters: AdaptersOptions,
}

/// When the file is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    AtStart,
    /// While the server runs: nothing is downloaded.
    Again,
}

/// The models of `--models-preset`. Those of them that are in `offered` leave it.
pub(super) fn presets(
    args: &ServeArgs,
    offered: &mut Vec<NamedModel>,
    mut adapters: AdaptersOptions,
    table: &'static KernelTable,
    reading: Reading,
) -> anyhow::Result<Presets> {
    let mut given = args.given.clone();
    let offline = OsString::from("--offline");
    if reading == Reading::Again && !given.contains(&offline) {
        given.push(offline);
    }
    let mut models = Vec::new();
    if let Some(path) = &args.models_preset {
        let text = input::text("file", path).context("--models-preset")?;
        let mut known = offered.clone();
        if let Some(folder) = &args.models_dir {
            let found = models_of(folder);
            known.extend(found.with_context(|| folder.display().to_string())?);
        }
        let file = PresetFile {
            path,
            given: &given,
            known: &known,
            table,
        };
        models = file.models(&text, offered, &mut adapters)?;
    }
    for model in &mut models {
        model.options.adapters = adapters.clone();
    }
    Ok(Presets { models, adapters })
}

struct PresetFile<'f> {
    path: &'f Path,
    /// The flags of a model that the command line sets: they hold for all.
    given: &'f [OsString],
    /// The models that are there without the file.
    known: &'f [NamedModel],
    table: &'static KernelTable,
}

/// What a section asks for besides flags.
#[derive(Clone, Debug)]
struct Extra {
    is_eager: bool,
    stop_after: Duration,
    hides_cached: bool,
    /// A model of the hub that drafts.
    draft: Option<PullRequest>,
}

/// What sections ask for.
#[derive(Clone, Debug, Default)]
struct SectionWords {
    extra: Extra,
    /// Arguments of `sluice serve`.
    args: Vec<OsString>,
}

impl PresetFile<'_> {
    fn models(
        &self,
        text: &str,
        offered: &mut Vec<NamedModel>,
        adapters: &mut AdaptersOptions,
    ) -> anyhow::Result<Vec<ModelPreset>> {
        let all = sections(text).map_err(|(line, why)| self.wrong(line, &why))?;
        let mut shared = SectionWords::default();
        let mut found = Vec::new();
        for section in &all {
            match &*section.name {
                "" => self.check_head(section)?,
                "*" => shared = self.words(section, shared)?,
                _ => {}
            }
        }
        for section in all.iter().filter(|one| !matches!(&*one.name, "" | "*")) {
            let SectionWords { extra, args } = self.words(section, shared.clone())?;
            let preset = self.preset(section, &extra, args, adapters)?;
            let draft = preset.options.speculation.as_ref();
            let draft = draft
                .and_then(|setup| setup.draft.as_ref())
                .map(|draft| &draft.path);
            let paths = [Some(&preset.options.named[0].path), draft];
            let is_hidden = |model: &NamedModel| {
                let is_used = extra.hides_cached && paths.contains(&Some(&model.path));
                is_named(model, &section.name) || is_used
            };
            offered.retain(|model| !is_hidden(model));
            found.push(preset);
        }
        Ok(found)
    }

    /// # Errors
    /// What precedes the sections is not the version of this format.
    fn check_head(&self, head: &Section) -> anyhow::Result<()> {
        for setting in &head.entries {
            match (&*setting.key, &*setting.value) {
                ("version", "1") => {}
                ("version", other) => {
                    let why = format!("version: expected 1, found {other:?}");
                    return Err(self.wrong(setting.line, &why));
                }
                (key, _) => {
                    let why = format!("{key}: belongs in a section: [*] is for all models");
                    return Err(self.wrong(setting.line, &why));
                }
            }
        }
        Ok(())
    }

    /// The arguments that a section means, after those for all models.
    fn words(&self, section: &Section, mut read: SectionWords) -> anyhow::Result<SectionWords> {
        let tree = crate::commands::tree();
        let serve = tree.find_subcommand("serve").context("no such command")?;
        for entry in &section.entries {
            let wrong = |why: &str| self.wrong(entry.line, &format!("{}: {why}", entry.key));
            if read.extra.set(entry).map_err(|why| wrong(&why))? {
                continue;
            }
            let words =
                setting::words(serve, &entry.key, &entry.value).map_err(|why| wrong(&why))?;
            let Some(id) = words.id else {
                continue;
            };
            let arg = serve.get_arguments().find(|arg| arg.get_id() == &*id);
            if !arg.is_some_and(is_of_a_model) {
                return Err(wrong(
                    "holds for the whole server: set it on the command line",
                ));
            }
            if section.name == "*" && OF_ONE.contains(&&*id) {
                return Err(wrong("is for one model and cannot be in [*]"));
            }
            // `--chat-template` and `--chat-template-file` exclude each other: the last one counts.
            if id.starts_with("chat_template") && id != "chat_template_kwargs" {
                read.args.retain(|arg| {
                    let text = arg.to_string_lossy();
                    !text.starts_with("--chat-template=")
                        && !text.starts_with("--chat-template-file=")
                });
            }
            // Alone, so that an error is about this line.
            self.parsed(words.args.clone()).map_err(|why| wrong(&why))?;
            read.args.extend(words.args);
        }
        Ok(read)
    }

    /// The flags and the defaults that `args` set.
    fn parsed(
        &self,
        args: Vec<OsString>,
    ) -> Result<(Box<ServeArgs>, ModelsOptions, Defaults), String> {
        let start = ["sluice", "serve"].map(OsString::from);
        let all = start
            .into_iter()
            .chain(args)
            .chain(self.given.iter().cloned());
        let parsed = crate::parse(all.collect()).map_err(|error| setting::first_line(&error))?;
        let Command::Serve(args) = parsed.command else {
            return Err("not a flag of `sluice serve`".to_owned());
        };
        if args.engine.locks() {
            return Err("mlock holds for the whole server: set it on the command line".to_owned());
        }
        let drafts = args
            .speculation
            .options()
            .map_err(|error| error.to_string())?;
        if drafts.has(DraftKind::Copy) {
            return Err("draft-self is for the first model of the command line".to_owned());
        }
        let told = |error: anyhow::Error| format!("{error:#}");
        let options = of_a_model(&args, self.table).map_err(told)?;
        let defaults = defaults(&args).map_err(told)?;
        Ok((args, options, defaults))
    }

    fn preset(
        &self,
        section: &Section,
        extra: &Extra,
        mut args: Vec<OsString>,
        adapters: &mut AdaptersOptions,
    ) -> anyhow::Result<ModelPreset> {
        let name = section.name.clone();
        let wrong = |why: &str| self.wrong(section.line, &format!("[{name}]: {why}"));
        if let Some(request) = &extra.draft {
            let (own, ..) = self.parsed(args.clone()).map_err(|why| wrong(&why))?;
            let path = own.hub.fetch(request);
            let path = path.with_context(|| wrong("spec-draft-hf: not available").to_string())?;
            args.push([OsStr::new("--spec-draft-model="), path.as_os_str()].join(OsStr::new("")));
        }
        let flags = format!("{extra:?} {args:?}");
        let (args, options, defaults) = self.parsed(args).map_err(|why| wrong(&why))?;
        let repo = args
            .hub
            .repo()
            .map_err(|error| wrong(&format!("{error:#}")))?;
        let known = || {
            let found = self.known.iter().find(|model| is_named(model, &name));
            found.map(|model| model.path.clone())
        };
        let path = match (&args.model[..], repo) {
            ([model], None) => named(model).path,
            ([], Some(request)) => args
                .hub
                .fetch(&request)
                .with_context(|| wrong("not available").to_string())?,
            ([], None) => known().ok_or_else(|| {
                wrong("not a model of the cache or of --models-dir: set model or hf-repo")
            })?,
            _ => return Err(wrong("set model or hf-repo, once")),
        };
        let own = args
            .adapters
            .options()
            .map_err(|error| wrong(&error.to_string()))?;
        for mut adapter in own.named {
            adapter.model = Some(name.clone());
            adapters.named.push(adapter);
        }
        *adapters = core::mem::take(adapters).with_room(false, args.adapters.rank_max());
        // As the cache writes it.
        let is_it = |model: &&NamedModel| {
            is_named(model, &name) || extra.hides_cached && model.path == path
        };
        let mut known = self.known.iter().filter(is_it);
        let known = known.find_map(|model| model.alias.clone().filter(|alias| *alias != name));
        let others = args.alias.clone().into_iter().chain(known);
        let others = others.map(|alias| format!(",{alias}"));
        Ok(ModelPreset {
            options: ModelsOptions {
                named: vec![NamedModel {
                    alias: Some(name.clone() + &others.collect::<String>()),
                    path,
                }],
                stop_after: extra.stop_after,
                ..options
            },
            defaults,
            is_eager: extra.is_eager,
            flags,
        })
    }

    fn wrong(&self, line: usize, why: &str) -> anyhow::Error {
        UsageError(format!("{}:{line}: {why}", self.path.display())).into()
    }
}

/// Whether a model of the cache or of a folder has this name; types of weights are written in either case.
fn is_named(model: &NamedModel, name: &str) -> bool {
    let alias = model.alias.as_deref();
    alias.is_some_and(|alias| alias.eq_ignore_ascii_case(name))
}

impl Extra {
    /// Takes a key that is not a flag. Returns whether it is one.
    fn set(&mut self, entry: &Setting) -> Result<bool, String> {
        match &*entry.key {
            "load-on-startup" => self.is_eager = setting::truth(&entry.value)?,
            "dedup-cache-models" => self.hides_cached = setting::truth(&entry.value)?,
            "spec-draft-hf" | "hf-repo-draft" | "hfd" | "hfrd" | "LLAMA_ARG_SPEC_DRAFT_HF_REPO" => {
                let request = PullRequest::parse(&entry.value);
                self.draft = Some(request.map_err(|error| error.to_string())?);
            }
            "stop-timeout" => {
                let seconds = entry.value.parse().ok().filter(|&s: &u64| s <= 86_400);
                let seconds = seconds.ok_or("expected a number of seconds, up to 86400")?;
                self.stop_after = Duration::from_secs(seconds);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }
}

impl Default for Extra {
    fn default() -> Self {
        Self {
            is_eager: false,
            stop_after: ModelsOptions::default().stop_after,
            hides_cached: false,
            draft: None,
        }
    }
}

/// The flags of a model that the command line sets: they override those of the file.
pub(super) fn given(matches: &ArgMatches) -> Vec<OsString> {
    let tree = crate::commands::tree();
    let Some(serve) = tree.find_subcommand("serve") else {
        return Vec::new();
    };
    let mut words = Vec::new();
    for arg in serve.get_arguments().filter(|arg| is_of_a_model(arg)) {
        let (id, long) = (arg.get_id().as_str(), arg.get_long().unwrap_or_default());
        let is_given = matches.value_source(id) == Some(ValueSource::CommandLine);
        if !is_given || OF_ONE.contains(&id) {
            continue;
        }
        if !arg.get_action().takes_values() {
            words.push(format!("--{long}").into());
            continue;
        }
        let values = matches.get_raw(id).into_iter().flatten();
        words.extend(values.map(|value| {
            let mut word = OsString::from(format!("--{long}="));
            word.push(value);
            word
        }));
    }
    words
}

/// Whether a flag may differ from model to model.
fn is_of_a_model(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    let has_heading = arg
        .get_help_heading()
        .is_some_and(|heading| HEADINGS.contains(&heading));
    has_heading || EACH.contains(&id) || OF_ONE.contains(&id)
}

/// Headings of flags that may differ from model to model.
const HEADINGS: &[&str] = &[
    "Sampling",
    "Experts on disk",
    "Speculation (never changes an answer)",
];
/// Further ones.
const EACH: &[&str] = words!(
    "hf_token offline parallel n_predict ctx_size batch_size ubatch_size cache_type_k cache_type_v no_kv_rotation \
     longrope load_mode gather_tables activation sparse sparse_file check_tensors chat_template chat_template_file chat_template_kwargs \
     reasoning reasoning_format reasoning_budget pooling context_shift no_context_shift sleep_idle_seconds"
);
/// Flags that name one model, or adapters of one.
const OF_ONE: &[&str] =
    words!("model hf_repo hf_file alias lora lora_scaled lora_init_without_apply");
