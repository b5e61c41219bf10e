//! Requests for vectors and scores.

use super::app::Context;
use super::prompts::{check_bytes, joined, text_of};
use crate::api::{
    ApiError, EmbeddingRequest, PromptPart, Ranking, RerankRequest, VectorKind, Vectors,
};
use crate::engine::{EmbedJob, JobError, TokenMeter as _};
use crate::keys::Demand;
use crate::models::{Lease, ModelUse};
use sluice::rank::{NO_HEAD, Ranker};
use sluice_core::pooling::Pooling;
use tokio::sync::oneshot;

type Result<T> = core::result::Result<T, ApiError>;

/// The vectors of texts.
pub(crate) async fn embed(context: &Context, request: EmbeddingRequest) -> Result<Vectors> {
    context.key.check_usage()?;
    let lease = context.adapted(&request.model).await?;
    let (load_time, n_ctx) = (context.arrived.elapsed(), lease.n_ctx());
    if request.may_be_empty && request.input.is_empty() {
        return Ok(Vectors {
            floats: Vec::new(),
            length: 1,
            model: lease.name().to_owned(),
            load_time,
            n_ctx,
            ..Vectors::default()
        });
    }
    let read = move || {
        let (texts, n_cut) = texts_of(&request, &lease)?;
        Ok::<_, ApiError>((lease, request, texts, n_cut))
    };
    let (lease, request, texts, n_cut) = context.work(read).await??;
    let pooled = Pooled::new(context, lease, texts).await?;
    // Scaling many numbers and applying heads takes time.
    let finish = move || {
        let n_embd = pooled.n_embd;
        let (floats, length) = if request.kind == VectorKind::Scores {
            (pooled.scores()?, 1)
        } else {
            let length = request.dimensions.unwrap_or(n_embd);
            let mut floats = pooled.floats;
            cut(&mut floats, n_embd, length);
            for vector in floats.chunks_exact_mut(length) {
                request.normalization.apply(vector);
            }
            (floats, length)
        };
        Ok(Vectors {
            floats,
            length,
            model: pooled.model,
            n_tokens: pooled.n_tokens,
            n_cut,
            load_time,
            n_ctx,
        })
    };
    context.work(finish).await?
}

/// The scores of documents.
pub(crate) async fn rank(context: &Context, request: RerankRequest) -> Result<Ranking> {
    context.key.check_usage()?;
    let lease = context.adapted(&request.model).await?;
    let read = move || {
        let texts = pairs_of(&request, &lease)?;
        Ok::<_, ApiError>((lease, texts))
    };
    let (lease, texts) = context.work(read).await??;
    let pooled = Pooled::new(context, lease, texts).await?;
    let finish = move || {
        Ok(Ranking {
            scores: pooled.scores()?,
            model: pooled.model,
            n_tokens: pooled.n_tokens,
        })
    };
    context.work(finish).await?
}

/// The texts of a job, and how they are pooled.
struct Texts {
    tokens: Vec<Vec<u32>>,
    pooling: Pooling,
}

impl Texts {
    fn new(tokens: Vec<Vec<u32>>, pooling: Pooling, lease: &Lease) -> Result<Self> {
        let longest = tokens.iter().map(Vec::len).max().unwrap_or(0);
        if longest > lease.n_ctx() {
            let (n_tokens, n_ctx) = (longest, lease.n_ctx());
            return Err(JobError::TooLong { n_tokens, n_ctx }.into());
        }
        Ok(Self { tokens, pooling })
    }
}

fn head_pooling(lease: &Lease) -> Result<Pooling> {
    let pooling = lease.model().rank_pooling();
    pooling.ok_or_else(|| ApiError::field("model", NO_HEAD))
}

/// The texts of a request, and the number of those that were cut.
fn texts_of(request: &EmbeddingRequest, lease: &Lease) -> Result<(Texts, usize)> {
    if request.input.is_empty() {
        return Err(ApiError::field("input", "is an empty list"));
    }
    let mut n_cut = 0;
    let text = |(i, parts): (usize, &Vec<PromptPart>)| {
        let field = format!("input[{i}]");
        let (tokens, is_cut) = match request.truncates {
            true => cut_to_fit(&field, parts, lease)?,
            false => (joined(&field, parts, false, lease)?, false),
        };
        n_cut += usize::from(is_cut);
        match tokens.is_empty() {
            true => Err(ApiError::field(field, "is empty")),
            false => Ok(tokens),
        }
    };
    let tokens = request.input.iter().enumerate().map(text);
    let tokens = tokens.collect::<Result<_>>()?;
    let pooling = match request.kind {
        VectorKind::Scores => head_pooling(lease)?,
        _ => lease.pooling(),
    };
    if pooling == Pooling::None && request.kind == VectorKind::Texts {
        let what = "embeddings of texts require pooling (--pooling mean, cls or last)";
        return Err(ApiError::field("model", what));
    }
    let n_embd = lease.model().config().n_embd;
    if let Some(n) = request.dimensions.filter(|n| !(1..=n_embd).contains(n)) {
        let what = format!("{n} is not between 1 and {n_embd}");
        return Err(ApiError::field("dimensions", what));
    }
    Ok((Texts::new(tokens, pooling, lease)?, n_cut))
}

/// The tokens of a text, without those at its end for which the context has no room, and whether there were any. A last
/// token that the vocabulary adds is kept.
fn cut_to_fit(field: &str, parts: &[PromptPart], lease: &Lease) -> Result<(Vec<u32>, bool)> {
    let n_ctx = lease.n_ctx();
    // What cannot fit is not tokenized: that takes time.
    let each = lease.model().tokenizer().text_len_max();
    let mut room = each.map_or(usize::MAX, |len| n_ctx.saturating_mul(len));
    let mut is_cut = false;
    let parts = parts.iter().map(|part| match part {
        PromptPart::Text(text) => {
            let end = text.floor_char_boundary(room);
            is_cut |= end < text.len();
            room -= end;
            PromptPart::Text(text[..end].to_owned())
        }
        PromptPart::Tokens(tokens) => PromptPart::Tokens(tokens.clone()),
    });
    let parts = parts.collect::<Vec<_>>();
    let mut tokens = joined(field, &parts, false, lease)?;
    if tokens.len() > n_ctx {
        let tokenizer = lease.model().tokenizer();
        let last = tokens.last().copied().filter(|_| tokenizer.adds_eos());
        tokens.truncate(n_ctx);
        if let (Some(end), Some(last)) = (tokens.last_mut(), last) {
            *end = last;
        }
        is_cut = true;
    }
    Ok((tokens, is_cut))
}

/// Each document, paired with the query.
fn pairs_of(request: &RerankRequest, lease: &Lease) -> Result<Texts> {
    let pooling = head_pooling(lease)?;
    if request.documents.is_empty() {
        return Err(ApiError::field(
            "documents",
            "at least one document is needed",
        ));
    }
    let pair = |(i, text): (usize, &String)| {
        let field = || format!("documents[{i}]");
        check_bytes(lease, [&*request.query, text].into_iter())?;
        let tokens = lease.model().rank_prompt(&request.query, text);
        let tokens = tokens.map_err(|error| ApiError::field(field(), error.to_string()))?;
        match tokens.is_empty() {
            true => Err(ApiError::field(field(), "is empty, and so is the query")),
            false => Ok(tokens),
        }
    };
    let tokens = request.documents.iter().enumerate().map(pair);
    Texts::new(tokens.collect::<Result<_>>()?, pooling, lease)
}

/// The engine's result for some texts.
struct Pooled {
    /// The name the request used.
    model: String,
    n_embd: usize,
    ranker: Option<Ranker>,
    /// Its adapters are in use until it is answered.
    _use: ModelUse,
    /// A vector (n_embd) for each text, or for each token.
    floats: Vec<f32>,
    n_tokens: usize,
}

impl Pooled {
    async fn new(context: &Context, lease: Lease, texts: Texts) -> Result<Self> {
        if context.app.options().log_prompts {
            for text in &texts.tokens {
                context.tell_prompt(&text_of(text, lease.model()));
            }
        }
        let n_tokens = texts.tokens.iter().map(Vec::len).sum();
        let (model, n_embd) = (lease.name().to_owned(), lease.model().config().n_embd);
        let (ranker, in_use) = (lease.model().ranker(), lease.into_use());
        let admitted = context.key.admit(Demand {
            n_texts: 1,
            n_prompt: n_tokens,
            n_predict: Some(0),
        })?;
        let (answer, receiver) = oneshot::channel();
        context.app.models().engine().embed(EmbedJob {
            request: context.request.clone(),
            model: in_use.id(),
            texts: texts.tokens,
            pooling: texts.pooling,
            adapter: in_use.blend().cloned(),
            share: context.share.clone(),
            arrived: context.arrived,
            answer,
        })?;
        // Nothing of these texts is cached.
        if let Some(meter) = &admitted {
            meter.prompt(n_tokens, 0);
        }
        let floats = receiver.await;
        let floats = floats.map_err(|_| ApiError::unavailable("the model was unloaded"))??;
        Ok(Self {
            model,
            n_embd,
            ranker,
            _use: in_use,
            floats,
            n_tokens,
        })
    }

    /// The score of each vector.
    fn scores(&self) -> Result<Vec<f32>> {
        let each = self.floats.chunks_exact(self.n_embd);
        let ranker = self.ranker.as_ref();
        let scores = each.map(|vector| ranker?.score(vector));
        let scores: Option<Vec<f32>> = scores.collect();
        let scores = scores.ok_or_else(|| ApiError::field("model", NO_HEAD))?;
        match scores.iter().all(|score| score.is_finite()) {
            true => Ok(scores),
            false => Err(ApiError::internal(
                "a score is not finite: the model's weights are damaged",
            )),
        }
    }
}

/// Keeps the first `length` numbers of each vector (n_embd), in the same buffer.
fn cut(floats: &mut Vec<f32>, n_embd: usize, length: usize) {
    if length < n_embd {
        let n = floats.len() / n_embd;
        for i in 1..n {
            floats.copy_within(i * n_embd..i * n_embd + length, i * length);
        }
        floats.truncate(n * length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_cut_in_their_buffer() {
        let mut floats = vec![3.0, 4.0, 12.0, 8.0, 6.0, 1.0];
        let at = floats.as_ptr();
        cut(&mut floats, 3, 2);
        assert_eq!(floats, [3.0, 4.0, 8.0, 6.0]);
        assert_eq!(floats.as_ptr(), at);
    }
}
