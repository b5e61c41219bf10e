//! The same conversation through every dialect gives the same tokens, alone and in company.

use crate::client::{Reply, Running, options, until};
use serde_json::{Value, json};

/// A dialect: how it asks for the conversation, and where its reply has the text and the counts.
struct Row {
    path: &'static str,
    /// The body, besides `model` and `stream`.
    ask: fn(u64) -> Value,
    /// The text and the numbers of tokens of prompt and answer, of a whole reply.
    whole: fn(&Value) -> (&Value, u64, &Value),
    /// The text of a chunk of a stream: of an event, or of a line.
    delta: fn(&Value) -> Option<&str>,
}

const SYSTEM: &str = "You tell tales.";
const FIRST: &str = "Who are you?";
const ANSWER: &str = "An old man.";
const SECOND: &str = "Tell me of the sea.";
const N: u32 = 24;

fn messages() -> Value {
    json!([
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": FIRST},
        {"role": "assistant", "content": ANSWER},
        {"role": "user", "content": SECOND},
    ])
}

/// A body with the settings of the sampler.
fn sampled(mut body: Value, seed: u64) -> Value {
    body["seed"] = seed.into();
    body["temperature"] = 0.8.into();
    body
}

const ROWS: &[Row] = &[
    Row {
        path: "/v1/chat/completions",
        ask: |seed| sampled(json!({"messages": messages(), "max_tokens": N}), seed),
        whole: |reply| {
            let usage = &reply["usage"];
            let text = &reply["choices"][0]["message"]["content"];
            (
                text,
                n(&usage["prompt_tokens"]),
                &usage["completion_tokens"],
            )
        },
        delta: |chunk| chunk["choices"][0]["delta"]["content"].as_str(),
    },
    Row {
        path: "/v1/messages",
        ask: |seed| {
            let mut messages = messages();
            messages.as_array_mut().unwrap().remove(0);
            sampled(
                json!({"system": SYSTEM, "messages": messages, "max_tokens": N}),
                seed,
            )
        },
        whole: |reply| {
            let usage = &reply["usage"];
            // Those that were found in the cache are not among the tokens that were read.
            let n_prompt = n(&usage["input_tokens"]) + n(&usage["cache_read_input_tokens"]);
            (
                &reply["content"][0]["text"],
                n_prompt,
                &usage["output_tokens"],
            )
        },
        delta: |chunk| chunk["delta"]["text"].as_str(),
    },
    Row {
        path: "/v1/responses",
        ask: |seed| {
            let mut input = messages();
            input.as_array_mut().unwrap().remove(0);
            let body = json!({"instructions": SYSTEM, "input": input, "max_output_tokens": N});
            sampled(body, seed)
        },
        whole: |reply| {
            let usage = &reply["usage"];
            let text = &reply["output"][0]["content"][0]["text"];
            (text, n(&usage["input_tokens"]), &usage["output_tokens"])
        },
        delta: |chunk| chunk["delta"].as_str(),
    },
    Row {
        path: "/api/chat",
        ask: |seed| json!({"messages": messages(), "options": sampled(json!({"num_predict": N}), seed)}),
        whole: |reply| {
            let text = &reply["message"]["content"];
            (text, n(&reply["prompt_eval_count"]), &reply["eval_count"])
        },
        delta: |chunk| chunk["message"]["content"].as_str(),
    },
    // llama-server's own route has no conversations: this is their prompt.
    Row {
        path: "/completion",
        ask: |seed| {
            let turn = |role: &str, text: &str| format!("<|im_start|>{role}\n{text}<|im_end|>\n");
            let prompt = turn("system", SYSTEM)
                + &turn("user", FIRST)
                + &turn("assistant", ANSWER)
                + &turn("user", SECOND)
                + "<|im_start|>assistant\n";
            let body = json!({"prompt": prompt, "n_predict": N, "stop": ["<|im_end|>"]});
            sampled(body, seed)
        },
        whole: |reply| {
            (
                &reply["content"],
                n(&reply["tokens_evaluated"]),
                &reply["tokens_predicted"],
            )
        },
        delta: |chunk| chunk["content"].as_str(),
    },
];

fn n(count: &Value) -> u64 {
    count.as_u64().unwrap()
}

impl Row {
    fn ask(&self, server: &Running, seed: u64, streams: bool) -> Reply {
        let mut body = (self.ask)(seed);
        body["model"] = "tale".into();
        body["stream"] = streams.into();
        let reply = server.post(self.path, &body);
        assert_eq!(reply.status, 200, "{}: {}", self.path, reply.body);
        reply
    }

    /// The text and the counts.
    fn answer(&self, server: &Running, seed: u64) -> (String, u64, u64) {
        let reply = self.ask(server, seed, false).json();
        let (text, n_prompt, n) = (self.whole)(&reply);
        let found = (|| Some((text.as_str()?.to_owned(), n_prompt, n.as_u64()?)))();
        found.unwrap_or_else(|| panic!("{}: {reply}", self.path))
    }

    fn streamed(&self, server: &Running, seed: u64) -> String {
        let reply = self.ask(server, seed, true);
        let lines = reply.body.lines();
        let data = lines.map(|line| line.strip_prefix("data: ").unwrap_or(line));
        let chunks: Vec<Value> = data
            .filter_map(|data| serde_json::from_str(data).ok())
            .collect();
        chunks.iter().filter_map(self.delta).collect()
    }
}

#[test]
fn a_conversation_has_the_same_answer_in_all_dialects_alone_and_beside_16_others() {
    let mut options = options();
    options.models.named.truncate(1);
    options.models.limits.n_seq = 20;
    options.models.limits.n_ctx = 1 << 14;
    let server = Running::start(options);
    let seeds = [1, 77];
    let alone = seeds.map(|seed| ROWS[0].answer(&server, seed));
    assert_ne!(alone[0].0, alone[1].0, "the seed has no effect");
    let check = |when: &str| {
        for (seed, alone) in seeds.into_iter().zip(&alone) {
            for row in ROWS {
                assert_eq!(row.answer(&server, seed), *alone, "{} {when}", row.path);
                assert_eq!(row.streamed(&server, seed), alone.0, "{} {when}", row.path);
            }
        }
    };
    check("alone");
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..16)
            .map(|i| {
                let server = &server;
                scope.spawn(move || {
                    let body = json!({"prompt": "Once upon a time", "n_predict": 700, "seed": i, "ignore_eos": true});
                    server.post("/completion", &body).status
                })
            })
            .collect();
        until("not 16 others", || {
            server
                .get("/metrics")
                .body
                .contains("llamacpp:requests_processing 16\n")
        });
        check("in company");
        assert!(
            others.iter().any(|other| !other.is_finished()),
            "the others have ended"
        );
        assert!(others.into_iter().all(|other| other.join().unwrap() == 200));
    });
}
