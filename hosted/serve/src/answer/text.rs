//! Turns requests for text into jobs of the engine.

use super::app::{App, Context, Resumable, unix_time};
use super::kept::KeptText;
use super::prompts::{text_of, tokens_of};
use super::run::{ReadyPrompt, ScoredPrompt, TextAnswer};
use super::sampler::{self, Terms, check_length};
use super::streams::Keep;
use crate::api::{
    ApiError, ChatPrompt, ChatRequest, CompletionRequest, ErrorKind, EventId, Generation,
    LAST_EVENT_ID, PromptInfo, Start, StreamId,
};
use crate::chat::answer::{Answers, Constraint};
use crate::chat::conversation::Conversation;
use crate::engine::ScoreJob;
use crate::keys::{Admitted, Demand};
use crate::metrics::Metrics;
use crate::models::{Lease, Loaded, ModelUse};
use core::time::Duration;
use sha2::{Digest as _, Sha256};
use sluice::model::ModelSource;
use sluice::sequence::Choose;
use sluice_text::chat::Prompt;
use sluice_text::sampling::SamplingSettings;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

type Result<T> = core::result::Result<T, ApiError>;

/// Starts answering a conversation.
pub(crate) async fn chat(context: &Context, request: ChatRequest) -> Result<TextAnswer> {
    context.check(&request.generation)?;
    let lease = context.decoder(&request.model).await?;
    let (inner, load_time) = (context.clone(), context.arrived.elapsed());
    let work = move || prepare_chat(lease, request, &inner);
    let mut prepared = context.work(work).await??;
    prepared.start.load_time = load_time;
    let admitted = context.key.admit(prepared.demand(false))?;
    prepared.submit(context, admitted).await
}

/// Starts continuing texts.
pub(crate) async fn complete(context: &Context, request: CompletionRequest) -> Result<TextAnswer> {
    context.check(&request.generation)?;
    let lease = context.decoder(&request.model).await?;
    let prompt_logprobs = request.prompt_logprobs;
    let (inner, load_time) = (context.clone(), context.arrived.elapsed());
    let work = move || prepare_completion(lease, &request, &inner);
    let mut prepared = context.work(work).await??;
    prepared.start.load_time = load_time;
    // Once for all: what was scored is not refused afterwards.
    let admitted = context
        .key
        .admit(prepared.demand(prompt_logprobs.is_some()))?;
    let scores = match prompt_logprobs {
        Some(n_top) => {
            let tokens = prepared.ready.iter().map(|prompt| prompt.tokens.clone());
            let (in_use, terms) = (&prepared.in_use, &prepared.terms);
            let (tokens, admitted) = (tokens.collect(), admitted.clone());
            score(context, in_use, terms, tokens, n_top, admitted).await?
        }
        None => Vec::new(),
    };
    let mut answer = prepared.submit(context, admitted).await?;
    answer.add_scores(&scores);
    Ok(answer)
}

/// Renders a conversation.
pub(crate) async fn prompt(context: &Context, mut request: ChatRequest) -> Result<ChatPrompt> {
    let lease = context.model(request.model.name.as_deref()).await?;
    context.tidy(&mut request);
    let work = move || {
        let mut conversation = Conversation::take(&mut request)?;
        let prompts = lease.prompts();
        Answers::take(&mut request, prompts, &mut conversation)?;
        let prompt = prompts.prompt(lease.model(), &conversation, None)?;
        Ok(ChatPrompt {
            text: prompt.text,
            tokens: prompt.tokens,
            stop: prompts.stop().map(str::to_owned),
        })
    };
    context.work(work).await?
}

/// The sampler of a text.
pub(crate) fn sampler_of(
    app: &App,
    loaded: &Loaded,
    generation: Generation,
) -> Result<Box<dyn Choose + Send>> {
    let defaults = app.defaults_named(Some(loaded.name()));
    let terms = Terms::new(generation, defaults, loaded, Instant::now())?;
    sampler::sampler(loaded, &terms.generation, &Constraint::default(), None)
}

/// A request that is ready for the engine. While it waits, its model may be unloaded and loaded again.
struct Prepared {
    in_use: ModelUse,
    start: Start,
    terms: Terms,
    ready: Vec<ReadyPrompt>,
}

/// The prompt of a conversation, if it fits into the context.
fn chat_prompt(lease: &Lease, conversation: &Conversation) -> Result<Prompt> {
    let n_ctx = Some(lease.n_ctx());
    let prompt = lease.prompts().prompt(lease.model(), conversation, n_ctx)?;
    check_length(lease, prompt.tokens.len()).map(|()| prompt)
}

/// A conversation without as many of its oldest turns as do not fit into the context, and its prompt. Found by halving: one
/// that is far too long has thousands of turns.
fn shortened(lease: &Lease, conversation: &Conversation) -> Result<(Conversation, Prompt)> {
    let attempt = |n| {
        let shorter = conversation.without_oldest(n);
        chat_prompt(lease, &shorter).map(|prompt| (shorter, prompt))
    };
    let (mut too_few, mut enough) = (0, conversation.n_droppable());
    let mut found = attempt(enough)?;
    while too_few + 1 < enough {
        let n = too_few.midpoint(enough);
        match attempt(n) {
            Ok(shorter) => (found, enough) = (shorter, n),
            Err(error) if is_too_long(&error) => too_few = n,
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

const fn is_too_long(error: &ApiError) -> bool {
    matches!(error.kind, ErrorKind::TooLong { .. })
}

fn prepare_chat(lease: Lease, mut request: ChatRequest, context: &Context) -> Result<Prepared> {
    context.tidy(&mut request);
    let generation = request.generation.clone();
    let defaults = context.app.defaults_named(Some(lease.model_name()));
    let mut terms = Terms::new(generation, defaults, &lease, context.arrived)?;
    let mut conversation = Conversation::take(&mut request)?;
    let (model, prompts) = (lease.model(), lease.prompts());
    if request.must_reason && !prompts.reasons() {
        let what = format!("{} does not support thinking", lease.name());
        return Err(ApiError::field("must_reason", what));
    }
    let n_messages = conversation.messages.len();
    let stop = prompts.stop().map(str::to_owned);
    terms.generation.stop.extend(stop);
    let answers = Answers::take(&mut request, prompts, &mut conversation)?;
    let prompt = match chat_prompt(&lease, &conversation) {
        Err(error)
            if request.drops_oldest && conversation.n_droppable() > 0 && is_too_long(&error) =>
        {
            let prompt;
            (conversation, prompt) = shortened(&lease, &conversation)?;
            prompt
        }
        prompt => prompt?,
    };
    context.tell_prompt(&prompt.text);
    let borders = prompts.borders(model, &conversation, &prompt.tokens);
    let constraint = answers.constraint(&prompt.text, terms.generation.grammar.as_ref())?;
    terms.generation.shows_special |= answers.reads_marks();
    let n_tokens = prompt.tokens.len();
    let mut prompt_of_chat = ready_prompt(context, &lease, &terms, &constraint, prompt.tokens)?;
    prompt_of_chat.borders = borders;
    let seed = terms.generation.sampling.config.seed;
    let numbers = (0..).take(terms.generation.n);
    let parsers = numbers.map(|number| answers.answer(&prompt.text, seed, number));
    prompt_of_chat.parsers = parsers.collect();
    let info = PromptInfo {
        text: String::new(),
        n_tokens,
    };
    let ready = vec![prompt_of_chat];
    let mut prepared = Prepared::new(context, lease, terms, ready, vec![info])?;
    prepared.start.n_left_out = n_messages - conversation.messages.len();
    Ok(prepared)
}

fn prepare_completion(
    lease: Lease,
    request: &CompletionRequest,
    context: &Context,
) -> Result<Prepared> {
    let defaults = context.app.defaults_named(Some(lease.model_name()));
    let generation = request.generation.clone();
    let terms = Terms::new(generation, defaults, &lease, context.arrived)?;
    let all = tokens_of(&request.prompts, &lease)?;
    let has_text = request.returns_prompts || context.app.options().log_prompts;
    let mut prompts = Vec::with_capacity(all.len());
    let mut ready = Vec::with_capacity(all.len());
    for tokens in all {
        let text = match has_text {
            true => text_of(&tokens, lease.model()),
            false => String::new(),
        };
        context.tell_prompt(&text);
        prompts.push(PromptInfo {
            n_tokens: tokens.len(),
            text: match request.returns_prompts {
                true => text,
                false => String::new(),
            },
        });
        let none = Constraint::default();
        ready.push(ready_prompt(context, &lease, &terms, &none, tokens)?);
    }
    Prepared::new(context, lease, terms, ready, prompts)
}

/// A prompt with a sampler for each of its texts.
fn ready_prompt(
    context: &Context,
    loaded: &Loaded,
    terms: &Terms,
    constraint: &Constraint,
    tokens: Vec<u32>,
) -> Result<ReadyPrompt> {
    check_length(loaded, tokens.len())?;
    let generation = &terms.generation;
    let samplers = (0..generation.n).map(|_| {
        let helper = context.app.work().helper();
        let sampler = sampler::sampler(loaded, generation, constraint, helper)?;
        Ok(match &context.wrap {
            Some(wrap) => wrap(sampler, loaded.model()),
            None => sampler,
        })
    });
    Ok(ReadyPrompt {
        tokens,
        borders: Vec::new(),
        samplers: samplers.collect::<Result<_>>()?,
        parsers: Vec::new(),
    })
}

impl Prepared {
    fn new(
        context: &Context,
        lease: Lease,
        terms: Terms,
        ready: Vec<ReadyPrompt>,
        prompts: Vec<PromptInfo>,
    ) -> Result<Self> {
        let stream = context.stream.as_ref();
        let settings = stream.map_or(0, |_| settings_hash(&terms, &ready));
        let after = stream.and_then(|stream| stream.after.as_deref());
        if let Some(after) = after {
            check_same(after, lease.fingerprint(), settings)?;
        }
        let generation = &terms.generation;
        let start = Start {
            model: ModelSource::clone(lease.model()),
            name: lease.name().to_owned(),
            fingerprint: lease.fingerprint().to_owned(),
            stream: after.map_or_else(|| StreamId::new(unix_time()), |after| after.stream),
            settings,
            sampling: generation.sampling.clone(),
            max_tokens: generation.max_tokens,
            stop: generation.stop.clone(),
            prompts,
            n: generation.n,
            n_ctx: lease.n_ctx(),
            arrived: context.arrived,
            load_time: Duration::ZERO,
            n_left_out: 0,
        };
        Ok(Self {
            in_use: lease.into_use(),
            start,
            terms,
            ready,
        })
    }

    /// What a key uses for it, with the tokens that are scored before.
    fn demand(&self, is_scored: bool) -> Demand {
        let prompts = self.ready.iter();
        let n_prompt: usize = prompts.map(|prompt| prompt.tokens.len()).sum();
        Demand {
            n_texts: self.ready.iter().map(|prompt| prompt.samplers.len()).sum(),
            n_prompt: n_prompt * (1 + usize::from(is_scored)),
            n_predict: self.terms.generation.max_tokens,
        }
    }

    /// Submits the prompts to the engine. If one is refused, all are.
    async fn submit(
        self,
        context: &Context,
        admitted: Option<Arc<Admitted>>,
    ) -> Result<TextAnswer> {
        let is_one = matches!(&*self.ready, [prompt] if prompt.samplers.len() == 1);
        let keep = match &context.stream {
            Some(stream) if is_one => {
                let metrics = self.in_use.metrics();
                Some(keep(context, stream, self.start.stream, metrics).await)
            }
            Some(Resumable { after: Some(_) }) => {
                context.app.streams().count_repeated();
                None
            }
            _ => None,
        };
        let Self {
            in_use,
            start,
            terms,
            ready,
        } = self;
        TextAnswer::submit(in_use, start, &terms, ready, context, admitted, keep)
    }
}

/// Keeps the text of a stream from now on, after what is known of it.
async fn keep(context: &Context, stream: &Resumable, id: StreamId, metrics: &Arc<Metrics>) -> Keep {
    let (streams, key) = (context.app.streams(), context.key.name());
    let awaited = streams.awaited(metrics);
    let part = match &stream.after {
        Some(_) => streams.take(id, key).await,
        None => None,
    };
    if stream.after.is_some() {
        let how = if part.is_some() {
            "goes on with"
        } else {
            "computes again"
        };
        (context.app.log())(&format!("{} {how} stream {id}", context.request));
    }
    let awaited = part.is_some().then_some(awaited);
    let part = part.unwrap_or_default();
    let text = KeptText::new(part.record.clone(), awaited);
    let place = streams.enter(id, key, &text);
    Keep { text, place, part }
}

/// Refuses to take up a stream of which other tokens would come now.
fn check_same(after: &EventId, fingerprint: &str, settings: u32) -> Result<()> {
    let what = if after.fingerprint != EventId::fingerprint(fingerprint) {
        "the model or its adapters are not the stream's, so the rest of its text cannot be computed; send the request \
         without Last-Event-ID"
    } else if after.settings != settings {
        "the server's settings are not the stream's, so the rest of its text cannot be computed; send the request \
         without Last-Event-ID"
    } else {
        return Ok(());
    };
    Err(ApiError::conflict(LAST_EVENT_ID, what))
}

/// A hash of what the server's defaults and templates make of a request's body.
fn settings_hash(terms: &Terms, ready: &[ReadyPrompt]) -> u32 {
    let Generation {
        max_tokens,
        sampling,
        stop,
        shows_special,
        ..
    } = &terms.generation;
    let mut hash = Sha256::new();
    // Biases come from the body, and may be as many as the vocabulary.
    let plain = SamplingSettings {
        biases: Vec::new(),
        ..sampling.clone()
    };
    let shown = format!(
        "{max_tokens:?} {plain:?} {stop:?} {shows_special} {:?}",
        terms.shift
    );
    hash.update(shown);
    for prompt in ready {
        hash.update(prompt.tokens.len().to_le_bytes());
        prompt
            .tokens
            .iter()
            .for_each(|token| hash.update(token.to_le_bytes()));
    }
    let digest = hash.finalize();
    digest[..4]
        .iter()
        .fold(0, |hash, &byte| hash << 8 | u32::from(byte))
}

/// Scores all prompts, before any is answered.
async fn score(
    context: &Context,
    in_use: &ModelUse,
    terms: &Terms,
    prompts: Vec<Vec<u32>>,
    n_top: usize,
    admitted: Option<Arc<Admitted>>,
) -> Result<Vec<ScoredPrompt>> {
    let mut waiting = Vec::with_capacity(prompts.len());
    for tokens in &prompts {
        let (answer, receiver) = oneshot::channel();
        context.app.models().engine().score(ScoreJob {
            model: in_use.id(),
            tokens: tokens.clone(),
            n_top,
            adapter: in_use.blend().cloned(),
            share: context.share.clone(),
            domain: context.domain(&terms.generation.cache_salt),
            meter: admitted.clone().map(|admitted| admitted as _),
            answer,
        })?;
        waiting.push(receiver);
    }
    let mut all = Vec::with_capacity(waiting.len());
    for (tokens, receiver) in prompts.into_iter().zip(waiting) {
        let scores = match terms.deadline {
            None => receiver.await,
            Some(deadline) => {
                let scores = timeout_at(deadline.into(), receiver).await;
                scores.map_err(|_| ApiError::late())?
            }
        };
        let scores = scores.map_err(|_| ApiError::unavailable("the model was unloaded"))??;
        all.push(ScoredPrompt { tokens, scores });
    }
    Ok(all)
}
