//! `sluice bench`: how fast a model runs here, compared with the limits of the machine.

pub(super) mod args;
mod by_layer;
mod choices;
mod in_turn;
mod lists;
mod measure;
mod plan;
mod plot;
mod print;
mod roofline;
mod row;
mod strict;
mod told;

use crate::flags::embedded;
use crate::flags::open::{load, with_activation};
use crate::outcome::{Ending, UsageError};
use crate::ui::output::{TextOutput, note};
use anyhow::{Context as _, bail};
use args::{BenchArgs, Format};
use core::time::Duration;
use measure::{Halt, Runner, Tokens, Watch};
use plan::Test;
use print::Printer;
use roofline::{ModelCost, Roofline};
use row::{ModelFacts, Row, RowPlacement};
use sluice::adapter::AdapterBlend;
use sluice::core::gguf::{Gguf, optional};
use sluice::core::kernels::KernelTable;
use sluice::core::model::LongRope;
use sluice::core::team::StopFlag;
use sluice::experts::ExpertStore;
use sluice::file::ModelFile;
use sluice::host::topology::Cores;
use sluice::host::{interrupt, isa};
use sluice::model::ModelSource;
use sluice::{Limits, Model, Team};
use sluice_make::quantize::FILE_TYPES;
use std::path::PathBuf;
use std::time::Instant;
use told::Script;

pub(super) fn bench(args: &BenchArgs) -> anyhow::Result<Ending> {
    if !args.told.is_empty() {
        return told::bench(args, &Script::read(&args.told)?);
    }
    let stop = interrupt::install().context("cannot handle Ctrl-C")?;
    let tables = tables(args)?;
    let cores = args.placement.cores(args.load_mode.ends_with("mlock"));
    let tests = args.tests(tables.len(), cores.default_workers())?;
    args.check_in_turn(&tests)?;
    if let Some(path) = &args.plot {
        plot::check(path)?;
    }
    // All files are opened before the first is measured.
    args.adapters.check()?;
    let fetched = args.hub.repo()?.map(|request| args.hub.fetch(&request));
    let paths = args.model.iter().cloned().map(Ok).chain(fetched);
    let open = |path: anyhow::Result<PathBuf>| {
        let file = ModelSource::open(&path?, args.mode())?;
        Ok(args.sparse.of(&with_activation(&file, args.activation)?)?)
    };
    let mut files: Vec<ModelSource> = paths.map(open).collect::<anyhow::Result<_>>()?;
    if files.is_empty() {
        files.push(ModelSource::of_file(embedded::open()?)?);
    }
    let mut bench = Bench {
        args,
        tables,
        cores,
        stop,
        out: TextOutput::new(),
        printer: Printer::new(args.output, &tests),
        err: args.output_err.map(|format| Printer::new(format, &tests)),
        rows: Vec::new(),
        n_done: 0,
        n_tests: tests.len() * files.len(),
    };
    bench.print(Printer::header)?;
    let mut ending = Ok(());
    for file in &files {
        ending = bench.model(file, &tests);
        if ending.is_err() {
            break;
        }
    }
    // Finished tests are printed and plotted even if a later one failed.
    bench.print(|printer| printer.footer())?;
    bench.finish()?;
    match ending {
        Ok(()) => Ok(Ending::Done),
        Err(Halt::Interrupted) => Ok(Ending::Interrupted),
        Err(Halt::Failed(error)) => Err(error),
    }
}

/// The selected kernel tables.
fn tables(args: &BenchArgs) -> Result<Vec<&'static KernelTable>, UsageError> {
    let names: Vec<Option<&str>> = match args.isa.iter().filter(|name| !name.is_empty()).count() {
        0 => vec![None],
        _ => args.isa.iter().map(|name| Some(name.as_str())).collect(),
    };
    let found = names.into_iter().map(isa::kernel_table);
    found
        .collect::<Result<_, _>>()
        .map_err(|error| UsageError(error.to_string()))
}

/// A run of the program.
struct Bench<'b> {
    args: &'b BenchArgs,
    tables: Vec<&'static KernelTable>,
    cores: Cores,
    stop: &'static StopFlag,
    out: TextOutput,
    printer: Printer,
    err: Option<Printer>,
    rows: Vec<Row>,
    n_done: usize,
    n_tests: usize,
}

/// A model, with what its rows report about it.
struct Subject {
    model: Model,
    /// Adapters of the sequences, in turn; empty for the model alone.
    adapters: Vec<AdapterBlend>,
    facts: ModelFacts,
}

impl Bench<'_> {
    /// All tests of a model.
    fn model(&mut self, opened: &ModelSource, tests: &[Test]) -> Result<(), Halt> {
        let facts = facts(opened.file(), opened.gguf());
        let team = self.team(self.cores.default_workers())?;
        let loaded = load(opened, self.args.file_use(), &team, self.stop).context("loading")?;
        // The previous engine's threads would keep spinning while the next one is measured.
        drop(team);
        let model = loaded.ok_or(Halt::Interrupted)?;
        let adapters = self.args.blends(&model)?;
        let subject = Subject {
            model,
            adapters,
            facts,
        };
        let mut rest = tests;
        while let Some(first) = rest.first() {
            let same = |test: &&Test| test.setting == first.setting;
            let (group, others) = rest.split_at(rest.iter().take_while(same).count());
            self.group(&subject, group)?;
            rest = others;
        }
        Ok(())
    }

    /// Tests of one configuration, on one engine.
    fn group(&mut self, subject: &Subject, tests: &[Test]) -> Result<(), Halt> {
        let setting = tests[0].setting;
        let n_workers = setting.n_threads as usize;
        let team = self.team(n_workers)?;
        let n_pinned = team.pinned_count();
        let limits = Limits {
            table: Some(self.tables[setting.isa]),
            kv_rotation: !self.args.no_kv_rotation,
            sparse: self.args.sparse.sparse,
            adapter_rank: subject
                .adapters
                .iter()
                .map(AdapterBlend::rank)
                .max()
                .unwrap_or(0),
            adapter_kinds: subject.adapters.iter().map(AdapterBlend::kinds).collect(),
            ..limits(subject, tests)?
        };
        let model = &subject.model;
        let mut session = model
            .session_on(&team, limits)
            .with_context(|| format!("{}: creating the session", model.name()))?;
        session.set_stop(self.stop);
        session.set_prefetch(self.args.prefetch());
        let mut runner = Runner {
            session,
            greedy: self.args.strict,
            tokens: Tokens::of(0),
            batch: Vec::with_capacity(limits.n_batch),
            depth: Vec::new(),
            adapters: subject.adapters.clone(),
            in_turn: self.args.in_turn,
            watch: Watch::default(),
        };
        let (type_k, type_v) = setting.kv;
        let cost = ModelCost::new(model.gguf(), model.config(), type_k, type_v);
        for test in tests {
            self.n_done += 1;
            let mut row = self.test(subject, test, &mut runner, &cost, n_pinned)?;
            if self.args.sparse.sparse.is_some() {
                row.layers = by_layer::measure(&mut runner, test, limits)?;
            }
            let write = |printer: &mut Printer| printer.row(&row);
            let text = write(&mut self.printer);
            self.out.write(&text)?;
            if let Some(printer) = &mut self.err {
                eprint_all(&write(printer));
            }
            self.rows.push(row);
        }
        Ok(())
    }

    fn test(
        &mut self,
        subject: &Subject,
        test: &Test,
        runner: &mut Runner,
        cost: &ModelCost,
        n_pinned: usize,
    ) -> Result<Row, Halt> {
        self.wait()?;
        let (n_done, n_tests, name) = (self.n_done, self.n_tests, test.name());
        let progress = |what: core::fmt::Arguments<'_>| {
            if self.args.progress {
                note(format_args!(
                    "sluice bench: benchmark {n_done}/{n_tests} {name}: {what}"
                ));
            }
        };
        if test.n_depth > 0 {
            progress(format_args!("depth run"));
        }
        runner.fill(test)?;
        if !self.args.no_warmup {
            progress(format_args!("warmup run"));
            runner.warm_up(test)?;
        }
        progress(format_args!("roofline probe"));
        let session = &runner.session;
        let memory = subject.model.probe_memory();
        let roofline = Roofline::measure(session.table(), session.team(), memory)
            .context("measuring the roofline")?;
        let repetitions = self.args.repetitions;
        let time = row::now();
        let before = subject.model.experts().map(ExpertStore::stats);
        let samples = runner.measure(test, repetitions, |i| {
            progress(format_args!("run {}/{repetitions}", i + 1));
        })?;
        let experts = subject.model.experts().zip(before);
        let experts = experts.map(|(experts, before)| experts.stats().since(&before));
        let (sum, limit_ns) = measure::limit(test, cost, &roofline);
        Ok(Row {
            test: *test,
            model: subject.facts.clone(),
            isa: runner.session.table().name(),
            load_mode: self.args.load_mode.clone(),
            time,
            samples,
            layers: Vec::new(),
            experts,
            roofline,
            limit_ns,
            bytes: sum.bytes,
            ops: sum.ops(),
            n_pinned,
            placement: RowPlacement::of(&self.args.placement),
        })
    }

    /// Waits for `--delay`, in slices short enough to react to Ctrl-C.
    fn wait(&self) -> Result<(), Halt> {
        let until = Instant::now() + Duration::from_secs(self.args.delay.into());
        loop {
            if self.stop.is_set() {
                return Err(Halt::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::park_timeout(left.min(Duration::from_millis(100)));
        }
    }

    /// Starts the requested number of threads, including this one.
    fn team(&self, n: usize) -> anyhow::Result<Team> {
        self.cores.release_current_thread();
        let team = self.args.placement.team(n, &self.cores)?;
        let n_pinned = team.pinned_count();
        if self.args.strict && n_pinned < n {
            bail!(
                "--strict needs each thread pinned to its own core, but only {n_pinned} of {n} are: use fewer \
                 threads (-t) or more cores (taskset -c)"
            );
        }
        Ok(team)
    }

    fn print(&mut self, part: impl Fn(&Printer) -> String) -> anyhow::Result<()> {
        self.out.write(&part(&self.printer))?;
        if let Some(printer) = &self.err {
            eprint_all(&part(printer));
        }
        Ok(())
    }

    /// Prints what follows the results: probes, the report of a strict run, the plot.
    fn finish(&mut self) -> anyhow::Result<()> {
        if self.args.output == Format::Md
            && let Some(row) = self.rows.last()
        {
            let Roofline {
                read_gb_per_s,
                int8_gops,
                bf16_gops,
                f32_gops,
            } = row.roofline;
            self.out.write(&format!(
                "probe: {read_gb_per_s:.1} GB/s read; int8 {int8_gops:.0}, bf16 {bf16_gops:.0}, \
                 f32 {f32_gops:.0} GOP/s ({}, {} threads, last row)\n",
                row.isa, row.test.setting.n_threads
            ))?;
        }
        self.args.placement.say_memory();
        if self.args.strict {
            for row in &self.rows {
                note(format_args!(
                    "{}",
                    strict::report(row, self.args.repetitions)
                ));
            }
        }
        for row in &self.rows {
            if let Some(line) = in_turn::report(&row.test.name(), &row.samples.turns) {
                note(format_args!("{line}"));
            }
        }
        match &self.args.plot {
            Some(path) if !self.rows.is_empty() => plot::write(path, &self.rows),
            _ => Ok(()),
        }
    }
}

fn eprint_all(text: &str) {
    let text = text.strip_suffix('\n').unwrap_or(text);
    note(format_args!("{text}"));
}

/// A session that fits all of `tests`.
fn limits(subject: &Subject, tests: &[Test]) -> anyhow::Result<Limits> {
    /// Positions per page of the KV cache.
    const PAGE: u64 = 64;
    let most = |of: fn(&Test) -> u64| tests.iter().map(of).max().unwrap_or(1);
    let n_ctx = most(|test| {
        let each = test.n_ctx_each().next_multiple_of(PAGE) + PAGE;
        each * u64::from(test.n_parallel)
    });
    let positions = most(Test::n_ctx_each);
    let trained = subject.model.config().n_ctx_train as u64;
    if positions > trained {
        note(format_args!(
            "warning: {}: the test uses {positions} positions, but the model was trained on {trained}",
            subject.model.name()
        ));
    }
    let size = |n: u64| usize::try_from(n).context("the test does not fit in memory");
    let n_seq = size(most(|test| test.n_parallel.into()))?;
    let has_depth = tests.iter().any(|test| test.n_depth > 0);
    Ok(Limits {
        n_batch: size(most(|test| measure::step_sizes(test).0.into()))?,
        n_outputs: size(most(|test| measure::step_sizes(test).1.into()))?,
        n_seq,
        n_checkpoints: if has_depth { n_seq } else { 0 },
        types: Some(tests[0].setting.kv),
        // Nothing is read again while it is measured.
        longrope: match positions > subject.model.config().rope_scaling.n_ctx_orig as u64 {
            true => LongRope::Long,
            false => LongRope::Short,
        },
        n_ctx: size(n_ctx)?,
        ..Limits::default()
    })
}

fn facts(file: &ModelFile, gguf: &Gguf<'_>) -> ModelFacts {
    let n_params: u64 = gguf
        .tensors()
        .map(|tensor| tensor.dims.iter().product::<u64>())
        .sum();
    let arch = gguf.str("general.architecture").unwrap_or("unknown");
    let number = optional(gguf.u32("general.file_type")).ok().flatten();
    let file_type = FILE_TYPES.iter().find(|known| Some(known.number) == number);
    let file_type = file_type.map_or("", |known| known.name);
    let params = print::n_params(n_params).replace(' ', "");
    let description = format!(
        "{} {params} {file_type}",
        crate::ui::format::shown(arch.as_bytes(), 20)
    );
    ModelFacts {
        filename: file.name().to_owned(),
        description: description.trim_end().to_owned(),
        size: gguf.tensors().map(|tensor| tensor.len_bytes).sum(),
        n_params,
    }
}
