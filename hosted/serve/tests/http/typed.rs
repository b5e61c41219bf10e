//! Requests as plain values instead of JSON, in the same process.

use crate::client::{Running, options, until};
use core::time::Duration;
use serde_json::json;
use sluice::Team;
use sluice::host::topology::Cores;
use sluice_serve::api::{
    AnswerEvent, CompletionPrompt, CompletionRequest, EmbeddingRequest, ErrorKind, PromptPart,
    Reason,
};
use sluice_serve::{AnswerPart, Service};
use std::sync::mpsc;

const PATIENCE: Duration = Duration::from_secs(120);

fn service() -> Service {
    let mut starting = Service::start(|| {
        let mut config = options();
        config.models.named.truncate(1);
        Ok((config, Team::new(1, &Cores::detect()).unwrap()))
    })
    .unwrap();
    starting.wait(PATIENCE).unwrap().unwrap()
}

/// A server with the options of [`service`].
fn server() -> Running {
    let mut config = options();
    config.models.named.truncate(1);
    Running::start(config)
}

#[test]
fn a_typed_request_has_the_answer_of_its_route() {
    let service = service();
    let mut request = CompletionRequest::new(service.defaults());
    request.prompts = vec![CompletionPrompt::text("Once upon a time")];
    request.generation.max_tokens = Some(8);
    request.generation.seed = Some(7);
    let answer = service.complete(request.clone(), None);
    let parts = answer.read(true, PATIENCE).unwrap().unwrap();
    let (mut text, mut reason, mut n_predicted) = (String::new(), None, 0);
    assert!(matches!(parts[0], AnswerPart::Start(_)));
    for part in parts {
        match part {
            AnswerPart::Event(AnswerEvent::Piece { piece, .. }) => text.push_str(&piece.text),
            AnswerPart::Event(AnswerEvent::End { end, .. }) => reason = Some(end.reason),
            AnswerPart::Total(total) => n_predicted = total.usage.n_predicted,
            _ => {}
        }
    }
    assert_eq!((reason, n_predicted), (Some(Reason::Length), 8));
    assert!(answer.read(false, PATIENCE).unwrap().unwrap().is_empty());
    let ask = json!({"prompt": "Once upon a time", "max_tokens": 8, "seed": 7});
    let whole = server().post("/v1/completions", &ask).json();
    assert_eq!(whole["choices"][0]["text"], text);
    // Errors name the field of the value.
    request.generation.stop_tokens = vec![1 << 30];
    let refused = service
        .complete(request, None)
        .read(false, PATIENCE)
        .unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(error.field.as_deref(), Some("stop_tokens[0]"));
}

#[test]
fn parts_are_read_as_they_come_or_all_at_once() {
    let service = service();
    let mut request = CompletionRequest::new(service.defaults());
    request.prompts = vec![CompletionPrompt::text("Once")];
    request.generation.max_tokens = Some(400);
    request.generation.sampling.ignore_eos = true;
    request.generation.streams = true;
    let answer = service.complete(request.clone(), None);
    let mut n_parts = Vec::new();
    loop {
        let parts = answer.read(false, PATIENCE).unwrap().unwrap();
        if parts.is_empty() {
            break;
        }
        n_parts.push(parts.len());
    }
    // A start, a piece for each token, an end, a total.
    assert_eq!(n_parts.iter().sum::<usize>(), 403);
    assert!(n_parts.len() > 2, "{n_parts:?}");
    // A reader that is dropped while a task reads it ends both.
    request.generation.max_tokens = None;
    let (told, waits) = mpsc::channel();
    let answer = service.complete(request, None);
    assert!(answer.read(true, Duration::from_millis(1)).is_none());
    answer.when_read(true, move |parts| told.send(parts.map(drop)).unwrap());
    drop(answer);
    let error = waits.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    until("it is kept", || service.n_running(None) == 0);
}

#[test]
fn vectors_are_those_of_the_route() {
    let service = service();
    let texts = ["A cat sat.", "A dog ran."];
    let input = texts.map(|text| vec![PromptPart::Text(text.to_owned())]);
    let found = service.embed(EmbeddingRequest::new(input.into()));
    let found = { found }.wait(PATIENCE).unwrap().unwrap();
    let ask = json!({"input": texts});
    let route = server().post("/v1/embeddings", &ask).json();
    let data = route["data"].as_array().unwrap();
    assert_eq!(data.len(), found.floats.len() / found.length);
    for (vector, listed) in found.floats.chunks(found.length).zip(data) {
        let listed: Vec<f32> = serde_json::from_value(listed["embedding"].clone()).unwrap();
        assert_eq!(vector, listed);
    }
}
