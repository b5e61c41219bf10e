//! `POST /v1/rerank`: ranks documents by relevance to a query. Accepts the request formats of Jina and Cohere, and of
//! text-embeddings-inference (`texts`).

use super::super::fields::{Fields, wrong};
use super::super::generation::model;
use super::super::seam::{Exchange, WriteRanking};
use crate::api::{ApiError, Defaults, FieldName, Ranking, RerankRequest};
use serde_json::{Value, json};

type Result<T> = core::result::Result<T, ApiError>;

/// The API that a request follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `documents`, `results` with `relevance_score` and `document`.
    Jina,
    /// `texts`, a list with `score` and `text`.
    Tei,
}

/// Parses a request.
pub(super) fn parse(body: &Value, _: &Defaults) -> Result<Exchange<RerankRequest, WriteRanking>> {
    let fields = Fields::of_body(body)?;
    let model = model(fields)?;
    let query = fields.str("query")?;
    let query = query.ok_or_else(|| ApiError::field("query", "is missing"))?;
    let (shape, name) = match fields.first(&["documents", "texts"]) {
        Some("texts") => (Shape::Tei, "texts"),
        _ => (Shape::Jina, "documents"),
    };
    let documents = documents(fields, name)?;
    let n_max = fields.count("top_n", 1..=usize::MAX >> 1)?;
    let returns = fields.bool(match shape {
        Shape::Jina => "return_documents",
        Shape::Tei => "return_text",
    })?;
    let texts = documents.iter().map(|document| document.text.to_owned());
    let request = RerankRequest {
        model,
        query: query.to_owned(),
        documents: texts.collect(),
    };
    let returned: Vec<Value> = match returns {
        Some(true) => documents
            .iter()
            .map(|document| document.value.clone())
            .collect(),
        _ => Vec::new(),
    };
    Ok(Exchange {
        too_long: None,
        request,
        names: vec![FieldName::new("documents", name)],
        writer: Box::new(move |ranking| {
            reply(shape, &ranking, n_max.unwrap_or(usize::MAX), returned)
        }),
    })
}

/// A document's text, and the document as it was sent.
struct Document<'v> {
    text: &'v str,
    value: &'v Value,
}

/// Parses documents: strings, or objects with a text.
fn documents<'v>(fields: Fields<'v>, name: &str) -> Result<Vec<Document<'v>>> {
    let list = match fields.value(name) {
        // An error about the model itself takes precedence, so this is not an error here.
        None => return Ok(Vec::new()),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong(name, other, "a list of strings")),
    };
    if list.len() > DOCUMENTS_MAX {
        let what = format!(
            "has {} documents, more than the maximum of {DOCUMENTS_MAX}",
            list.len()
        );
        return Err(ApiError::field(name, what));
    }
    let text = |(i, value): (usize, &'v Value)| {
        let text = value.as_str().or_else(|| value.get("text")?.as_str());
        let text = text.ok_or_else(|| wrong(&format!("{name}[{i}]"), value, "a string"))?;
        Ok(Document { text, value })
    };
    list.iter().enumerate().map(text).collect()
}

/// The best `n` results first, with their `documents` if requested.
fn reply(shape: Shape, ranking: &Ranking, n: usize, mut documents: Vec<Value>) -> Value {
    let (score, text) = match shape {
        Shape::Jina => ("relevance_score", "document"),
        Shape::Tei => ("score", "text"),
    };
    let results = ranking.best(n).into_iter().map(|index| {
        let mut result = json!({"index": index, score: ranking.scores[index]});
        if let Some(document) = documents.get_mut(index) {
            let document = document.take();
            let is_plain = document.is_string() && shape == Shape::Jina;
            result[text] = if is_plain {
                json!({"text": document})
            } else {
                document
            };
        }
        result
    });
    let results: Vec<Value> = results.collect();
    let n_tokens = ranking.n_tokens;
    match shape {
        Shape::Tei => results.into(),
        Shape::Jina => json!({
            "model": ranking.model,
            "object": "list",
            "results": results,
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
        }),
    }
}

const DOCUMENTS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_come_first() {
        let ranking = Ranking {
            scores: vec![0.5, -1.0, 2.0],
            model: "m".into(),
            n_tokens: 9,
        };
        let found = reply(Shape::Jina, &ranking, 2, Vec::new());
        let expected = json!([
            {"index": 2, "relevance_score": 2.0},
            {"index": 0, "relevance_score": 0.5},
        ]);
        assert_eq!(found["results"], expected);
        assert_eq!(found["usage"]["total_tokens"], 9);
        let documents = vec![json!("a"), json!("b"), json!({"text": "c"})];
        let found = reply(Shape::Jina, &ranking, 2, documents);
        assert_eq!(found["results"][0]["document"], json!({"text": "c"}));
        assert_eq!(found["results"][1]["document"], json!({"text": "a"}));
        let documents = vec![json!("a"), json!("b"), json!("c")];
        let found = reply(Shape::Tei, &ranking, 2, documents);
        assert_eq!(found[0], json!({"index": 2, "score": 2.0, "text": "c"}));
    }

    #[test]
    fn a_wrong_document_is_named() {
        let of = |body: Value| {
            let fields = Fields::of_body(&body).unwrap();
            documents(fields, "documents").map(|list| list.len())
        };
        assert_eq!(of(json!({"documents": ["a", {"text": "b"}]})), Ok(2));
        // The model is checked before these are refused.
        assert_eq!(of(json!({})), Ok(0));
        assert_eq!(of(json!({"documents": []})), Ok(0));
        for (body, expected) in [
            (
                json!({"documents": ["a", 3]}),
                "documents[1]: 3 is not a string",
            ),
            (
                json!({"documents": "a"}),
                "documents: \"a\" is not a list of strings",
            ),
        ] {
            assert_eq!(of(body).unwrap_err().to_string(), expected);
        }
    }
}
