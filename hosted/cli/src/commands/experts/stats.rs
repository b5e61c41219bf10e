//! `sluice experts stats`: summarises a trace.

use super::table::Table;
use super::{TraceArgs, percent};
use crate::outcome::Ending;
use crate::ui::output::{TextOutput, note};
use clap::Args;
use core::fmt::Write as _;
use serde_json::json;
use sluice_experts::{LayerFigures, Rate, Steps, TraceFigures};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice experts stats trace.jsonl
  sluice experts stats trace.jsonl --experts 128 --profile-out profile.json
  sluice experts stats trace.jsonl --json > figures.json

A profile holds the number of uses of each expert, by id: layer * experts + expert.";

#[derive(Debug, Args)]
pub(crate) struct StatsArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Name the N most used experts of each layer
    #[arg(long, value_name = "N", default_value_t = 5)]
    top: usize,
    /// Write the number of uses of each expert as JSON
    #[arg(long, value_name = "FILE")]
    profile_out: Option<PathBuf>,
    /// Overwrite the profile if it exists
    #[arg(long, requires = "profile_out")]
    overwrite: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn stats(args: &StatsArgs) -> anyhow::Result<Ending> {
    let steps = args.trace.read()?;
    if let Some(path) = &args.profile_out {
        let profile = steps.profile();
        profile.write(path, args.overwrite)?;
        note(format_args!(
            "{}: uses of {} experts, ids of {} a layer",
            path.display(),
            profile.iter().len(),
            steps.n_expert()
        ));
    }
    let figures = TraceFigures::of(&steps);
    let text = match args.json {
        true => format!("{:#}\n", object(args, &steps, &figures)),
        false => described(args, &steps, &figures),
    };
    TextOutput::new().write(&text)?;
    Ok(Ending::Done)
}

fn object(args: &StatsArgs, steps: &Steps, figures: &TraceFigures) -> serde_json::Value {
    let hit_rate = |rate: Rate| (rate.n_uses > 0).then(|| rate.value());
    let layer = |layer: &LayerFigures| {
        let used = |&(expert, n_uses): &(u32, u64)| json!({"expert": expert, "n_uses": n_uses});
        json!({
            "layer": layer.layer,
            "n_steps": layer.n_steps,
            "n_seen": layer.uses.len(),
            "entropy_bits": layer.entropy_bits,
            "top_tenth": layer.top_tenth,
            "hit_rate": hit_rate(layer.recorded),
            "top": layer.uses.iter().take(args.top).map(used).collect::<Vec<_>>(),
        })
    };
    let working_sets = figures.working_sets.iter();
    let working_sets = working_sets
        .map(|set| json!({"n_tokens": set.n_tokens, "mean": set.mean, "most": set.most}));
    json!({
        "trace": args.trace.trace,
        "n_tokens": figures.n_tokens,
        "n_steps": steps.len(),
        "top_k": steps.top_k(),
        "n_layers": steps.layers().len(),
        "n_expert": steps.n_expert(),
        "n_experts": steps.n_experts(),
        "n_seen": figures.n_seen(),
        "entropy_bits": figures.entropy_bits(),
        "top_tenth": figures.top_tenth(),
        "hit_rate": hit_rate(figures.recorded),
        "n_predicted": figures.n_predicted,
        "working_sets": working_sets.collect::<Vec<_>>(),
        "layers": figures.layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

fn described(args: &StatsArgs, steps: &Steps, figures: &TraceFigures) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<14} {value}");
    };
    let (n_seen, n_experts) = (figures.n_seen(), steps.n_experts());
    let n_expert = steps.n_expert();
    let by_ids = match args.trace.experts {
        Some(_) => "",
        None => ", inferred from the largest id",
    };
    line("trace", &args.trace.name());
    line("tokens", &figures.n_tokens.to_string());
    line(
        "steps",
        &format!("{}, of {} experts", steps.len(), steps.top_k()),
    );
    line(
        "layers",
        &format!("{}, of {n_expert} experts{by_ids}", steps.layers().len()),
    );
    line(
        "experts seen",
        &format!(
            "{n_seen} of {n_experts} ({})",
            percent(part(n_seen, n_experts))
        ),
    );
    let (entropy, all) = (figures.entropy_bits(), f64::from(n_expert).log2());
    line(
        "entropy",
        &format!("{entropy:.2} of {all:.2} bits, averaged over layers"),
    );
    let tenth = percent(figures.top_tenth());
    line(
        "skew",
        &format!("the most used tenth of a layer's experts has {tenth} of its uses"),
    );
    line("hits recorded", &recorded(figures.recorded));
    line("predictions", &figures.n_predicted.to_string());
    let mut table = Table::default();
    table.row(["tokens in a row", "experts", "of all", "most"]);
    for set in &figures.working_sets {
        #[expect(clippy::cast_precision_loss, reason = "counts of experts are small")]
        let share = set.mean / n_experts as f64;
        table.row([
            set.n_tokens.to_string(),
            format!("{:.1}", set.mean),
            percent(share),
            set.most.to_string(),
        ]);
    }
    let _ = write!(text, "\n{}\n{}", table.text(), layers(args, figures).text());
    text
}

fn layers(args: &StatsArgs, figures: &TraceFigures) -> Table {
    let mut table = Table::default();
    table.ends_in_words = true;
    table.row([
        "layer",
        "steps",
        "seen",
        "entropy",
        "top tenth",
        "hits",
        "most used",
    ]);
    for layer in &figures.layers {
        let total: u64 = layer.uses.iter().map(|&(_, n)| n).sum();
        let rate = |&(expert, n_hits): &(u32, u64)| {
            let share = Rate {
                n_hits,
                n_uses: total,
            };
            format!("{expert} ({})", percent(share.value()))
        };
        let top: Vec<_> = layer.uses.iter().take(args.top).map(rate).collect();
        table.row([
            layer.layer.to_string(),
            layer.n_steps.to_string(),
            layer.uses.len().to_string(),
            format!("{:.2}", layer.entropy_bits),
            percent(layer.top_tenth),
            match layer.recorded.n_uses {
                0 => "-".to_owned(),
                _ => percent(layer.recorded.value()),
            },
            top.join(", "),
        ]);
    }
    table
}

fn recorded(rate: Rate) -> String {
    match rate.n_uses {
        0 => "none".to_owned(),
        n => format!("{} ({} of {n})", percent(rate.value()), rate.n_hits),
    }
}

#[expect(clippy::cast_precision_loss, reason = "counts of experts are small")]
fn part(n: usize, of: usize) -> f64 {
    n as f64 / of as f64
}
