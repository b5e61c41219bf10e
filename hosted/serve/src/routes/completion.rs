//! `POST /v1/completions`, and llama-server's own `/completion`.

use super::prompts::{prompts, text_of};
use super::{Prepared, infill, prepare};
use crate::answer::{CompletionShape, NativeShape};
use crate::api::error::ApiError;
use crate::api::fields::Fields;
use crate::api::request::{Asked, Kind, TOP_MAX};
use crate::chat::answer::Constraint;
use crate::http::Context;
use crate::models::Lease;
use axum::Extension;
use axum::extract::Request;
use axum::response::Response;

type Result<T> = core::result::Result<T, ApiError>;

pub(super) async fn answer(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    super::write(context, request, prepare).await
}

pub(super) async fn native(
    Extension(context): Extension<Context>,
    request: Request,
) -> Result<Response> {
    super::write(context, request, |lease, fields, context| {
        let prompts = prompts(fields, "prompt", lease.model())?;
        prepare_native(lease, fields, prompts, context)
    })
    .await
}

fn prepare(
    lease: Lease,
    fields: Fields<'_>,
    context: &Context,
) -> Result<Prepared<CompletionShape>> {
    let defaults = context.app.defaults();
    let asked = Asked::read(fields, Kind::Completion, defaults, &lease, context.arrived)?;
    let echo = fields.bool("echo")?.unwrap_or(false);
    let model = lease.model();
    let mut all = prompts(fields, "prompt", model)?.0;
    if let Some(suffix) = fields.str("suffix")?.filter(|suffix| !suffix.is_empty()) {
        let prefix = fields.str("prompt");
        let prefix =
            prefix.map_err(|_| ApiError::field("suffix", "needs a prompt that is one text"))?;
        all = vec![infill::fill(
            "suffix",
            model,
            prefix.unwrap_or_default(),
            suffix,
        )?];
    }
    let mut prompted = Vec::with_capacity(all.len());
    let mut echoes = Vec::new();
    for tokens in all {
        if context.app.options().log_prompts {
            context.tell_prompt(&text_of(&tokens, model));
        }
        let text = if echo {
            text_of(&tokens, model)
        } else {
            String::new()
        };
        echoes.extend(core::iter::repeat_n(text, asked.n));
        prompted.push(prepare::prompted(
            context,
            &lease,
            &asked,
            &Constraint::default(),
            tokens,
            Vec::new(),
        )?);
    }
    let shape = CompletionShape::new(
        prepare::head(&lease, "cmpl-"),
        model,
        &asked,
        (echoes, echo),
    );
    Ok((lease, asked, prompted, shape))
}

/// The same for replies in llama-server's own form.
pub(super) fn prepare_native(
    lease: Lease,
    fields: Fields<'_>,
    (all, is_list): (Vec<Vec<u32>>, bool),
    context: &Context,
) -> Result<Prepared<NativeShape>> {
    let defaults = context.app.defaults();
    let asked = Asked::read(fields, Kind::Native, defaults, &lease, context.arrived)?;
    let returns_tokens = fields.bool("return_tokens")?.unwrap_or(false);
    let scores = fields.count("prompt_logprobs", 0..=TOP_MAX)?;
    let mut prompted = Vec::with_capacity(all.len());
    let mut shown = Vec::new();
    for tokens in all {
        let text = text_of(&tokens, lease.model());
        context.tell_prompt(&text);
        shown.extend(core::iter::repeat_n((text, tokens.len()), asked.n));
        prompted.push(prepare::prompted(
            context,
            &lease,
            &asked,
            &Constraint::default(),
            tokens,
            Vec::new(),
        )?);
    }
    let head = prepare::head(&lease, "");
    let shown = (shown, is_list);
    let shape = NativeShape::new(head, lease.model(), &asked, shown, (returns_tokens, scores));
    Ok((lease, asked, prompted, shape))
}
