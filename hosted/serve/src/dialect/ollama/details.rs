//! What models are and can do, as Ollama says it.

use crate::models::{Capabilities, Summary};
use serde_json::{Value, json};

/// The object `details` of a model; `parent` is the model of an adapter.
pub(super) fn details(summary: &Summary, parent: &str) -> Value {
    json!({
        "parent_model": parent,
        "format": "gguf",
        "family": summary.architecture,
        "families": [summary.architecture],
        "parameter_size": parameters(summary.n_params),
        "quantization_level": summary.weights,
        "context_length": summary.n_ctx_train,
        "embedding_length": summary.n_embd,
    })
}

/// The names of what a model can do.
pub(super) fn capabilities(can: Capabilities) -> Vec<&'static str> {
    let all = [
        ("completion", can.complete),
        ("tools", can.call),
        ("thinking", can.reason),
        ("insert", can.complete && can.fill),
        ("embedding", can.embed),
    ];
    let able = all.into_iter().filter(|(_, is_able)| *is_able);
    able.map(|(name, _)| name).collect()
}

/// A number of parameters for people, such as `134.52M` and `7.6B`.
fn parameters(n: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let of = |unit: u64| n as f64 / unit as f64;
    match n {
        BILLION.. if n.is_multiple_of(BILLION) => format!("{:.0}B", of(BILLION)),
        BILLION.. => format!("{:.1}B", of(BILLION)),
        MILLION.. if n.is_multiple_of(MILLION) => format!("{:.0}M", of(MILLION)),
        MILLION.. => format!("{:.2}M", of(MILLION)),
        1000.. => format!("{:.0}K", of(1000)),
        _ => n.to_string(),
    }
}

const MILLION: u64 = 1_000_000;
const BILLION: u64 = 1000 * MILLION;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_for_people() {
        for (n, shown) in [
            (999, "999"),
            (260_000, "260K"),
            (134_515_008, "134.52M"),
            (5_000_000, "5M"),
            (7_615_616_512, "7.6B"),
            (8_000_000_000, "8B"),
        ] {
            assert_eq!(parameters(n), shown);
        }
    }

    #[test]
    fn an_encoder_fills_nothing_in() {
        let can = Capabilities {
            complete: false,
            call: false,
            reason: false,
            fill: true,
            embed: true,
        };
        assert_eq!(capabilities(can), ["embedding"]);
    }
}
