//! `sluice quantize --bits-per-weight`: a type for every weight, chosen by measured error.

use crate::commands::quantize::{QuantizeArgs, filtered, tensor_type};
use crate::flags::reading::Chunks;
use crate::outcome::UsageError;
use crate::ui::progress::WorkBar;
use anyhow::Context as _;
use core::str::FromStr as _;
use sluice::core::gguf::Gguf;
use sluice::core::kernels::GgmlType;
use sluice::core::kernels::quantize::can_quantize;
use sluice::core::team::StopFlag;
use sluice::evaluate::EvaluateError;
use sluice::file::{LoadMode, ModelFile};
use sluice::host::isa;
use sluice::model::{LoadError, LoadOptions, ModelSource};
use sluice::{Limits, Team};
use sluice_make::quantize::{
    BUDGET_LANES, BUDGET_TYPES, Bench, Budget, Collector, FileType, ImportanceMatrix, Plan,
    QuantizeFileError, QuantizeRequest, Runner, SensitivityError, apply_sensitivities,
};
use std::path::Path;

/// Measures errors and chooses types within a budget.
#[derive(Debug)]
pub(super) struct Chooser<'c> {
    pub(super) args: &'c QuantizeArgs,
    pub(super) file: &'c ModelFile,
    pub(super) gguf: &'c Gguf<'c>,
    pub(super) stop: &'static StopFlag,
    pub(super) team: &'c Team,
}

impl Chooser<'_> {
    /// `request` with a type for every weight. If there is a text but no importance matrix, one is
    /// collected from the text. `None` after Ctrl-C.
    pub(super) fn choose(
        self,
        request: &QuantizeRequest,
        bits: f64,
        importance: &mut Option<ImportanceMatrix>,
    ) -> anyhow::Result<Option<QuantizeRequest>> {
        interrupted(self.measured(request, bits, importance))
    }

    fn measured(
        self,
        request: &QuantizeRequest,
        bits: f64,
        importance: &mut Option<ImportanceMatrix>,
    ) -> anyhow::Result<QuantizeRequest> {
        let Self {
            args,
            file,
            gguf,
            stop,
            team,
        } = self;
        let all = QuantizeRequest {
            pure: true,
            ..QuantizeRequest::new(FileType::from_str("Q8_0").expect("it is a known type"))
        };
        let all = QuantizeRequest {
            leave_output: request.leave_output,
            ..all
        };
        let plan = Plan::new(gguf, &all).with_context(|| file.name().to_owned())?;
        let table =
            isa::kernel_table(args.engine.isa()).map_err(|error| UsageError(error.to_string()))?;
        let runner = Runner {
            team: team.clone(),
            table: Some(table),
            stop: stop.into(),
        };
        let read = match &args.calibrate {
            Some(path) => {
                let opened = ModelSource::open(file.name(), LoadMode::Read)?;
                let n_chunks = args.calibrate_chunks as usize * IMPORTANCE_CHUNKS;
                let chunks = Chunks::read(&opened, path, 256, n_chunks)?;
                Some((opened, chunks))
            }
            None => None,
        };
        if let (Some((opened, chunks)), None) = (&read, &importance) {
            let mut matrix = collect(opened, &chunks.slices(), &runner)?;
            let path = args.calibrate.as_deref().unwrap_or(Path::new(""));
            matrix.datasets.push(path.display().to_string());
            *importance = Some(filtered(matrix, args)?);
        }
        let importance = importance.as_ref();
        let mut bar = WorkBar::new("measuring errors", plan.tensors.len() as u64);
        let update = |done| bar.update(done);
        let types = budget_types(args, request.into_slc)?;
        let mut budget = Budget::measure(file, &plan, importance, &types, team, stop, update)?;
        drop(bar);
        for tensor in &plan.tensors {
            if let Some(ty) = request.asked(&tensor.name) {
                tensor.check_width(ty)?;
                budget.fix(tensor, ty);
            }
        }
        if let Some((opened, chunks)) = &read {
            let mut bar = WorkBar::new("measuring sensitivities", budget.choices.len() as u64);
            let mut slices = chunks.slices();
            slices.truncate(args.calibrate_chunks as usize);
            let mut bench = Bench::new(opened.clone(), slices, runner)?;
            let update = |done| bar.update(done);
            apply_sensitivities(&mut bench, &plan, importance, &mut budget, update)?;
        } else {
            budget.assume_sensitivities();
        }
        Ok(QuantizeRequest {
            chosen: budget.choose(bits)?,
            // The errors of the smallest types were measured, not assumed to be small.
            has_importance: true,
            ..request.clone()
        })
    }
}

/// Importance collected while the model reads `chunks`.
fn collect(
    opened: &ModelSource,
    chunks: &[&[u32]],
    runner: &Runner,
) -> anyhow::Result<ImportanceMatrix> {
    let options = LoadOptions {
        stop: Some(&runner.stop),
        ..LoadOptions::default()
    };
    let model = opened.load_with(&runner.team, options)?;
    let len = chunks.first().map_or(1, |chunk| chunk.len());
    let limits = Limits {
        table: runner.table,
        ..Limits::for_reading(model.config(), len, true)
    };
    let mut session = model.session_on(&runner.team, limits)?;
    session.set_stop(runner.stop.clone());
    let collector = Collector::new(model.config(), false);
    session.read(chunks, len - 1, Some(&collector), |_, _, _| {})?;
    let mut matrix = ImportanceMatrix::default();
    collector.add_to(&mut matrix);
    matrix.chunk_count = u32::try_from(chunks.len()).unwrap_or(u32::MAX);
    matrix.chunk_size = u32::try_from(len).unwrap_or(u32::MAX);
    Ok(matrix)
}

/// `None` if Ctrl-C was the reason.
fn interrupted<T>(result: anyhow::Result<T>) -> anyhow::Result<Option<T>> {
    let Err(error) = result else {
        return result.map(Some);
    };
    let stopped = error.chain().any(|cause| {
        matches!(cause.downcast_ref(), Some(QuantizeFileError::Stopped))
            || matches!(cause.downcast_ref(), Some(EvaluateError::Stopped))
            || matches!(cause.downcast_ref(), Some(LoadError::Stopped))
            || matches!(
                cause.downcast_ref(),
                Some(
                    SensitivityError::Quantize(QuantizeFileError::Stopped)
                        | SensitivityError::Evaluate(EvaluateError::Stopped)
                        | SensitivityError::Load(LoadError::Stopped)
                )
            )
    });
    if stopped { Ok(None) } else { Err(error) }
}

fn budget_types(args: &QuantizeArgs, into_slc: bool) -> Result<Vec<GgmlType>, UsageError> {
    if args.budget_types.is_empty() {
        let lanes: &[GgmlType] = if into_slc { &BUDGET_LANES } else { &[] };
        return Ok([&BUDGET_TYPES, lanes].concat());
    }
    let parse = |name: &String| match tensor_type(name)? {
        ty if can_quantize(ty) => Ok(ty),
        ty => Err(UsageError(format!(
            "quantizing to {ty} is not supported, only reading it"
        ))),
    };
    args.budget_types.iter().map(parse).collect()
}

/// The text is read once for importance, but once per weight for sensitivity, so importance can use
/// more of it. From few tokens it would be noisy.
const IMPORTANCE_CHUNKS: usize = 8;
