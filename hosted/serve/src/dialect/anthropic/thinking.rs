//! Reasoning: whether and how long a model thinks, and the signatures of what it thought.

use super::super::fields::Fields;
use crate::api::{ApiError, ChatRequest};
use serde_json::Value;
use sha2::{Digest as _, Sha256};

type Result<T> = core::result::Result<T, ApiError>;

/// Parses the object `thinking`; the template gets `enable_thinking`.
pub(super) fn read(thinking: Option<Fields<'_>>, request: &mut ChatRequest) -> Result<()> {
    let variables = &mut request.template_kwargs;
    let Some(thinking) = thinking else {
        // The server's own setting, if it has one.
        variables
            .entry("enable_thinking")
            .or_insert(Value::Bool(false));
        return Ok(());
    };
    let kinds = ["enabled", "adaptive", "between_tools", "disabled"];
    let kind = thinking.word("type", &kinds)?;
    let kind = kind.ok_or_else(|| ApiError::field("type", "is missing"))?;
    let thinks = kind != "disabled";
    variables.insert("enable_thinking".into(), Value::Bool(thinks));
    if thinks && let Some(budget) = thinking.count("budget_tokens", 0..=1 << 30)? {
        request.reasoning_budget = Some(budget);
    }
    Ok(())
}

/// Whether the texts of thoughts are left out of the reply, which has their signatures then.
pub(super) fn hides(thinking: Option<Fields<'_>>) -> Result<bool> {
    let display = thinking.map(|thinking| thinking.word("display", &["summarized", "omitted"]));
    Ok(display.transpose()?.flatten() == Some("omitted"))
}

/// The signature of a thought: a hash of the model and the text. Clients send it back; nothing depends on it.
pub(super) fn signature(fingerprint: &str, thought: &str) -> String {
    let mut hash = Sha256::new();
    for part in [fingerprint, thought] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Defaults;
    use serde_json::json;

    #[test]
    fn thinking_is_off_unless_it_is_asked_for() {
        for (thinking, thinks, budget) in [
            (json!(null), false, None),
            (json!({"type": "disabled"}), false, None),
            (json!({"type": "adaptive"}), true, None),
            (
                json!({"type": "enabled", "budget_tokens": 1024}),
                true,
                Some(1024),
            ),
        ] {
            let mut request = ChatRequest::new(&Defaults::default());
            let body = json!({"thinking": thinking});
            let fields = Fields::of_body(&body).unwrap();
            read(fields.object("thinking").unwrap(), &mut request).unwrap();
            assert_eq!(request.template_kwargs["enable_thinking"], thinks);
            assert_eq!(request.reasoning_budget, budget);
        }
    }

    #[test]
    fn the_server_s_setting_counts_where_a_request_has_none() {
        for (body, thinks) in [
            (json!({}), true),
            (json!({"thinking": {"type": "disabled"}}), false),
        ] {
            let mut request = ChatRequest::new(&Defaults::default());
            let variables = &mut request.template_kwargs;
            variables.insert("enable_thinking".into(), true.into());
            let fields = Fields::of_body(&body).unwrap();
            read(fields.object("thinking").unwrap(), &mut request).unwrap();
            assert_eq!(request.template_kwargs["enable_thinking"], thinks);
        }
    }

    #[test]
    fn a_signature_is_that_of_one_model_and_one_thought() {
        let one = signature("m1", "so");
        assert_eq!(one.len(), 64);
        assert_eq!(one, signature("m1", "so"));
        for (model, thought) in [("m2", "so"), ("m1", "so."), ("m1s", "o")] {
            assert_ne!(one, signature(model, thought));
        }
    }
}
