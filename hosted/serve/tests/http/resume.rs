//! Streams that broke are taken up again.

use crate::client::{Reply, Running, options, receive, until};
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader};
use std::sync::Arc;

/// An event of a stream: its id, if it has one, and its data.
type Event = (Option<String>, String);

fn events_of(body: &str) -> Vec<Event> {
    let events = body.split("\n\n").filter(|event| !event.is_empty());
    let field = |event: &str, name: &str| {
        let mut lines = event.lines();
        lines.find_map(|line| line.strip_prefix(name).map(str::to_owned))
    };
    let events = events.filter_map(|event| Some((field(event, "id: "), field(event, "data: ")?)));
    events.collect()
}

/// Events without what depends on when they were computed.
fn timeless(events: &[Event]) -> Vec<Event> {
    fn strip(value: &mut Value) {
        match value {
            Value::Object(fields) => {
                for name in ["timings", "usage", "tokens_cached", "id_slot"] {
                    fields.remove(name);
                }
                fields.values_mut().for_each(strip);
            }
            Value::Array(items) => items.iter_mut().for_each(strip),
            _ => {}
        }
    }
    let events = events.iter().map(|(id, data)| {
        let data = serde_json::from_str(data).map_or_else(
            |_| data.clone(),
            |mut value: Value| {
                strip(&mut value);
                value.to_string()
            },
        );
        (id.clone(), data)
    });
    events.collect()
}

fn resume(server: &Running, path: &str, ask: &Value, id: &str) -> Reply {
    let head = format!("POST {path} HTTP/1.1\r\nlast-event-id: {id}");
    receive(server.send(&head, &ask.to_string()))
}

/// Reads a stream up to its `n`th event with an id, and leaves.
fn broken(server: &Running, path: &str, ask: &Value, n: usize) -> String {
    let head = format!("POST {path} HTTP/1.1");
    let stream = BufReader::new(server.send(&head, &ask.to_string()));
    let ids = stream
        .lines()
        .filter_map(|line| Some(line.ok()?.strip_prefix("id: ")?.to_owned()));
    ids.take(n).last().unwrap()
}

/// The figure of a metric.
fn metric(server: &Running, name: &str) -> u64 {
    let page = server.get("/metrics").body;
    let line = page.lines().find_map(|line| {
        line.strip_prefix(&format!("sluice:{name} "))
            .map(str::to_owned)
    });
    line.unwrap().parse().unwrap()
}

/// Requests of each dialect.
fn asked() -> [(&'static str, Value); 6] {
    let messages = json!([{"role": "user", "content": "Tell a tale."}]);
    [
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 30, "stream": true, "logprobs": true, "top_logprobs": 2,
                "stream_options": {"include_usage": true}}),
        ),
        (
            "/v1/completions",
            json!({"prompt": "Once", "max_tokens": 30, "stream": true, "temperature": 1.2, "echo": true}),
        ),
        (
            "/completion",
            json!({"prompt": "Once", "n_predict": 30, "stream": true, "mirostat": 2, "return_tokens": true}),
        ),
        (
            "/v1/messages",
            json!({"messages": messages, "max_tokens": 30, "stream": true, "stop_sequences": [" the"]}),
        ),
        (
            "/v1/responses",
            json!({"input": "Tell a tale.", "max_output_tokens": 30, "stream": true,
                "include": ["message.output_text.logprobs"]}),
        ),
        (
            "/v1/chat/completions",
            json!({"messages": messages, "max_tokens": 40, "stream": true,
                "json_schema": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}}),
        ),
    ]
}

#[test]
fn the_rest_of_a_stream_comes_after_any_event_kept_or_computed_again() {
    let server = Running::start(options());
    let other = Running::start(options());
    for (path, ask) in asked() {
        let all = server.post(path, &ask);
        assert_eq!(all.status, 200, "{}", all.body);
        let all = timeless(&events_of(&all.body));
        let ids: Vec<_> = all.iter().filter_map(|(id, _)| id.clone()).collect();
        assert!(ids.len() > 5, "{path}");
        for (n, id) in ids.iter().enumerate() {
            let at = all.iter().position(|event| event.0.as_ref() == Some(id));
            let rest = &all[at.unwrap() + 1..];
            let reply = resume(&server, path, &ask, id);
            assert_eq!(reply.status, 200, "{}", reply.body);
            assert_eq!(timeless(&events_of(&reply.body)), rest, "{path} after {id}");
            if n % 9 == 3 {
                let reply = resume(&other, path, &ask, id);
                assert_eq!(reply.status, 200, "{}", reply.body);
                assert_eq!(timeless(&events_of(&reply.body)), rest, "{path} after {id}");
            }
        }
    }
    assert_eq!(metric(&server, "streams_repeated_total"), 0);
    assert!(metric(&server, "streams_continued_total") > 100);
    // What it has computed once, it keeps.
    assert_eq!(metric(&other, "streams_repeated_total"), 6);
}

#[test]
fn a_stream_goes_on_where_it_broke_and_its_place_is_free_at_once() {
    let server = Running::start(options());
    for (path, mut ask) in asked() {
        for name in ["max_tokens", "n_predict", "max_output_tokens"] {
            if ask.get(name).is_some() {
                ask[name] = 300.into();
            }
        }
        let mut n_unfinished = 0;
        for n in [1, 2, 9, 23] {
            let id = broken(&server, path, &ask, n);
            until("the place is not free", || {
                let slots = server.get("/slots").json();
                let slots = slots.as_array().unwrap().clone();
                slots.iter().all(|slot| slot["is_processing"] == false)
            });
            assert!(metric(&server, "streams_kept") >= 1);
            let continued = || metric(&server, "streams_continued_total");
            let repeated = || metric(&server, "streams_repeated_total");
            let before = (continued(), repeated());
            let n_tokens = || tokens_read(&server);
            let n_read = n_tokens();
            let n_steps = metric(&server, STEPS);
            let first = resume(&server, path, &ask, &id);
            assert_eq!(first.status, 200, "{}", first.body);
            let rest = timeless(&events_of(&first.body));
            // After the first event, the text may not have begun to be read.
            let is_continued = n > 2 || continued() > before.0;
            let n_continued = u64::from(is_continued);
            let expected = (before.0 + n_continued, before.1 + 1 - n_continued);
            assert_eq!(
                (continued(), repeated()),
                expected,
                "{path} after {n} events"
            );
            let n_steps = metric(&server, STEPS) - n_steps;
            let went_on = is_continued && n_tokens() > n_read;
            let expected = if went_on { 1..=2 } else { 0..=0 };
            assert!(
                expected.contains(&n_steps),
                "{path} after {n} events: {n_steps} steps"
            );
            n_unfinished += u64::from(n_tokens() > n_read);
            // It broke once more, at its very end.
            let again = resume(&server, path, &ask, &id);
            assert_eq!(timeless(&events_of(&again.body)), rest, "{path} after {id}");
            // Computed from the beginning, it is the same.
            let other = Running::start(options());
            let repeated = resume(&other, path, &ask, &id);
            assert_eq!(
                timeless(&events_of(&repeated.body)),
                rest,
                "{path} after {id}"
            );
        }
        assert!(
            n_unfinished > 0 || path == "/v1/messages",
            "{path}: all had ended"
        );
    }
}

#[test]
fn a_stream_goes_on_within_two_steps_while_others_write() {
    let server = Arc::new(Running::start(options()));
    let is_over = Arc::new(AtomicBool::new(false));
    let others = (0..2).map(|seed| {
        let (server, is_over) = (Arc::clone(&server), Arc::clone(&is_over));
        let ask = json!({"prompt": "Twice", "n_predict": 200, "seed": seed, "ignore_eos": true});
        std::thread::spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(server.post("/completion", &ask).status, 200);
            }
        })
    });
    let others: Vec<_> = others.collect();
    let ask = json!({"prompt": "Once", "n_predict": 300, "stream": true, "ignore_eos": true});
    for n in [2, 9, 20, 40, 60, 80] {
        let id = broken(&server, "/completion", &ask, n);
        until("it is not kept", || metric(&server, "streams_kept") >= 1);
        let (before, n_continued) = (
            metric(&server, STEPS),
            metric(&server, "streams_continued_total"),
        );
        assert_eq!(resume(&server, "/completion", &ask, &id).status, 200);
        assert_eq!(metric(&server, "streams_continued_total"), n_continued + 1);
        let n_steps = metric(&server, STEPS) - before;
        assert!(
            (1..=2).contains(&n_steps),
            "after {n} events: {n_steps} steps"
        );
    }
    is_over.store(true, Ordering::Relaxed);
    for other in others {
        other.join().unwrap();
    }
}

/// Steps from when the engine was given streams to their first new tokens.
const STEPS: &str = "streams_continued_steps_total";

/// The tokens that the server has generated.
fn tokens_read(server: &Running) -> u64 {
    let page = server.get("/metrics").body;
    let lines = page
        .lines()
        .filter(|line| line.starts_with("sluice:generation_tokens_total{"));
    lines
        .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
        .sum()
}

#[test]
fn a_stream_is_taken_over_from_a_connection_that_still_stands() {
    let server = Running::start(options());
    let ask =
        json!({"prompt": "Once", "max_tokens": 400, "stream": true, "ignore_eos": true, "seed": 3});
    let all = timeless(&events_of(&server.post("/v1/completions", &ask).body));
    let head = "POST /v1/completions HTTP/1.1";
    let mut stream = BufReader::new(server.send(head, &ask.to_string()));
    let mut line = String::new();
    while !line.starts_with("id: ") {
        line.clear();
        stream.read_line(&mut line).unwrap();
    }
    let id = line.trim_start_matches("id: ").trim_end();
    let reply = resume(&server, "/v1/completions", &ask, id);
    let texts = |events: &[Event]| -> String {
        let data = events
            .iter()
            .filter_map(|(_, data)| serde_json::from_str(data).ok());
        data.map(|data: Value| data["choices"][0]["text"].as_str().unwrap().to_owned())
            .collect()
    };
    assert_eq!(texts(&events_of(&reply.body)), texts(&all[1..]));
}

#[test]
fn several_texts_are_numbered_separately() {
    let server = Running::start(options());
    let ask =
        json!({"prompt": ["Once", "He"], "n": 2, "max_tokens": 12, "stream": true, "seed": 9});
    let texts = |events: &[Event]| {
        let mut texts = vec![String::new(); 4];
        for (_, data) in events {
            if let Ok(data) = serde_json::from_str::<Value>(data) {
                let choice = &data["choices"][0];
                let at = usize::try_from(choice["index"].as_u64().unwrap()).unwrap();
                texts[at].push_str(choice["text"].as_str().unwrap());
            }
        }
        texts
    };
    let all = events_of(&server.post("/v1/completions", &ask).body);
    for at in [0, 5, 17, 30] {
        let id = all[at].0.clone().unwrap();
        assert_eq!(id.matches(',').count(), 4, "{id}");
        let reply = resume(&server, "/v1/completions", &ask, &id);
        let rest = texts(&events_of(&reply.body));
        let both = texts(&all[..=at]).into_iter().zip(rest);
        let both: Vec<_> = both.map(|(begin, end)| begin + &end).collect();
        assert_eq!(both, texts(&all), "after {id}");
    }
}

#[test]
fn what_cannot_be_taken_up_is_refused_by_name() {
    let server = Running::start(options());
    let (path, ask) = (
        "/v1/completions",
        json!({"prompt": "Once", "max_tokens": 4, "stream": true}),
    );
    let id = broken(&server, path, &ask, 1);
    for wrong in ["7", "a.b.c", &id.replace('.', "-")] {
        resume(&server, path, &ask, wrong).is_refused_for("Last-Event-ID");
    }
    let mut other = ask.clone();
    other["prompt"] = "Twice".into();
    resume(&server, path, &other, &id).is_refused_for("Last-Event-ID");
    other = ask.clone();
    other["stream"] = false.into();
    resume(&server, path, &other, &id).is_refused_for("Last-Event-ID");
    resume(&server, path, &ask, &format!("{id},4")).is_refused_for("Last-Event-ID");
    let digit = if id.starts_with('0') { '1' } else { '0' };
    let of_other_model = format!("{digit}{}", &id[1..]);
    let conflict = resume(&server, path, &ask, &of_other_model);
    assert_eq!(
        (conflict.status, &*conflict.param()),
        (409, "Last-Event-ID")
    );
    assert_eq!(conflict.json()["error"]["type"], "conflict_error");
    let mut warmer = options();
    warmer.defaults.sampling.config.temperature = 0.9;
    let warmer = Running::start(warmer);
    let conflict = resume(&warmer, path, &ask, &id);
    assert_eq!(
        (conflict.status, &*conflict.param()),
        (409, "Last-Event-ID")
    );
    let mut off = options();
    off.http.resume = Duration::ZERO;
    let off = Running::start(off);
    resume(&off, path, &ask, &id).is_refused_for("Last-Event-ID");
    assert!(!off.post(path, &ask).body.contains("id: "));
    // A client that has seen nothing sends an empty one.
    assert_eq!(resume(&server, path, &ask, "").status, 200);
}

#[test]
fn what_was_kept_is_dropped_in_time() {
    let mut short = options();
    short.http.resume = Duration::from_millis(300);
    let server = Running::start(short);
    let (path, ask) = (
        "/completion",
        json!({"prompt": "Once", "n_predict": 400, "stream": true}),
    );
    let id = broken(&server, path, &ask, 3);
    until("it is not kept", || metric(&server, "streams_kept") == 1);
    assert!(metric(&server, "streams_kept_bytes") > 0);
    until("it is still kept", || metric(&server, "streams_kept") == 0);
    assert_eq!(metric(&server, "streams_kept_bytes"), 0);
    assert_eq!(resume(&server, path, &ask, &id).status, 200);
    assert_eq!(metric(&server, "streams_repeated_total"), 1);
}
