//! `POST /v1/chat/completions`.

use super::{prepare, respond};
use crate::answer::{ChatShape, Prompted, Run};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::request::{Asked, Kind};
use crate::chat::answer::Answers;
use crate::chat::messages::conversation;
use crate::http::{Context, body};
use crate::models::Lease;
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, ApiError> {
    let posted = body::json(&context, request).await?;
    let lease = context.decoder(posted.model()?).await?;
    let inner = context.clone();
    let prepared = context
        .app
        .work()
        .run(move || prepare(lease, &posted, &inner))
        .await??;
    let (lease, asked, prompted, shape) = prepared;
    let run = Run::submit(lease, &asked, vec![prompted], &context, shape)?;
    respond(run, asked.stream, &context).await
}

type Prepared = (Lease, Asked, Prompted, ChatShape);

fn prepare(lease: Lease, posted: &body::Posted, context: &Context) -> Result<Prepared, ApiError> {
    let fields = Fields::of_body(&posted.value)?;
    let defaults = context.app.defaults();
    let mut asked = Asked::read(fields, Kind::Chat, defaults, &lease, context.arrived)?;
    let mut conversation = conversation(fields, &defaults.template_kwargs)?;
    let (model, prompts) = (lease.model(), lease.prompts());
    asked.stops.extend(prompts.stop().map(str::to_owned));
    let answers = Answers::read(fields, defaults, prompts, &mut conversation)?;
    let prompt = prompts.prompt(model, &conversation)?;
    context.tell_prompt(&prompt.text);
    let borders = prompts.borders(model, &conversation, &prompt.tokens);
    let field = asked.grammar.as_ref().map(|_| asked.grammar_field);
    let constraint = answers.constraint(&prompt.text, field)?;
    let mut prompted = prepare::prompted(&lease, &asked, &constraint, prompt.tokens, borders)?;
    prompted.shows_special = answers.reads_marks();
    let seed = asked.settings.config.seed;
    let numbers = (0..).take(asked.n);
    let answers = numbers
        .map(|number| answers.answer(&prompt.text, seed, number))
        .collect();
    let shape = ChatShape::new(prepare::head(&lease, "chatcmpl-"), model, &asked, answers);
    Ok((lease, asked, prompted, shape))
}
