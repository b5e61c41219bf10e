//! `sluice experts replay`: simulates caches on a trace, and measures recorded predictions.

use super::table::Table;
use super::{TraceArgs, percent};
use crate::flags::names::one_of;
use crate::outcome::{Ending, UsageError};
use crate::ui::output::TextOutput;
use clap::builder::PossibleValuesParser;
use clap::{Args, value_parser};
use core::fmt::Write as _;
use core::str::FromStr;
use serde_json::{Value, json};
use sluice::experts::policy::{EvictionPolicy, ExpertProfile};
use sluice::experts::trace::IDS_MAX;
use sluice_experts::{
    CUTS, CacheReport, CacheSetup, Hits, Pool, Rate, Recall, Steps, cuts, recalls, replay as run,
};
use std::path::PathBuf;

pub(super) const EXAMPLES: &str = "\
Examples:
  sluice experts replay trace.jsonl
  sluice experts replay trace.jsonl --slots 768,1536 --policy lru,heat
  sluice experts replay trace.jsonl --share 25% --policy static --profile profile.json --layers
  sluice experts replay trace.jsonl --share 10%,50% --json > replay.json

Numbers in brackets are relative to the optimum, which knows the future: of the experts that a layer does not need,
it evicts the one that is needed last. With bypass, an expert may be used without a slot. A cache that holds a
given share of the experts has a hit rate of that share if experts are chosen uniformly at random.

Predictions are measured if the trace has any, as those of --expert-trace do.";

#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    trace: TraceArgs,
    /// Set the cache sizes in slots
    ///
    /// By default 10%, 25%, 50% and 75% of all experts.
    #[arg(long, value_name = "N,..", value_delimiter = ',', conflicts_with = "share",
        value_parser = value_parser!(u32).range(1..=i64::from(IDS_MAX)))]
    slots: Vec<u32>,
    /// Set the cache sizes as shares of all experts
    #[arg(long, value_name = "N%,..", value_delimiter = ',')]
    share: Vec<Share>,
    /// Select the eviction policies
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_values_t = EvictionPolicy::ALL,
        value_parser = one_of::<EvictionPolicy>(EvictionPolicy::ALL.map(EvictionPolicy::name)))]
    policy: Vec<EvictionPolicy>,
    /// Set the profile from which the policy static fills half the slots
    ///
    /// By default the trace's own profile, which looks ahead.
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Share the slots among all layers or divide them
    ///
    /// In a run all layers share them.
    #[arg(long, value_name = "WHAT", default_value = "all",
        value_parser = PossibleValuesParser::new(["all", "layer"]))]
    pool: String,
    /// Print figures of each layer as well
    #[arg(long)]
    layers: bool,
    /// Print JSON, which includes figures of each layer
    #[arg(long)]
    json: bool,
}

/// A share of all experts, above 0 and at most 1.
#[derive(Clone, Copy, Debug)]
struct Share(f64);

impl FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_suffix('%').and_then(|text| text.parse().ok());
        let percent = number.filter(|n| *n > 0.0 && *n <= 100.0);
        let share = percent.map(|percent: f64| Self(percent / 100.0));
        share.ok_or_else(|| {
            "expected a number above 0 and up to 100 with a per cent sign, such as 25%".into()
        })
    }
}

impl Share {
    #[expect(clippy::cast_precision_loss, reason = "counts of experts are small")]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a part of a count of experts"
    )]
    fn of(self, n_experts: usize) -> usize {
        (self.0 * n_experts as f64).ceil() as usize
    }
}

pub(super) fn replay(args: &ReplayArgs) -> anyhow::Result<Ending> {
    if args.profile.is_some() && !args.policy.contains(&EvictionPolicy::Static) {
        let message = "--profile applies only to the policy static: add --policy static";
        return Err(UsageError(message.into()).into());
    }
    let profile = args
        .profile
        .as_deref()
        .map(ExpertProfile::read)
        .transpose()?;
    let steps = args.trace.read()?;
    let pool = match &*args.pool {
        "layer" => Pool::Layer,
        _ => Pool::All,
    };
    let mut caches = Vec::new();
    for n_slots in slots(args, &steps, pool) {
        let setup = CacheSetup { n_slots, pool };
        caches.push(run(&steps, setup, &args.policy, profile.as_ref())?);
    }
    let recalls = recalls(&steps);
    let text = match args.json {
        true => format!("{:#}\n", object(args, &steps, &caches, recalls.as_deref())),
        false => described(args, &steps, &caches, recalls.as_deref()),
    };
    TextOutput::new().write(&text)?;
    Ok(Ending::Done)
}

/// The sizes of the caches.
fn slots(args: &ReplayArgs, steps: &Steps, pool: Pool) -> Vec<usize> {
    let n_experts = steps.n_experts();
    if !args.slots.is_empty() {
        return args.slots.iter().map(|&n| n as usize).collect();
    }
    if !args.share.is_empty() {
        return args.share.iter().map(|share| share.of(n_experts)).collect();
    }
    // By default only sizes that are large enough.
    let n_pools = if pool == Pool::Layer {
        steps.layers().len()
    } else {
        1
    };
    let least = steps.widest() * n_pools;
    let all = SHARES.map(|share| Share(share).of(n_experts));
    let mut slots: Vec<usize> = all.into_iter().filter(|&n| n >= least).collect();
    if slots.is_empty() {
        slots.push(least);
    }
    slots.dedup();
    slots
}

const SHARES: [f64; 4] = [0.1, 0.25, 0.5, 0.75];

fn object(
    args: &ReplayArgs,
    steps: &Steps,
    caches: &[CacheReport],
    recalls: Option<&[Recall]>,
) -> Value {
    json!({
        "trace": args.trace.trace,
        "n_steps": steps.len(),
        "top_k": steps.top_k(),
        "n_layers": steps.layers().len(),
        "n_expert": steps.n_expert(),
        "n_experts": steps.n_experts(),
        "pool": args.pool,
        "profile": args.profile,
        "caches": caches.iter().map(|cache| cache_object(steps, cache)).collect::<Vec<_>>(),
        "predictions": recalls.map(|layers| predictions_object(steps, layers)),
    })
}

fn cache_object(steps: &Steps, cache: &CacheReport) -> Value {
    let best = cache.optimum.total();
    let hits = |hits: &Hits| {
        let layers = steps.layers().iter().zip(&hits.layers);
        let layers = layers.map(|(layer, rate)| json!({"layer": layer, "hit_rate": rate.value()}));
        let total = hits.total();
        json!({
            "hit_rate": total.value(),
            "of_optimum": of_optimum(total, best),
            "n_hits": total.n_hits,
            "n_uses": total.n_uses,
            "layers": layers.collect::<Vec<_>>(),
        })
    };
    let policies = cache.policies.iter();
    let policies = policies.map(|found| (found.policy.to_string(), hits(&found.hits)));
    json!({
        "n_slots": cache.setup.n_slots,
        "slots_per_expert": cache.slots_per_expert,
        "optimum": hits(&cache.optimum),
        "optimum_with_bypass": hits(&cache.bypass),
        "policies": policies.collect::<serde_json::Map<_, _>>(),
    })
}

fn predictions_object(steps: &Steps, recalls: &[Recall]) -> Value {
    let figures = |recall: &Recall| {
        json!({
            "recall": (0..CUTS).map(|cut| recall.recall(cut)).collect::<Vec<_>>(),
            "precision": (0..CUTS).map(|cut| recall.precision(cut)).collect::<Vec<_>>(),
        })
    };
    let layers = steps.layers().iter().zip(recalls);
    let layers = layers.map(|(layer, recall)| {
        let mut object = figures(recall);
        object["layer"] = json!(layer);
        object
    });
    let mut object = figures(&Recall::total(recalls));
    object["n_predicted"] = json!(cuts(steps.top_k()));
    object["layers"] = layers.collect();
    object
}

fn described(
    args: &ReplayArgs,
    steps: &Steps,
    caches: &[CacheReport],
    recalls: Option<&[Recall]>,
) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: &str| {
        let _ = writeln!(text, "{name:<14} {value}");
    };
    let (n_layers, n_expert) = (steps.layers().len(), steps.n_expert());
    line("trace", &args.trace.name());
    let size = format!("{}, of {} experts", steps.len(), steps.top_k());
    line("steps", &format!("{size}; {n_layers} layers of {n_expert}"));
    let shared = match &*args.pool {
        "layer" => "the slots are divided among the layers",
        _ => "all layers share one pool of slots",
    };
    line(
        "cache",
        &format!("{shared}; the experts of a step are needed together"),
    );
    if args.policy.contains(&EvictionPolicy::Static) {
        let from = match &args.profile {
            Some(path) => format!("the counts in {}", path.display()),
            None => "the trace's own counts, so it looks ahead".to_owned(),
        };
        line(
            "static",
            &format!("half the slots hold the most used experts: {from}"),
        );
    }
    text += "\nhit rate\n";
    text += &cache_table(args, caches).text();
    if let Some(layers) = recalls {
        text += "\nrecorded predictions, by number of experts\n";
        text += &recall_table(steps, &Recall::total(layers)).text();
    }
    if args.layers {
        for cache in caches {
            let _ = write!(text, "\nhit rate by layer, {} slots\n", cache.setup.n_slots);
            text += &cache_layers(steps, cache).text();
        }
        if let Some(layers) = recalls {
            let _ = write!(text, "\nrecall by layer, {} predictions\n", steps.top_k());
            text += &recall_layers(steps, layers).text();
        }
    }
    text
}

fn cache_table(args: &ReplayArgs, caches: &[CacheReport]) -> Table {
    let mut table = Table::default();
    let first = ["slots", "of all", "optimum", "with bypass"].map(str::to_owned);
    table.row(
        first
            .into_iter()
            .chain(args.policy.iter().map(EvictionPolicy::to_string)),
    );
    for cache in caches {
        let best = cache.optimum.total();
        let first = [
            cache.setup.n_slots.to_string(),
            percent(cache.slots_per_expert),
            percent(best.value()),
            percent(cache.bypass.total().value()),
        ];
        let policies = cache.policies.iter().map(|found| {
            let rate = found.hits.total();
            let part = of_optimum(rate, best);
            let part = part.map_or_else(|| "-".to_owned(), |part| format!("{part:.3}"));
            format!("{} ({part})", percent(rate.value()))
        });
        table.row(first.into_iter().chain(policies));
    }
    table
}

/// `None` if the optimum has no hits either.
fn of_optimum(rate: Rate, best: Rate) -> Option<f64> {
    (best.n_hits > 0).then(|| rate.value() / best.value())
}

fn cache_layers(steps: &Steps, cache: &CacheReport) -> Table {
    let mut table = Table::default();
    let names = cache.policies.iter().map(|found| found.policy.to_string());
    table.row(
        ["layer".to_owned(), "optimum".to_owned()]
            .into_iter()
            .chain(names),
    );
    for (i, layer) in steps.layers().iter().enumerate() {
        let policies = cache.policies.iter().map(|found| &found.hits);
        let all = core::iter::once(&cache.optimum).chain(policies);
        let rates = all.map(|hits| percent(hits.layers[i].value()));
        table.row(core::iter::once(layer.to_string()).chain(rates));
    }
    table
}

fn recall_table(steps: &Steps, total: &Recall) -> Table {
    let mut table = Table::default();
    table.row(["predictions", "recall", "precision"]);
    for (cut, n) in cuts(steps.top_k()).into_iter().enumerate() {
        let figures = [total.recall(cut), total.precision(cut)].map(percent);
        table.row(core::iter::once(n.to_string()).chain(figures));
    }
    table
}

fn recall_layers(steps: &Steps, recalls: &[Recall]) -> Table {
    let mut table = Table::default();
    table.row(["layer", "recall"]);
    for (layer, recall) in steps.layers().iter().zip(recalls) {
        table.row([layer.to_string(), percent(recall.recall(0))]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_rounded_up() {
        for (text, n) in [("25%", 3), ("100%", 10), ("0.1%", 1), ("12.5%", 2)] {
            assert_eq!(text.parse::<Share>().unwrap().of(10), n, "{text}");
        }
        for text in ["25", "0%", "101%", "-1%", "%", "nan%", "x%"] {
            assert!(text.parse::<Share>().unwrap_err().contains("25%"), "{text}");
        }
    }
}
