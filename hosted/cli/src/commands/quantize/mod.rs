//! `sluice quantize`: a model in fewer bits.

mod budget;
mod hot;
mod packed;
mod words;

use crate::flags::engine::EngineArgs;
use crate::flags::names::suggestion;
use crate::outcome::{Ending, UsageError};
use crate::ui::format::{Bytes, shown};
use crate::ui::input;
use crate::ui::output::{TextOutput, note};
use crate::ui::progress::WorkBar;
use anyhow::{Context as _, bail};
use budget::Chooser;
use clap::{Args, value_parser};
use core::fmt::Write as _;
use regex_lite::Regex;
use sluice::Team;
use sluice::core::gguf::source::TensorSource;
use sluice::core::kernels::GgmlType;
use sluice::core::slc::MAGIC;
use sluice::core::team::StopFlag;
use sluice::file::{GgufWriter, LoadMode, MetaValue, ModelFile, OutputFile};
use sluice::host::interrupt;
use sluice::host::topology::Cores;
use sluice_make::quantize::{
    FILE_TYPES, FileType, ImportanceMatrix, Plan, PlannedTensor, QuantizeFileError,
    QuantizeRequest, quantize as run,
};
use std::ffi::OsString;
use std::path::PathBuf;
use words::Words;

#[derive(Debug, Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
pub(crate) struct QuantizeArgs {
    /// Input, output, type (name or number) and threads
    ///
    /// OUT is ggml-model-TYPE.gguf in the folder of IN by default. With OUT.slc a .slc file is written; types LANE3, LANE5
    /// and LANE7 exist only there.
    #[arg(value_name = "IN [OUT] TYPE [THREADS]", num_args = 1..=4, required = true)]
    words: Vec<OsString>,
    /// Weight columns by an importance matrix
    ///
    /// Written by `sluice imatrix` or llama.cpp.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    /// Use the importance matrix only for weights whose names contain NAME
    #[arg(long, value_name = "NAME", conflicts_with = "exclude_weights")]
    include_weights: Vec<String>,
    /// Ignore the importance matrix for weights whose names contain NAME
    #[arg(long, value_name = "NAME")]
    exclude_weights: Vec<String>,
    /// Set the type of tensors whose names match REGEX; may be repeated
    #[arg(long, value_name = "REGEX=TYPE")]
    tensor_type: Vec<String>,
    /// Read REGEX=TYPE pairs, separated by white space, from a file
    #[arg(long, value_name = "FILE")]
    tensor_type_file: Option<PathBuf>,
    /// Set the type of output.weight
    #[arg(long, value_name = "TYPE")]
    output_tensor_type: Option<String>,
    /// Set the type of token_embd.weight
    #[arg(long, value_name = "TYPE")]
    token_embedding_type: Option<String>,
    /// Leave output.weight as it is
    #[arg(long)]
    leave_output_tensor: bool,
    /// Use one type for all weights instead of a mix of types
    #[arg(long)]
    pure: bool,
    /// Requantize weights that are quantized already
    ///
    /// This loses more than quantizing the original.
    #[arg(long)]
    allow_requantize: bool,
    /// Choose types by measured error, within BITS per weight
    ///
    /// Omit TYPE.
    #[arg(long, value_name = "BITS", value_parser = bits)]
    bits_per_weight: Option<f64>,
    /// Set the types to choose from, separated by commas
    ///
    /// By default those with the least error at each size; among them, the IQ2 and IQ3 types are slow to
    /// run.
    #[arg(
        long,
        value_name = "TYPES",
        requires = "bits_per_weight",
        value_delimiter = ','
    )]
    pub(super) budget_types: Vec<String>,
    /// Measure on this text how each weight's error changes the answers
    ///
    /// For --bits-per-weight. Without --imatrix the importance of columns is collected from it as well.
    #[arg(long, value_name = "FILE", requires = "bits_per_weight")]
    pub(super) calibrate: Option<PathBuf>,
    /// Set the number of chunks of 256 tokens to read per weight
    ///
    /// The importance of columns is collected from eight times as many.
    #[arg(long, value_name = "N", default_value_t = 8, requires = "calibrate",
        value_parser = value_parser!(u32).range(1..=1 << 16))]
    pub(super) calibrate_chunks: u32,
    /// Put the most active neurons of each network first, and mark SHARE of all as hot
    ///
    /// Needs a model in F16, BF16 or F32, and --profile.
    #[arg(long, value_name = "SHARE", requires = "profile")]
    hot: Option<hot::Share>,
    /// Set the importance matrix that counts how often neurons are active
    ///
    /// Written by `sluice imatrix`.
    #[arg(long, value_name = "FILE", requires = "hot")]
    profile: Option<PathBuf>,
    /// Set a metadata key; TYPE is int, float, bool or str
    #[arg(long, value_name = "KEY=TYPE:VALUE")]
    override_kv: Vec<String>,
    /// Print the resulting types and sizes without writing anything
    #[arg(long)]
    dry_run: bool,
    /// Overwrite the output file if it exists
    #[arg(long)]
    overwrite: bool,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

pub(super) fn types_help() -> String {
    let mut text = String::from("Types (name or number, bits per weight of most tensors):\n");
    for file_type in FILE_TYPES {
        let FileType {
            name,
            number,
            description,
            ..
        } = file_type;
        let number = if file_type.base.is_lane() {
            String::new()
        } else {
            number.to_string()
        };
        let _ = writeln!(text, "  {name:<10} {number:>3}  {description}");
    }
    text
}

pub(super) fn quantize(args: &QuantizeArgs) -> anyhow::Result<Ending> {
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let words = Words::new(args)?;
    let request = QuantizeRequest {
        into_slc: packed::is_slc(&words.output),
        ..request(args, words.file_type)?
    };
    packed::check_lanes(args, &request)?;
    let overrides = overrides(&args.override_kv)?;
    let mut importance = match &args.imatrix {
        Some(path) => Some(filtered(ImportanceMatrix::open(path)?, args)?),
        None => None,
    };
    let magic = if request.into_slc { MAGIC } else { *b"GGUF" };
    let create = || OutputFile::create_model(&words.output, args.overwrite, magic);
    let output = (!args.dry_run).then(create).transpose()?;
    let file = ModelFile::open(&words.input, LoadMode::Read)?;
    if args.engine.check_tensors {
        file.check_tensors(stop)?;
    }
    let gguf = file.parse()?;
    let hot = hot::ordered(args, &file, &gguf)?;
    if let Some(importance) = &importance {
        hot::check_order(importance, &file, &gguf)?;
    }
    let cores = Cores::detect();
    let n_workers = words.threads.unwrap_or_else(|| cores.default_workers());
    let team = Team::new(n_workers, &cores).context("cannot start threads")?;

    let chooser = Chooser {
        args,
        file: &file,
        gguf: &gguf,
        stop,
        team: &team,
    };
    let request = match args.bits_per_weight {
        None => Some(request),
        Some(bits) => chooser.choose(&request, bits, &mut importance)?,
    };
    let Some(request) = request else {
        return Ok(Ending::Interrupted);
    };
    if let Some((hot, importance)) = hot.as_ref().zip(importance.as_mut()) {
        hot.reorder(importance);
    }
    let named = || file.name().to_owned();
    let plan = Plan::new(&gguf, &request).with_context(named)?;
    let feasible = plan.check(&request, importance.as_ref());
    check_patterns(&args.tensor_type, &request, &plan);
    if let Some(importance) = &importance {
        note_unknown(&plan, importance);
    }
    let Some(output) = output else {
        return dry_run(&plan, feasible.with_context(named), &words);
    };
    feasible.with_context(named)?;
    describe(&plan)?;
    let mut header = plan.header(&gguf, words.file_type, importance.as_ref(), &overrides);
    if let Some(hot) = &hot {
        hot.describe(&mut header);
    }
    let ordered = hot.as_ref().map(|hot| hot.source(file.source()));
    let source = ordered.as_ref().map_or(file.source(), |ordered| ordered);
    let tensors = |to: &GgufWriter| stream(source, &plan, importance.as_ref(), to, &team, stop);
    if !packed::write(header, output, request.into_slc, n_workers, stop, tensors)? {
        return Ok(interrupted(&words));
    }
    summary(&plan, &words, false);
    Ok(Ending::Done)
}

/// Prints what would be written.
fn dry_run(plan: &Plan, feasible: anyhow::Result<()>, words: &Words) -> anyhow::Result<Ending> {
    describe(plan)?;
    if let Err(error) = feasible {
        note(format_args!(
            "warning: without --dry-run this would be an error: {error:#}"
        ));
    }
    summary(plan, words, true);
    Ok(Ending::Done)
}

fn interrupted(words: &Words) -> Ending {
    let name = words.output.display();
    note(format_args!("interrupted; {name} was not written"));
    Ending::Interrupted
}

/// Warns of `--tensor-type` patterns that match nothing.
fn check_patterns(texts: &[String], request: &QuantizeRequest, plan: &Plan) {
    for (text, (pattern, _)) in texts.iter().zip(&request.tensor_types) {
        if !plan
            .tensors
            .iter()
            .any(|tensor| pattern.is_match(&tensor.name))
        {
            note(format_args!(
                "warning: --tensor-type {text} matches no tensor"
            ));
        }
    }
}

/// Warns of weights that the importance matrix lacks.
fn note_unknown(plan: &Plan, importance: &ImportanceMatrix) {
    let unknown = plan.unknown_to(importance);
    let (few, more) = unknown.split_at(unknown.len().min(8));
    if !few.is_empty() {
        let names: Vec<_> = few.iter().map(|name| shown(name.as_bytes(), 127)).collect();
        let and_more = if more.is_empty() {
            String::new()
        } else {
            format!(" and {} more", more.len())
        };
        note(format_args!(
            "warning: the importance matrix has no entry for {}{and_more}: all of their columns are weighted equally",
            names.join(", ")
        ));
    }
}

/// Quantizes, with a progress bar.
fn stream(
    source: &dyn TensorSource,
    plan: &Plan,
    importance: Option<&ImportanceMatrix>,
    writer: &GgufWriter,
    team: &Team,
    stop: &StopFlag,
) -> Result<(), QuantizeFileError> {
    let mut bar = WorkBar::of_bytes("quantising", plan.total_bytes().0);
    let update = |done| bar.update(done);
    run(source, plan, importance, writer, team, stop, update)
}

fn request(args: &QuantizeArgs, file_type: FileType) -> anyhow::Result<QuantizeRequest> {
    let mut patterns = args.tensor_type.clone();
    if let Some(path) = &args.tensor_type_file {
        let text = input::text("file", path)?;
        patterns.extend(text.split_whitespace().map(str::to_owned));
    }
    let pattern = |text: &String| -> anyhow::Result<(Regex, GgmlType)> {
        let (regex, ty) = text
            .rsplit_once('=')
            .ok_or_else(|| UsageError(format!("{text} is not REGEX=TYPE")))?;
        let regex = Regex::new(regex).map_err(|error| UsageError(format!("{regex}: {error}")))?;
        Ok((regex, tensor_type(ty)?))
    };
    let named = |ty: &Option<String>| ty.as_deref().map(tensor_type).transpose();
    Ok(QuantizeRequest {
        pure: args.pure,
        leave_output: args.leave_output_tensor,
        allow_requantize: args.allow_requantize,
        output_type: named(&args.output_tensor_type)?,
        embedding_type: named(&args.token_embedding_type)?,
        tensor_types: patterns.iter().map(pattern).collect::<Result<_, _>>()?,
        has_importance: args.imatrix.is_some(),
        ..QuantizeRequest::new(file_type)
    })
}

/// A tensor type by ggml's name, in any case.
pub(super) fn tensor_type(name: &str) -> Result<GgmlType, UsageError> {
    let same = |ty: &&GgmlType| ty.name().eq_ignore_ascii_case(name);
    let found = GgmlType::ALL.iter().find(same).copied();
    found.ok_or_else(|| {
        let names: Vec<_> = GgmlType::ALL.iter().map(|ty| ty.name()).collect();
        UsageError(format!(
            "unknown tensor type {name}; expected {}{}",
            names.join(" "),
            suggestion(name, names.iter().copied())
        ))
    })
}

fn bits(text: &str) -> Result<f64, String> {
    let bits: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    let sensible = bits.is_finite() && bits > 0.0 && bits <= 32.0;
    sensible
        .then_some(bits)
        .ok_or_else(|| "not between 0 and 32".into())
}

pub(super) fn overrides(texts: &[String]) -> Result<Vec<(String, MetaValue)>, UsageError> {
    let parse = |text: &String| {
        let wrong = || {
            UsageError(format!(
                "{text} is not KEY=TYPE:VALUE (int, float, bool, str)"
            ))
        };
        let (key, rest) = text.split_once('=').ok_or_else(wrong)?;
        let (ty, value) = rest.split_once(':').ok_or_else(wrong)?;
        let value: MetaValue = match ty {
            "int" => value.parse::<u32>().map_err(|_| wrong())?.into(),
            "float" => value.parse::<f32>().map_err(|_| wrong())?.into(),
            "bool" => value.parse::<bool>().map_err(|_| wrong())?.into(),
            "str" => value.into(),
            _ => return Err(wrong()),
        };
        Ok((key.to_owned(), value))
    };
    texts.iter().map(parse).collect()
}

/// The weights that the flags select.
pub(super) fn filtered(
    mut matrix: ImportanceMatrix,
    args: &QuantizeArgs,
) -> anyhow::Result<ImportanceMatrix> {
    let named = |name: &str, parts: &[String]| parts.iter().any(|part| name.contains(part));
    let (include, exclude) = (&args.include_weights, &args.exclude_weights);
    matrix
        .weights
        .retain(|name, _| (include.is_empty() || named(name, include)) && !named(name, exclude));
    if matrix.weights.is_empty() {
        bail!("the importance matrix has no entry for the selected weights");
    }
    Ok(matrix)
}

/// One line per tensor.
fn table(plan: &Plan) -> String {
    let mut text = String::new();
    let n = plan.tensors.len();
    for (i, tensor) in plan.tensors.iter().enumerate() {
        let dims: Vec<_> = tensor.dims.iter().map(u64::to_string).collect();
        let (name, dims) = (shown(tensor.name.as_bytes(), 127), dims.join(", "));
        let (source, size) = (tensor.source.name(), Bytes(tensor.len_bytes));
        let _ = write!(
            text,
            "[{:>4}/{n:>4}] {name:<32} [{dims:<14}] {source:>7}",
            i + 1
        );
        let _ = if tensor.is_copied() {
            writeln!(text, "            {size:>12}")
        } else {
            let (target, less) = (tensor.target.name(), Bytes(tensor.target_bytes()));
            writeln!(text, " -> {target:<7} {size:>12} -> {less:>12}")
        };
    }
    text
}

/// Prints the plan for each tensor, and warns of types that do not fit.
fn describe(plan: &Plan) -> anyhow::Result<()> {
    TextOutput::new().write(&table(plan))?;
    let fell = |tensor: &&PlannedTensor| tensor.wanted.is_some();
    for tensor in plan.tensors.iter().filter(fell) {
        if let Some(wanted) = tensor.wanted {
            note(format_args!(
                "warning: {}: rows of {} are not a multiple of the block size of {wanted} ({}); using {} instead",
                shown(tensor.name.as_bytes(), 127),
                tensor.row_len(),
                wanted.block_len(),
                tensor.target
            ));
        }
    }
    Ok(())
}

fn summary(plan: &Plan, words: &Words, dry_run: bool) {
    let (before, after) = plan.total_bytes();
    #[expect(clippy::cast_precision_loss, reason = "two digits are shown")]
    let bits = |bytes: u64| 8.0 * bytes as f64 / plan.n_elements() as f64;
    let verb = if dry_run { "would be" } else { "is" };
    note(format_args!(
        "{}: {} ({:.2} bits per weight) {verb} {} ({:.2} bits per weight)",
        words.output.display(),
        Bytes(before),
        bits(before),
        Bytes(after),
        bits(after)
    ));
}
