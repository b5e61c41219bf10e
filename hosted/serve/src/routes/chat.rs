//! `POST /v1/chat/completions`.

use super::{Prepared, prepare};
use crate::answer::ChatShape;
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::request::{Asked, Kind};
use crate::chat::answer::Answers;
use crate::chat::messages::conversation;
use crate::http::Context;
use crate::models::Lease;
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response, ApiError> {
    super::write(context, request, prepare).await
}

fn prepare(
    lease: Lease,
    fields: Fields<'_>,
    context: &Context,
) -> Result<Prepared<ChatShape>, ApiError> {
    let defaults = context.app.defaults();
    let mut asked = Asked::read(fields, Kind::Chat, defaults, &lease, context.arrived)?;
    let mut conversation = conversation(fields, &defaults.template_kwargs)?;
    let (model, prompts) = (lease.model(), lease.prompts());
    asked.stops.texts.extend(prompts.stop().map(str::to_owned));
    let answers = Answers::read(fields, defaults, prompts, &mut conversation)?;
    let prompt = prompts.prompt(model, &conversation)?;
    context.tell_prompt(&prompt.text);
    let borders = prompts.borders(model, &conversation, &prompt.tokens);
    let field = asked.grammar.as_ref().map(|_| asked.grammar_field);
    let constraint = answers.constraint(&prompt.text, field)?;
    let mut prompted =
        prepare::prompted(context, &lease, &asked, &constraint, prompt.tokens, borders)?;
    prompted.shows_special |= answers.reads_marks();
    let seed = asked.settings.config.seed;
    let numbers = (0..).take(asked.n);
    let answers = numbers
        .map(|number| answers.answer(&prompt.text, seed, number))
        .collect();
    let shape = ChatShape::new(prepare::head(&lease, "chatcmpl-"), model, &asked, answers);
    Ok((lease, asked, vec![prompted], shape))
}
