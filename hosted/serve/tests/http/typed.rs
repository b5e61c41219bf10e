//! Requests as plain values instead of JSON, in the same process.

use crate::client::options;
use core::time::Duration;
use serde_json::{Value, json};
use sluice::Team;
use sluice::host::topology::Cores;
use sluice_serve::api::{
    AnswerEvent, CompletionPrompt, CompletionRequest, EmbeddingInput, EmbeddingRequest, ErrorKind,
    Reason,
};
use sluice_serve::{Call, ReplyPart, Service};

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

fn posted(service: &Service, path: &str, body: &Value) -> Value {
    let reply = service.call(Call {
        path: path.to_owned(),
        body: Some(body.to_string().into_bytes()),
        wrap: None,
    });
    let mut bytes = Vec::new();
    loop {
        match reply.next(PATIENCE).unwrap() {
            ReplyPart::Status(_) => {}
            ReplyPart::Bytes(part) => bytes.extend(part),
            ReplyPart::End => return serde_json::from_slice(&bytes).unwrap(),
            ReplyPart::Broken => panic!("the service has ended"),
        }
    }
}

#[test]
fn a_typed_request_has_the_answer_of_its_route() {
    let service = service();
    let mut request = CompletionRequest::new(service.defaults());
    request.prompts = vec![CompletionPrompt::text("Once upon a time")];
    request.generation.max_tokens = Some(8);
    request.generation.seed = Some(7);
    let answer = service.complete(request.clone(), None).wait(PATIENCE);
    let mut answer = answer.unwrap().unwrap();
    let (mut text, mut reason) = (String::new(), None);
    while let Some(event) = answer.next(PATIENCE).unwrap() {
        match event.unwrap() {
            AnswerEvent::Piece { piece, .. } => text.push_str(&piece.text),
            AnswerEvent::End { end, .. } => reason = Some(end.reason),
            _ => {}
        }
    }
    assert_eq!(reason, Some(Reason::Length));
    assert_eq!(answer.total().usage.n_predicted, 8);
    let ask = json!({"prompt": "Once upon a time", "max_tokens": 8, "seed": 7});
    let whole = posted(&service, "/v1/completions", &ask);
    assert_eq!(whole["choices"][0]["text"], text);
    // Errors name the field of the value.
    request.generation.stop_tokens = vec![1 << 30];
    let refused = service.complete(request, None).wait(PATIENCE).unwrap();
    let error = refused.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert_eq!(error.field.as_deref(), Some("stop_tokens[0]"));
}

#[test]
fn vectors_are_those_of_the_route() {
    let service = service();
    let texts = ["A cat sat.", "A dog ran."];
    let input = texts.map(|text| EmbeddingInput::Text(text.to_owned()));
    let found = service.embed(EmbeddingRequest::new(input.into()));
    let found = { found }.wait(PATIENCE).unwrap().unwrap();
    let route = posted(&service, "/v1/embeddings", &json!({"input": texts}));
    let data = route["data"].as_array().unwrap();
    assert_eq!(data.len(), found.floats.len() / found.length);
    for (vector, listed) in found.floats.chunks(found.length).zip(data) {
        let listed: Vec<f32> = serde_json::from_value(listed["embedding"].clone()).unwrap();
        assert_eq!(vector, listed);
    }
}
