//! A server whose model follows a script, for clients whose work no small model can do:
//! `scripted_server MODEL TEMPLATE SCRIPT PORT N_CTX`, with `cargo run --release -p sluice-tests --example`.
//!
//! Prompts are rendered, read and cached as usual, and the mask of a request keeps the answer to its tools: a script that
//! breaks it fails. `SCRIPT` is a JSON file: `{"steps": [{"tool", "arguments"}], "last": TEXT}`. A conversation with N
//! results of tools gets the call of step N; one with results for all steps, or without these tools, gets the last text.
//! The template has to render tools in the first system text, results as turns of `tool`, and calls as Hermes does.
#![expect(clippy::print_stdout, reason = "a program of the tests")]

use core::error::Error;
use serde_json::Value;
use sluice::host::topology::Cores;
use sluice::sequence::{ChoiceContext, ChoiceError, Choose};
use sluice::{Limits, Model, Team};
use sluice_core::tokenizer::{Detokenizer, EncodeOptions};
use sluice_serve::engine::EngineOptions;
use sluice_serve::{Listen, ModelsOptions, NamedModel, Server, ServerConfig, WrapSampler};
use std::sync::Arc;
use tokio::runtime::Runtime;

/// Chooses the tokens of the script.
struct Scripted {
    script: Arc<Value>,
    model: Model,
    inner: Box<dyn Choose + Send>,
    /// The tokens of the answer, and the length of the prompt; `None` before the first.
    answer: Option<(Vec<u32>, usize)>,
}

impl Scripted {
    fn answer_to(&self, prompt: &[u32]) -> Vec<u32> {
        let text = text_of(&self.model, prompt);
        let n_results = text.matches("<|im_start|>tool").count();
        let step = self.script["steps"].get(n_results);
        let has_tool = |step: &&Value| text.contains(&format!("\"name\": {}", step["tool"]));
        let said = match step.filter(has_tool) {
            Some(step) => {
                // With the spaces of the template.
                let (name, arguments) = (&step["tool"], &step["arguments"]);
                format!(
                    "<tool_call>\n{{\"name\": {name}, \"arguments\": {arguments}}}\n</tool_call>"
                )
            }
            None => self.script["last"].as_str().unwrap_or_default().to_owned(),
        };
        eprintln!(
            "prompt of {} tokens, {n_results} results of tools: {said:?}",
            prompt.len()
        );
        let options = EncodeOptions {
            add_special: false,
            parse_special: true,
        };
        let mut tokens = self.model.encode_with(&said, options).unwrap_or_default();
        tokens.extend(self.model.tokenizer().eos());
        tokens
    }
}

impl Choose for Scripted {
    fn choose(&mut self, logits: &[f32], choice: &ChoiceContext<'_>) -> Result<u32, ChoiceError> {
        let prompt = choice.history;
        let (answer, n_prompt) = match self.answer.take() {
            Some(answer) => self.answer.insert(answer),
            None => {
                let answer = (self.answer_to(prompt), prompt.len());
                self.answer.insert(answer)
            }
        };
        let Some(&token) = answer.get(choice.history.len() - *n_prompt) else {
            return self.inner.choose(logits, choice);
        };
        // The request's own sampler, with its grammar, has to agree.
        let mut sure = vec![-1e4; logits.len()];
        sure[token as usize] = 1e4;
        let chosen = self.inner.choose(&sure, choice)?;
        if chosen != token {
            eprintln!("the request's mask does not allow token {token} of the script");
        }
        Ok(chosen)
    }

    fn is_complete(&self) -> bool {
        self.inner.is_complete()
    }
}

fn text_of(model: &Model, tokens: &[u32]) -> String {
    let tokenizer = model.tokenizer();
    let (mut text, mut detokenizer) = (String::new(), Detokenizer::new(tokenizer));
    for &token in tokens {
        let _pushed = detokenizer.push(tokenizer, token, |piece| text.push_str(piece));
    }
    detokenizer.finish(|piece| text.push_str(piece));
    text
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [model, template, script, port, n_ctx] = &arguments[..] else {
        return Err("MODEL TEMPLATE SCRIPT PORT N_CTX".into());
    };
    let script: Arc<Value> = Arc::new(serde_json::from_str(&std::fs::read_to_string(script)?)?);
    let config = ServerConfig {
        listen: vec![Listen::Tcp("127.0.0.1".to_owned(), port.parse()?)],
        models: ModelsOptions {
            named: vec![NamedModel {
                alias: Some("scripted".to_owned()),
                path: model.into(),
            }],
            any_name: true,
            limits: Limits {
                n_ctx: n_ctx.parse()?,
                n_seq: 4,
                ..Limits::default()
            },
            chat_template: Some(std::fs::read_to_string(template)?),
            ..ModelsOptions::default()
        },
        engine: EngineOptions {
            cache_ram: 256 << 20,
            ..EngineOptions::default()
        },
        log: Arc::new(|line| eprintln!("{line}")),
        ..ServerConfig::default()
    };
    let wrap: WrapSampler = Arc::new(move |inner, model| {
        Box::new(Scripted {
            script: Arc::clone(&script),
            model: model.clone(),
            inner,
            answer: None,
        })
    });
    let cores = Cores::detect();
    let team = Team::new(cores.default_workers(), &cores)?;
    Runtime::new()?.block_on(async {
        let server = Server::bind(config, team).await?.with_samplers(wrap);
        println!("listening on {}", server.address());
        let stop = tokio::signal::ctrl_c();
        server.run(Box::pin(async { drop(stop.await) })).await
    })?;
    Ok(())
}
