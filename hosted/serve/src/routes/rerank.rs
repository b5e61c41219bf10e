//! `POST /v1/rerank`: documents by how well they answer a query, as Jina's and Cohere's clients ask, and with
//! `texts` as those of text-embeddings-inference.

use super::prompts::text_of;
use crate::api::error::{ApiError, json_reply};
use crate::api::fields::{Fields, wrong};
use crate::engine::EmbedJob;
use crate::http::{Context, body};
use crate::models::Lease;
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use serde_json::{Value, json};
use sluice::rank::NO_HEAD;
use sluice_core::pooling::Pooling;
use tokio::sync::oneshot;

type Result<T> = core::result::Result<T, ApiError>;

/// What is asked.
struct Asked {
    /// The query with each document.
    prompts: Vec<Vec<u32>>,
    /// Returned with the scores; empty where that is not asked for.
    documents: Vec<Value>,
    top_n: usize,
    pooling: Pooling,
    shape: Shape,
}

/// Whose clients ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// `documents`, `results` with `relevance_score` and `document`.
    Jina,
    /// `texts`, a list with `score` and `text`.
    Tei,
}

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    let posted = body::json(&context, request).await?;
    let lease = context.adapted(&posted).await?;
    let inner = context.clone();
    let read = context.app.work().run(move || {
        let asked = read(Fields::of_body(&posted.value)?, &lease)?;
        if inner.app.options().log_prompts {
            for prompt in &asked.prompts {
                inner.tell_prompt(&text_of(prompt, lease.model()));
            }
        }
        Ok::<_, ApiError>((lease, asked))
    });
    let (lease, mut asked) = read.await??;
    let n_tokens: usize = asked.prompts.iter().map(Vec::len).sum();
    let (sender, receiver) = oneshot::channel();
    context.app.models().engine().embed(EmbedJob {
        request: context.request.clone(),
        model: lease.id(),
        texts: core::mem::take(&mut asked.prompts),
        pooling: asked.pooling,
        adapter: lease.blend().cloned(),
        arrived: context.arrived,
        answer: sender,
    })?;
    let vectors = receiver
        .await
        .map_err(|_| ApiError::unavailable("the model was unloaded"))??;
    // Heads are matrices.
    let work = context.app.work();
    let scored = work.run(move || {
        let model = lease.model();
        let each = vectors.chunks_exact(model.config().n_embd);
        let scores: Option<Vec<f32>> = each.map(|vector| model.rank_score(vector)).collect();
        let scores = scores.ok_or_else(|| ApiError::field("model", NO_HEAD))?;
        if !scores.iter().all(|score| score.is_finite()) {
            return Err(ApiError::internal(
                "a score is not finite: the model's weights are damaged",
            ));
        }
        Ok(reply(&mut asked, &scores, lease.name(), n_tokens))
    });
    Ok(json_reply(&scored.await??))
}

fn read(fields: Fields<'_>, lease: &Lease) -> Result<Asked> {
    let model = lease.model();
    let pooling = model.rank_pooling();
    let pooling = pooling.ok_or_else(|| ApiError::field("model", NO_HEAD))?;
    let query = fields.str("query")?;
    let query = query.ok_or_else(|| ApiError::field("query", "is missing"))?;
    let (shape, name) = match fields.first(&["documents", "texts"]) {
        Some("texts") => (Shape::Tei, "texts"),
        _ => (Shape::Jina, "documents"),
    };
    let documents = documents(fields, name)?;
    let prompt = |(i, (text, _)): (usize, &(&str, &Value))| {
        let tokens = model.rank_prompt(query, text);
        let field = || format!("{name}[{i}]");
        let tokens = tokens.map_err(|error| ApiError::field(field(), error.to_string()))?;
        if tokens.is_empty() {
            return Err(ApiError::field(field(), "is empty, and so is the query"));
        }
        Ok(tokens)
    };
    let prompts: Vec<_> = documents
        .iter()
        .enumerate()
        .map(prompt)
        .collect::<Result<_>>()?;
    let longest = prompts.iter().map(Vec::len).max().unwrap_or(0);
    if longest > lease.n_ctx() {
        let (n_tokens, n_ctx) = (longest, lease.n_ctx());
        return Err(crate::engine::JobError::TooLong { n_tokens, n_ctx }.into());
    }
    let asks = match shape {
        Shape::Jina => "return_documents",
        Shape::Tei => "return_text",
    };
    let returned = |(_, value): &(&str, &Value)| (*value).clone();
    Ok(Asked {
        top_n: fields
            .count("top_n", 1..=usize::MAX >> 1)?
            .unwrap_or(usize::MAX),
        documents: match fields.bool(asks)? {
            Some(true) => documents.iter().map(returned).collect(),
            _ => Vec::new(),
        },
        prompts,
        pooling,
        shape,
    })
}

/// Texts, or objects with a text, and as they came.
fn documents<'v>(fields: Fields<'v>, name: &str) -> Result<Vec<(&'v str, &'v Value)>> {
    let list = match fields.value(name) {
        None => return Err(ApiError::field(name, "is missing")),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong(name, other, "a list of texts")),
    };
    if list.is_empty() {
        return Err(ApiError::field(name, "is an empty list"));
    }
    if list.len() > DOCUMENTS_MAX {
        let what = format!(
            "{} documents; at most {DOCUMENTS_MAX} are allowed",
            list.len()
        );
        return Err(ApiError::field(name, what));
    }
    let text = |(i, value): (usize, &'v Value)| {
        let text = value.as_str().or_else(|| value.get("text")?.as_str());
        let text = text.ok_or_else(|| wrong(&format!("{name}[{i}]"), value, "a text"))?;
        Ok((text, value))
    };
    list.iter().enumerate().map(text).collect()
}

/// The best first; equal ones in the order of the request.
fn reply(asked: &mut Asked, scores: &[f32], model: &str, n_tokens: usize) -> Value {
    let mut order: Vec<usize> = (0..scores.len()).collect();
    order.sort_by(|&a, &b| scores[b].total_cmp(&scores[a]));
    order.truncate(asked.top_n);
    let (score, text) = match asked.shape {
        Shape::Jina => ("relevance_score", "document"),
        Shape::Tei => ("score", "text"),
    };
    let results = order.into_iter().map(|index| {
        let mut result = json!({"index": index, score: scores[index]});
        if let Some(document) = asked.documents.get_mut(index) {
            let document = document.take();
            let is_plain = document.is_string() && asked.shape == Shape::Jina;
            result[text] = if is_plain {
                json!({"text": document})
            } else {
                document
            };
        }
        result
    });
    let results: Vec<Value> = results.collect();
    match asked.shape {
        Shape::Tei => results.into(),
        Shape::Jina => json!({
            "model": model,
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

    fn asked(shape: Shape, documents: Vec<Value>) -> Asked {
        Asked {
            prompts: Vec::new(),
            documents,
            top_n: 2,
            pooling: Pooling::Cls,
            shape,
        }
    }

    #[test]
    fn the_best_come_first() {
        let scores = [0.5, -1.0, 2.0];
        let found = reply(&mut asked(Shape::Jina, Vec::new()), &scores, "m", 9);
        let expected = json!([
            {"index": 2, "relevance_score": 2.0},
            {"index": 0, "relevance_score": 0.5},
        ]);
        assert_eq!(found["results"], expected);
        assert_eq!(found["usage"]["total_tokens"], 9);
        let documents = vec![json!("a"), json!("b"), json!({"text": "c"})];
        let found = reply(&mut asked(Shape::Jina, documents), &scores, "m", 9);
        assert_eq!(found["results"][0]["document"], json!({"text": "c"}));
        assert_eq!(found["results"][1]["document"], json!({"text": "a"}));
        let documents = vec![json!("a"), json!("b"), json!("c")];
        let found = reply(&mut asked(Shape::Tei, documents), &scores, "m", 9);
        assert_eq!(found[0], json!({"index": 2, "score": 2.0, "text": "c"}));
    }

    #[test]
    fn what_is_no_document_is_named() {
        let of = |body: Value| {
            let fields = Fields::of_body(&body).unwrap();
            documents(fields, "documents").map(|list| list.len())
        };
        assert_eq!(of(json!({"documents": ["a", {"text": "b"}]})), Ok(2));
        for (body, expected) in [
            (json!({}), "documents: is missing"),
            (json!({"documents": []}), "documents: is an empty list"),
            (
                json!({"documents": ["a", 3]}),
                "documents[1]: 3 is not a text",
            ),
            (
                json!({"documents": "a"}),
                "documents: \"a\" is not a list of texts",
            ),
        ] {
            let error = of(body).unwrap_err().to_value();
            assert_eq!(error["error"]["message"], expected);
        }
    }
}
