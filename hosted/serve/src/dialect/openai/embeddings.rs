//! `POST /v1/embeddings`.

use super::super::fields::Fields;
use super::super::generation::model;
use super::super::prompts::Texts;
use super::super::seam::{Exchange, WriteVectors};
use crate::api::{ApiError, Defaults, EmbeddingRequest, FieldName, Vectors};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};
use sluice::embed::Normalization;

type Result<T> = core::result::Result<T, ApiError>;

/// Parses a request.
pub(super) fn parse(
    body: &Value,
    _: &Defaults,
) -> Result<Exchange<EmbeddingRequest, WriteVectors>> {
    let fields = Fields::of_body(body)?;
    let model = model(fields)?;
    let name = match fields.first(&["input", "content"]) {
        Some("content") => "content",
        _ => "input",
    };
    let texts = Texts::read(fields, name)?;
    let format = fields.word("encoding_format", &["float", "base64"])?;
    let is_base64 = format == Some("base64");
    Ok(Exchange {
        too_long: None,
        names: vec![match texts.is_list {
            true => FieldName::new("input", name),
            false => FieldName::new("input[0]", name),
        }],
        request: EmbeddingRequest {
            model,
            dimensions: fields.count("dimensions", 1..=usize::MAX >> 1)?,
            normalization: normalization(fields)?,
            ..EmbeddingRequest::new(texts.all)
        },
        writer: Box::new(move |vectors| reply(&vectors, is_base64)),
    })
}

/// llama-server's numbers: -1 does not scale, 0 scales by the largest component, others are p-norms.
fn normalization(fields: Fields<'_>) -> Result<Normalization> {
    let asked = fields.int("embd_normalize", -1..=i64::from(u32::MAX))?;
    Ok(match asked.map(u32::try_from) {
        None => Normalization::PNorm(2),
        Some(Err(_)) => Normalization::None,
        Some(Ok(0)) => Normalization::MaxAbsolute,
        Some(Ok(p)) => Normalization::PNorm(p),
    })
}

fn reply(vectors: &Vectors, is_base64: bool) -> Value {
    let each = vectors.floats.chunks_exact(vectors.length).enumerate();
    let data = each.map(|(index, vector)| {
        let embedding = match is_base64 {
            true => {
                let bytes: Vec<u8> = vector.iter().flat_map(|x| x.to_le_bytes()).collect();
                BASE64_STANDARD.encode(bytes).into()
            }
            false => json!(vector),
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    let n_tokens = vectors.n_tokens;
    json!({
        "object": "list",
        "model": vectors.model,
        "data": data.collect::<Vec<_>>(),
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_listed() {
        let vectors = Vectors {
            floats: vec![0.5, 0.75, 1.0, 0.25],
            length: 2,
            model: "m".into(),
            n_tokens: 5,
            ..Vectors::default()
        };
        let answer = reply(&vectors, false);
        assert_eq!(answer["data"][1]["embedding"], json!([1.0, 0.25]));
        assert_eq!(answer["usage"]["prompt_tokens"], 5);
        assert_eq!(
            reply(&vectors, true)["data"][0]["embedding"],
            "AAAAPwAAQD8="
        );
    }
}
