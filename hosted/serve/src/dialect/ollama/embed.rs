//! `POST /api/embed`, and `POST /api/embeddings` for old clients.

use super::super::fields::Fields;
use super::super::generation::model;
use super::super::prompts::Texts;
use super::super::seam::{Exchange, WriteVectors};
use super::options;
use super::writer::nanos;
use crate::api::{
    ApiError, Defaults, EmbeddingRequest, FieldName, ModelChoice, PromptPart, Vectors,
};
use serde_json::{Value, json};
use sluice::embed::Normalization;
use std::time::Instant;

type Result<T> = core::result::Result<T, ApiError>;
type Asked = Exchange<EmbeddingRequest, WriteVectors>;

/// Parses a request for vectors of texts. Without texts it loads the model.
pub(super) fn parse(body: &Value, _: &Defaults) -> Result<Asked> {
    let arrived = Instant::now();
    let fields = Fields::of_body(body)?;
    let (wants_ctx, unknown) = options::context(fields)?;
    let (texts, is_list) = match fields.value("input") {
        None => (Vec::new(), true),
        Some(Value::String(text)) if text.is_empty() => (Vec::new(), true),
        Some(Value::Array(list)) if list.is_empty() => (Vec::new(), true),
        Some(_) => {
            let texts = Texts::read(fields, "input")?;
            (texts.all, texts.is_list)
        }
    };
    let name = fields.str("model")?.filter(|name| !name.is_empty());
    let name = name.map(str::to_owned);
    Ok(Exchange {
        too_long: None,
        names: vec![match is_list {
            true => FieldName::new("input", "input"),
            false => FieldName::new("input[0]", "input"),
        }],
        request: EmbeddingRequest {
            model: choice(fields)?,
            dimensions: dimensions(fields)?,
            truncates: fields.bool("truncate")?.unwrap_or(false),
            may_be_empty: true,
            wants_ctx,
            left_out: options::note(&unknown),
            ..EmbeddingRequest::new(texts)
        },
        writer: Box::new(move |vectors| {
            let Vectors {
                n_tokens,
                load_time,
                ..
            } = vectors;
            let each = vectors.floats.chunks_exact(vectors.length);
            json!({
                "model": name.unwrap_or(vectors.model),
                "embeddings": each.map(|vector| json!(vector)).collect::<Vec<_>>(),
                "total_duration": nanos(arrived.elapsed().max(load_time)),
                "load_duration": nanos(load_time),
                "prompt_eval_count": n_tokens,
            })
        }),
    })
}

/// Parses a request for the vector of one text, which is not scaled.
pub(super) fn parse_single(body: &Value, _: &Defaults) -> Result<Asked> {
    let fields = Fields::of_body(body)?;
    let (wants_ctx, unknown) = options::context(fields)?;
    let prompt = fields.str("prompt")?.unwrap_or_default();
    let text = (!prompt.is_empty()).then(|| vec![PromptPart::Text(prompt.to_owned())]);
    Ok(Exchange {
        too_long: None,
        names: vec![FieldName::new("input[0]", "prompt")],
        request: EmbeddingRequest {
            model: choice(fields)?,
            normalization: Normalization::None,
            may_be_empty: true,
            wants_ctx,
            left_out: options::note(&unknown),
            ..EmbeddingRequest::new(text.into_iter().collect())
        },
        writer: Box::new(|vectors| json!({"embedding": vectors.floats})),
    })
}

fn choice(fields: Fields<'_>) -> Result<ModelChoice> {
    Ok(ModelChoice {
        keep_for: options::keep_alive(fields)?,
        ..model(fields)?
    })
}

/// 0 is the whole length, as in Ollama.
fn dimensions(fields: Fields<'_>) -> Result<Option<usize>> {
    let n = fields.count("dimensions", 0..=usize::MAX >> 1)?;
    Ok(n.filter(|&n| n > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(body: &Value) -> EmbeddingRequest {
        parse(body, &Defaults::default()).unwrap().request
    }

    #[test]
    fn texts_may_be_missing() {
        for body in [json!({}), json!({"input": ""}), json!({"input": []})] {
            let request = of(&body);
            assert!(request.input.is_empty() && request.may_be_empty);
        }
        assert_eq!(of(&json!({"input": "a"})).input.len(), 1);
        let request = of(
            &json!({"input": ["a", "b"], "truncate": true, "dimensions": 0, "options": {"y": 1}}),
        );
        assert_eq!(request.left_out, ["options without effect: y"]);
        assert_eq!((request.input.len(), request.dimensions), (2, None));
        assert!(request.truncates);
    }

    #[test]
    fn vectors_are_lists() {
        let vectors = Vectors {
            floats: vec![0.5, 0.75, 1.0, 0.25],
            length: 2,
            model: "m".into(),
            n_tokens: 5,
            ..Vectors::default()
        };
        let exchange = parse(&json!({"input": ["a", "b"]}), &Defaults::default()).unwrap();
        let reply = (exchange.writer)(vectors.clone());
        assert_eq!(reply["embeddings"], json!([[0.5, 0.75], [1.0, 0.25]]));
        assert_eq!(
            (&reply["model"], &reply["prompt_eval_count"]),
            (&json!("m"), &json!(5))
        );
        let exchange = parse_single(&json!({"prompt": "a"}), &Defaults::default()).unwrap();
        assert_eq!(exchange.request.normalization, Normalization::None);
        let reply = (exchange.writer)(Vectors {
            length: 4,
            ..vectors
        });
        assert_eq!(reply, json!({"embedding": [0.5, 0.75, 1.0, 0.25]}));
    }
}
