//! `sluice gate`: decides which frames of a stream should wake a model.

mod args;
mod bench;
mod decisions;
mod passed;
mod sink;
mod watch;

use crate::outcome::{Ending, UsageError};
use crate::ui::output::note;
use anyhow::{Context as _, bail};
use args::{InputArgs, OutputArgs, PolicyArgs, WorkerArgs};
use clap::{Args, Subcommand};
use sink::{FrameSink, Padded};
use sluice::core::gate::{GateConfig, Measure, NoiseFloor, Policy, Sense, Verdict};
use sluice::core::kernels::{FrameKernels, KernelTable};
use sluice::core::team::StopFlag;
use sluice::host::{interrupt, isa};
use sluice_gate::isolation::IsolationRequest;
use sluice_gate::source::{Interruptible, SignalError, Source, SourceChannel, SourceFormat};
use sluice_gate::{Backpressure, FrameObserver, Intake, ObserverConfig, Sink};
use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use watch::Watch;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice gate speech.wav --frame-len 320 --threshold 0.02 --hang-over 15 --plot speech.svg
  sluice gate speech.wav --noise-floor 3 --hang-over 15 --out passed.wav --decisions none
  arecord -f S16_LE -r 16000 -t raw | sluice gate - --format i16 --watch --threshold 0.02
  sluice gate 100.dat --format 212 --channels 2 --frame-len 36 --measure peak_to_peak --threshold 0.08
  sluice gate bench

docs/gate.md explains how to choose a policy. `sluice gate ./bench` reads a file named bench.";

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct GateArgs {
    #[command(subcommand)]
    command: Option<GateCommand>,
    /// File or pipe to read; - is stdin
    #[arg(value_name = "FILE", required = true)]
    file: Option<PathBuf>,
    #[command(flatten)]
    input: InputArgs,
    #[command(flatten)]
    policy: PolicyArgs,
    #[command(flatten)]
    output: OutputArgs,
    #[command(flatten)]
    worker: WorkerArgs,
}

#[derive(Debug, Subcommand)]
enum GateCommand {
    /// Measure frames per second and core cycles per frame, in cache and memory
    Bench(bench::BenchArgs),
}

pub(super) fn gate(args: &GateArgs) -> anyhow::Result<Ending> {
    if let Some(GateCommand::Bench(args)) = &args.command {
        return bench::bench(args);
    }
    let path = args.file.as_deref().unwrap_or_else(|| Path::new("-"));
    if let Some(plot) = &args.output.plot
        && !has_ending(plot, &["svg"])
    {
        let message = format!(
            "--plot {}: the plot is an SVG; use the extension .svg",
            plot.display()
        );
        return Err(UsageError(message).into());
    }
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let kernels = kernels(args.worker.isa.as_deref())?;
    let config = config(args)?;
    sluice::core::gate::Gate::new(config.gate, kernels)
        .map_err(|error| UsageError(error.to_string()))?;
    let file = open(path)?;
    check_outputs(&file, path, &args.output)?;
    let mut source = source(file, path, args, stop)?;
    let padded = Arc::new(OnceLock::new());
    let sink = FrameSink::new(args, source.rate(), Arc::clone(&padded))?;
    let (observer, mut intake) = FrameObserver::start(&config, kernels, sink)?;
    if args.worker.isolate {
        note(format_args!(
            "{}",
            observer.isolation().to_string().trim_end()
        ));
    }
    let watch = args.output.watch.then(Watch::new);
    let fed = feed(&mut source, &mut intake, &observer, stop, watch);
    if fed.is_ok() && !stop.is_set() && !args.input.keep_whole_frames {
        pad(&mut intake, &observer, &padded);
    }
    let finished = observer.finish();
    let mut sink = finished.sink.context("the gate's thread panicked")?;
    if let Some(error) = sink.error.take() {
        return Err(error);
    }
    let n_samples = fed.with_context(|| display(path))?;
    sink.end(args)?;
    summary(
        &sink.tally,
        &finished.counts,
        n_samples,
        source.rate(),
        padded.get(),
        args,
    );
    Ok(if stop.is_set() {
        Ending::Interrupted
    } else {
        Ending::Done
    })
}

/// Whether `path` has one of these extensions, in any case.
fn has_ending(path: &Path, endings: &[&str]) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    let ending = ending.unwrap_or_default();
    endings
        .iter()
        .any(|known| ending.eq_ignore_ascii_case(known))
}

/// The frame kernels of the instruction set `name`; by default the fastest.
fn kernels(name: Option<&str>) -> Result<&'static FrameKernels, UsageError> {
    let cpu = isa::features();
    let Some(name) = name.filter(|name| !name.is_empty()) else {
        return Ok(FrameKernels::best(cpu));
    };
    if let Some(kernels) = FrameKernels::by_name(name, cpu) {
        return Ok(kernels);
    }
    let table = isa::kernel_table(Some(name));
    table
        .map(KernelTable::frame)
        .map_err(|error| UsageError(error.to_string()))
}

fn display(path: &Path) -> String {
    if path == Path::new("-") {
        "stdin".into()
    } else {
        path.display().to_string()
    }
}

fn config(args: &GateArgs) -> Result<ObserverConfig, UsageError> {
    let policy = &args.policy;
    let unknown = || UsageError(format!("unknown measure {:?}", policy.measure));
    Ok(ObserverConfig {
        gate: GateConfig {
            wall: policy.wall,
            policy: Policy {
                measure: Measure::by_name(&policy.measure).ok_or_else(unknown)?,
                sense: if policy.below {
                    Sense::AtMost
                } else {
                    Sense::AtLeast
                },
                threshold: policy.threshold,
                hysteresis: policy.hysteresis,
                hang_over_frames: policy.hang_over,
                noise_floor: policy.noise_floor.map(|ratio| NoiseFloor {
                    ratio,
                    fall: policy.floor_fall,
                    rise: policy.floor_rise,
                }),
            },
            score: !policy.no_score,
            num_bins: policy.num_bins,
            l1_threshold: policy.l1_threshold,
            ema_alpha: policy.ema_alpha,
        },
        frame_len: args.input.frame_len as usize,
        capacity_frames: args.worker.capacity as usize,
        backpressure: match args.worker.on_full.as_str() {
            "drop-newest" => Backpressure::DropNewest,
            "drop-oldest" => Backpressure::DropOldest,
            _ => Backpressure::Block,
        },
        isolation: if args.worker.isolate {
            IsolationRequest::all()
        } else {
            IsolationRequest::none()
        },
        ..ObserverConfig::default()
    })
}

fn open(path: &Path) -> anyhow::Result<File> {
    let file = if path == Path::new("-") {
        // A separate handle: the standard library's is locked and buffered.
        File::from(io::stdin().as_fd().try_clone_to_owned().context("stdin")?)
    } else {
        File::open(path).with_context(|| format!("cannot open {}", path.display()))?
    };
    if file.metadata().is_ok_and(|found| found.is_dir()) {
        bail!("{} is a directory", path.display());
    }
    Ok(file)
}

/// # Errors
/// An output file is the input.
fn check_outputs(input: &File, path: &Path, output: &OutputArgs) -> anyhow::Result<()> {
    let Ok(input) = input.metadata() else {
        return Ok(());
    };
    for (flag, out) in [("--out", &output.out), ("--plot", &output.plot)] {
        let found = out.as_ref().and_then(|out| out.metadata().ok());
        if found.is_some_and(|out| (out.dev(), out.ino()) == (input.dev(), input.ino())) {
            bail!(
                "{flag} would replace the input {}: choose another file",
                display(path)
            );
        }
    }
    Ok(())
}

fn source(
    file: File,
    path: &Path,
    args: &GateArgs,
    stop: &'static StopFlag,
) -> anyhow::Result<Source> {
    let input = &args.input;
    let extension = path
        .extension()
        .and_then(|ext| ext.to_str())
        .unwrap_or_default();
    let extension = extension.to_ascii_lowercase();
    let channels = usize::from(input.channels.unwrap_or(1));
    let format = match input.format.as_deref().unwrap_or(&extension) {
        "wav" => SourceFormat::Wav,
        "f32" => SourceFormat::F32 { channels },
        "i16" => SourceFormat::I16 { channels },
        "212" => SourceFormat::Wfdb212 { channels },
        "csv" => SourceFormat::Csv {
            column: input.column.clone(),
        },
        _ => {
            let name = display(path);
            let error =
                format!("cannot infer the sample format from the name {name:?}: use --format");
            return Err(UsageError(error).into());
        }
    };
    check_input_flags(input, &format)?;
    let channel = input
        .channel
        .map_or(SourceChannel::Mean, SourceChannel::One);
    let reader = Interruptible::new(file, stop);
    Source::new(Box::new(reader), &format, channel).with_context(|| display(path))
}

/// # Errors
/// A flag does not apply to samples of this format.
fn check_input_flags(input: &InputArgs, format: &SourceFormat) -> Result<(), UsageError> {
    let is_csv = matches!(format, SourceFormat::Csv { .. });
    let needless = [
        (
            input.channels.is_some() && (is_csv || *format == SourceFormat::Wav),
            "--channels applies only to raw samples: WAV files state their number of channels, CSV files have \
             columns",
        ),
        (
            input.channel.is_some() && is_csv,
            "--channel applies only to WAV and raw samples: use --column for CSV files",
        ),
        (
            input.column.is_some() && !is_csv,
            "--column applies only to CSV files: use --channel for WAV and raw samples",
        ),
    ];
    match needless.iter().find(|(is_given, _)| *is_given) {
        Some((_, why)) => Err(UsageError((*why).to_owned())),
        None => Ok(()),
    }
}

/// Feeds the gate from `source`. Returns the number of samples read.
fn feed<S: Sink>(
    source: &mut Source,
    intake: &mut Intake,
    observer: &FrameObserver<S>,
    stop: &StopFlag,
    mut watch: Option<Watch>,
) -> Result<u64, SignalError> {
    let (mut samples, mut n) = (Vec::new(), 0);
    loop {
        samples.clear();
        let result = source.read(&mut samples);
        for part in samples.chunks(intake.recommended_push_size()) {
            match intake.push(part) {
                Ok(taken) => n += taken as u64,
                // The sink has reported the reason, or the reader has closed the pipe.
                Err(stopped) => return Ok(n + stopped.taken as u64),
            }
            if let Some(watch) = &mut watch {
                watch.update(&observer.snapshot());
            }
        }
        match result {
            // A sample cut off by an interruption is not an error.
            Err(_) if stop.is_set() => return Ok(n),
            Err(error) => return Err(error),
            Ok(more) if !more || stop.is_set() => return Ok(n),
            Ok(_) => {}
        }
    }
}

/// Completes the last frame with zeros.
fn pad<S: Sink>(intake: &mut Intake, observer: &FrameObserver<S>, padded: &OnceLock<Padded>) {
    let n_zeros = intake.lacking();
    if n_zeros == 0 {
        return;
    }
    // The frame in progress is counted as pushed, and is the last that will be judged.
    let counts = observer.snapshot().counts;
    let index = counts.pushed - counts.dropped - 1;
    // Known before the frame is complete, so before it is judged.
    let _first = padded.set(Padded { index, n_zeros });
    // It fails if the sink has ended, which has its own error.
    let _pushed = intake.push(&vec![0.0; n_zeros]);
}

fn summary(
    tally: &[u64; 3],
    counts: &sluice::core::gate::Telemetry,
    n_samples: u64,
    rate: Option<u32>,
    padded: Option<&Padded>,
    args: &GateArgs,
) {
    let of = |verdict: Verdict| tally[verdict as usize];
    let (active, hang_over) = (of(Verdict::Active), of(Verdict::HangOver));
    let (passed, silent) = (active + hang_over, of(Verdict::Silent));
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let percent = |n: u64| 100.0 * n as f64 / (passed + silent).max(1) as f64;
    #[expect(clippy::cast_precision_loss, reason = "for people to read")]
    let seconds = |n: u64| match rate {
        Some(rate) if rate > 0 => format!(" ({:.2} s)", n as f64 / f64::from(rate)),
        _ => String::new(),
    };
    let frame_len = u64::from(args.input.frame_len);
    note(format_args!(
        "{n_samples} samples{}, {} frames of {frame_len}",
        seconds(n_samples),
        passed + silent
    ));
    note(format_args!(
        "passed {passed} ({:.1}%){}: {active} active, {hang_over} of hang-over; skipped {silent} ({:.1}%){}",
        percent(passed),
        seconds(passed * frame_len),
        percent(silent),
        seconds(silent * frame_len)
    ));
    note(format_args!(
        "pushed {} = processed {} + queued {} + dropped {}{}",
        counts.pushed,
        counts.processed,
        counts.queued,
        counts.dropped,
        match (counts.queued_samples, padded) {
            (0, None) => String::new(),
            (0, Some(Padded { n_zeros, .. })) =>
                format!("; the last frame is padded with {n_zeros} zeros"),
            (n, _) if (n as u64) < frame_len =>
                format!("; the last {n} samples do not fill a frame"),
            (n, _) => format!("; stopped with {n} samples left"),
        }
    ));
}
