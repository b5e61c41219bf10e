//! `POST /v1/embeddings`.

use super::prompts::text_of;
use crate::api::error::{ApiError, json_reply};
use crate::api::fields::{Fields, token, wrong};
use crate::engine::EmbedJob;
use crate::http::{Context, VectorKind, VectorSlot, Vectors, body};
use crate::models::{Lease, Loaded};
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;
use core::fmt::Write as _;
use serde_json::{Value, json};
use sluice::embed::Normalization;
use sluice::rank::NO_HEAD;
use sluice_core::pooling::Pooling;
use tokio::sync::oneshot;

type Result<T> = core::result::Result<T, ApiError>;

/// What is asked.
struct Asked {
    texts: Vec<Vec<u32>>,
    is_base64: bool,
    dimensions: Option<usize>,
    normalization: Normalization,
    pooling: Pooling,
    /// The score of the head that ranks is wanted, in place of a vector.
    scores: bool,
}

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    let posted = body::json(&context, request).await?;
    let lease = context.adapted(&posted).await?;
    let inner = context.clone();
    let read = context.app.work().run(move || {
        let asked = read(&posted, &lease, inner.vectors.as_ref())?;
        for text in asked
            .texts
            .iter()
            .filter(|_| inner.app.options().log_prompts)
        {
            inner.tell_prompt(&text_of(text, lease.model()));
        }
        Ok::<_, ApiError>((lease, asked))
    });
    let (lease, mut asked) = read.await??;
    let n_tokens: usize = asked.texts.iter().map(Vec::len).sum();
    let (sender, receiver) = oneshot::channel();
    context.app.models().engine().embed(EmbedJob {
        request: context.request.clone(),
        model: lease.id(),
        texts: core::mem::take(&mut asked.texts),
        pooling: asked.pooling,
        adapter: lease.blend().cloned(),
        arrived: context.arrived,
        answer: sender,
    })?;
    let vectors = receiver
        .await
        .map_err(|_| ApiError::unavailable("the model was unloaded"))??;
    // Numbers become text, many of them, and heads are matrices.
    let slot = context.vectors.clone();
    let reply = context.app.work().run(move || {
        let n_embd = lease.model().config().n_embd;
        let vectors = match asked.scores {
            true => Vectors {
                floats: scores(&vectors, &lease)?,
                length: 1,
            },
            false => cut(vectors, n_embd, asked.dimensions),
        };
        Ok::<_, ApiError>(reply(&asked, vectors, slot, lease.name(), n_tokens))
    });
    Ok(json_reply(&reply.await??))
}

fn read(posted: &body::Posted, lease: &Lease, slot: Option<&VectorSlot>) -> Result<Asked> {
    let fields = Fields::of_body(&posted.value)?;
    let name = fields.first(&["input", "content"]).unwrap_or("input");
    let n_max = if slot.is_some() {
        usize::MAX
    } else {
        TEXTS_MAX
    };
    let texts = texts(fields, name, lease, n_max)?;
    let kind = slot.map_or(VectorKind::Texts, VectorSlot::kind);
    let scores = kind == VectorKind::Scores;
    let pooling = if scores {
        let pooling = lease.model().rank_pooling();
        pooling.ok_or_else(|| ApiError::field("model", NO_HEAD))?
    } else {
        lease.pooling()
    };
    if pooling == Pooling::None && kind == VectorKind::Texts {
        let what = "embeddings of texts need a pooling (--pooling mean, cls or last)";
        return Err(ApiError::field("model", what));
    }
    let format = fields.word("encoding_format", &["float", "base64"])?;
    let n_embd = lease.model().config().n_embd;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    if longest > lease.n_ctx() {
        let (n_tokens, n_ctx) = (longest, lease.n_ctx());
        return Err(crate::engine::JobError::TooLong { n_tokens, n_ctx }.into());
    }
    Ok(Asked {
        texts,
        is_base64: format == Some("base64"),
        dimensions: fields.count("dimensions", 1..=n_embd)?,
        normalization: match scores {
            true => Normalization::None,
            false => normalization(fields)?,
        },
        pooling,
        scores,
    })
}

/// A text, tokens, or a list of those.
fn texts(fields: Fields<'_>, name: &str, loaded: &Loaded, n_max: usize) -> Result<Vec<Vec<u32>>> {
    let model = loaded.model();
    let one = |value: &Value, name: &str| {
        let tokens = match value {
            Value::String(text) => {
                let tokens = model.encode(text, false);
                tokens.map_err(|error| ApiError::field(name, error.to_string()))?
            }
            Value::Array(list) => {
                let n_vocab = model.tokenizer().n_vocab();
                let tokens = list.iter().map(|value| token(name, value, n_vocab));
                tokens.collect::<Result<_>>()?
            }
            other => return Err(wrong(name, other, "a text, or a list of tokens")),
        };
        if tokens.is_empty() {
            return Err(ApiError::field(name, "is empty"));
        }
        Ok(tokens)
    };
    match fields.value(name) {
        None => Err(ApiError::field(name, "is missing")),
        Some(Value::Array(list)) if list.is_empty() => {
            Err(ApiError::field(name, "is an empty list"))
        }
        Some(Value::Array(list)) if !list[0].is_number() => {
            if list.len() > n_max {
                let what = format!("{} texts; at most {n_max} are allowed", list.len());
                return Err(ApiError::field(name, what));
            }
            let each = list.iter().enumerate();
            each.map(|(i, value)| one(value, &format!("{name}[{i}]")))
                .collect()
        }
        Some(value) => Ok(vec![one(value, name)?]),
    }
}

/// llama-server's numbers: -1 leaves vectors as they are, 0 is by the largest component, others are norms.
fn normalization(fields: Fields<'_>) -> Result<Normalization> {
    let asked = fields.int("embd_normalize", -1..=i64::from(u32::MAX))?;
    Ok(match asked.map(u32::try_from) {
        None => Normalization::PNorm(2),
        Some(Err(_)) => Normalization::None,
        Some(Ok(0)) => Normalization::MaxAbsolute,
        Some(Ok(p)) => Normalization::PNorm(p),
    })
}

/// The score of each vector.
fn scores(vectors: &[f32], lease: &Lease) -> Result<Vec<f32>> {
    let model = lease.model();
    let each = vectors.chunks_exact(model.config().n_embd);
    let scores: Option<_> = each.map(|vector| model.rank_score(vector)).collect();
    scores.ok_or_else(|| ApiError::field("model", NO_HEAD))
}

/// The first `dimensions` numbers of each vector (n_embd), or all, in the same buffer.
fn cut(mut floats: Vec<f32>, n_embd: usize, dimensions: Option<usize>) -> Vectors {
    let length = dimensions.unwrap_or(n_embd);
    if length < n_embd {
        let n = floats.len() / n_embd;
        for i in 1..n {
            floats.copy_within(i * n_embd..i * n_embd + length, i * length);
        }
        floats.truncate(n * length);
    }
    Vectors { floats, length }
}

/// Normalises vectors, and puts them into the slot or the answer.
fn reply(
    asked: &Asked,
    mut vectors: Vectors,
    slot: Option<VectorSlot>,
    model: &str,
    n_tokens: usize,
) -> Value {
    for vector in vectors.floats.chunks_exact_mut(vectors.length) {
        asked.normalization.apply(vector);
    }
    let data = match slot {
        None => listed(asked, &vectors),
        Some(slot) => {
            slot.put(vectors);
            Vec::new()
        }
    };
    json!({
        "object": "list",
        "model": model,
        "data": data,
        "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
    })
}

fn listed(asked: &Asked, vectors: &Vectors) -> Vec<Value> {
    let each = vectors.floats.chunks_exact(vectors.length).enumerate();
    let data = each.map(|(index, vector)| {
        let embedding = if asked.is_base64 {
            base64(vector.iter().flat_map(|x| x.to_le_bytes())).into()
        } else {
            json!(vector)
        };
        json!({"object": "embedding", "index": index, "embedding": embedding})
    });
    data.collect()
}

/// The usual alphabet, padded.
fn base64(bytes: impl Iterator<Item = u8>) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bytes: Vec<u8> = bytes.collect();
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |i: usize| u32::from(group.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4 {
            if i <= group.len() {
                let letter = ALPHABET[(bits >> (18 - 6 * i)) as usize & 63];
                text.push(char::from(letter));
            } else {
                // A string takes whatever is written to it.
                let _written = text.write_char('=');
            }
        }
    }
    text
}

const TEXTS_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn base64_is_as_everywhere() {
        for (text, expected) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
            ("\u{ff}\u{fe}", "w7/Dvg=="),
        ] {
            assert_eq!(base64(text.bytes()), expected);
        }
    }

    #[test]
    fn vectors_are_cut_and_of_length_1() {
        let asked = Asked {
            texts: Vec::new(),
            is_base64: false,
            dimensions: Some(2),
            normalization: Normalization::PNorm(2),
            pooling: Pooling::Mean,
            scores: false,
        };
        let vectors = cut(vec![3.0, 4.0, 12.0, 8.0, 6.0, 1.0], 3, asked.dimensions);
        let answer = reply(&asked, vectors.clone(), None, "m", 5);
        let data = answer["data"].as_array().unwrap();
        let found = |i: usize| -> Vec<f32> {
            serde_json::from_value(data[i]["embedding"].clone()).unwrap()
        };
        assert_eq!([found(0), found(1)], [[0.6, 0.8], [0.8, 0.6]]);
        assert_eq!(answer["usage"]["prompt_tokens"], 5);
        // In a slot they are the same buffer.
        let (slot, at) = (VectorSlot::new(VectorKind::Texts), vectors.floats.as_ptr());
        let answer = reply(&asked, vectors, Some(slot.clone()), "m", 5);
        assert_eq!(answer["data"], json!([]));
        let taken = slot.take().unwrap();
        assert_eq!(taken.floats, [0.6, 0.8, 0.8, 0.6]);
        assert_eq!(taken.floats.as_ptr(), at);
        assert_eq!(slot.take(), None);
    }
}
