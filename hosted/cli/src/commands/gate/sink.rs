//! What is written per frame: a line, the frame if it passes, its part of the plot.

use super::GateArgs;
use super::args::OutputArgs;
use super::decisions::Decisions;
use super::passed::PassedFile;
use core::ops::ControlFlow;
use sluice::core::gate::Decision;
use sluice_gate::Sink;
use sluice_gate::plot::Plot;
use std::sync::{Arc, OnceLock};

/// The last frame, if the stream ended within it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Padded {
    pub(super) index: u64,
    /// Zeros at its end.
    pub(super) n_zeros: usize,
}

/// Writes everything that is written per frame, on the gate's thread.
#[derive(Debug)]
pub(super) struct FrameSink {
    decisions: Decisions,
    passed: Option<PassedFile>,
    plot: Option<Plot>,
    /// Frames per verdict.
    pub(super) tally: [u64; 3],
    /// The last frame, once it is known to be short.
    padded: Arc<OnceLock<Padded>>,
    /// The error that ended it.
    pub(super) error: Option<anyhow::Error>,
}

impl FrameSink {
    /// Creates the files. `rate` is the signal's; `padded` is set once the last frame is known to be short.
    pub(super) fn new(
        args: &GateArgs,
        rate: Option<u32>,
        padded: Arc<OnceLock<Padded>>,
    ) -> anyhow::Result<Self> {
        let output = &args.output;
        let passed = output.out.as_deref();
        let passed = passed.map(|path| PassedFile::create(path, output.overwrite, rate));
        let plot = output.plot.as_deref();
        let plot = plot.map(|path| Plot::create(path, output.overwrite, args.input.frame_len));
        Ok(Self {
            decisions: Decisions::new(decisions_format(output), args.policy.measure.clone()),
            passed: passed.transpose()?,
            plot: plot.transpose()?,
            tally: [0; 3],
            padded,
            error: None,
        })
    }

    fn frame(&mut self, index: u64, frame: &[f32], decision: &Decision) -> anyhow::Result<()> {
        self.tally[decision.verdict as usize] += 1;
        let padded = self.padded.get().filter(|padded| padded.index == index);
        let n_zeros = padded.map_or(0, |padded| padded.n_zeros);
        if let Some(plot) = &mut self.plot {
            plot.add(frame, decision);
        }
        if let Some(passed) = &mut self.passed
            && decision.verdict.passes()
        {
            passed.write(&frame[..frame.len() - n_zeros])?;
        }
        self.decisions.write(index, decision, n_zeros)
    }

    fn go_on(&mut self, result: anyhow::Result<()>) -> ControlFlow<()> {
        if let Err(error) = result {
            self.error = Some(error);
            return ControlFlow::Break(());
        }
        if self.decisions.is_closed() && self.passed.is_none() && self.plot.is_none() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }

    /// Completes the files.
    pub(super) fn end(&mut self, args: &GateArgs) -> anyhow::Result<()> {
        self.decisions.end()?;
        if let Some(passed) = self.passed.take() {
            passed.finish()?;
        }
        if let Some(plot) = self.plot.take() {
            plot.finish(&args.policy.measure)?;
        }
        Ok(())
    }
}

impl Sink for FrameSink {
    fn passed(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        let result = self.frame(index, frame, decision);
        self.go_on(result)
    }

    fn silent(&mut self, index: u64, frame: &[f32], decision: &Decision) -> ControlFlow<()> {
        self.passed(index, frame, decision)
    }
}

fn decisions_format(output: &OutputArgs) -> &str {
    let default = if output.watch { "none" } else { "csv" };
    output.decisions.as_deref().unwrap_or(default)
}
