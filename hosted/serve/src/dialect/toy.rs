//! A small dialect that shows that a new one needs only its own file and an entry in the list: chats as lines
//! of JSON, with its own errors and field names.

use super::fields::Fields;
use super::seam::{
    Action, Dialect, ErrorOf, Exchange, Framing, ModelInfo, Route, TextWriter, WriteText, get, post,
};
use crate::api::{AnswerEvent, ApiError, ChatRequest, Defaults, FieldName, Total};
use crate::http::StreamKind;
use core::time::Duration;
use serde_json::{Value, json};
use sluice_text::chat_template::Message;

/// The routes below `/toy`.
pub(crate) struct Toy;

impl Dialect for Toy {
    fn routes(&self) -> &'static [Route] {
        const ROUTES: &[Route] = &[
            post("/toy/talk", Action::Chat(parse)),
            get("/toy/models", Action::Models(models)),
        ];
        ROUTES
    }

    fn framing(&self) -> &'static Framing {
        &Framing {
            kind: StreamKind {
                content_type: "application/x-ndjson",
                keep_alive: "\n",
                silence_max: Duration::MAX,
            },
            frame: |text, chunk| text.push_str(&format!("{chunk}\n")),
            end: "",
        }
    }

    fn error(&self, error: &ApiError, _of: ErrorOf<'_>) -> Value {
        json!({"oops": error.what, "at": error.field})
    }

    fn names(&self) -> &'static [FieldName] {
        const NAMES: &[FieldName] = &[FieldName::new("min_tokens", "least")];
        NAMES
    }
}

fn parse(body: &Value, defaults: &Defaults) -> Result<Exchange<ChatRequest, WriteText>, ApiError> {
    let fields = Fields::of_body(body)?;
    let mut request = ChatRequest::new(defaults);
    let said = fields.str("say")?;
    let said = said.ok_or_else(|| ApiError::field("say", "is missing"))?;
    request.messages.push(Message::new("user", said));
    let generation = &mut request.generation;
    generation.max_tokens = fields.count("most", 0..=100)?;
    generation.min_tokens = fields.count("least", 0..=100)?.unwrap_or(0);
    generation.seed = Some(1);
    generation.streams = fields.bool("drip")?.unwrap_or(false);
    Ok(Exchange {
        too_long: None,
        request,
        names: Vec::new(),
        writer: Box::new(|_| Box::new(Writer(String::new()))),
    })
}

/// The text so far.
struct Writer(String);

impl TextWriter for Writer {
    fn write(&mut self, event: AnswerEvent) -> Vec<Value> {
        let AnswerEvent::Piece { piece, .. } = event else {
            return Vec::new();
        };
        self.0.push_str(&piece.text);
        vec![json!({"drop": piece.text})]
    }

    fn last(&mut self, total: &Total) -> Vec<Value> {
        vec![json!({"drops": total.usage.n_predicted})]
    }

    fn whole(&mut self, _total: &Total) -> Value {
        json!({"said": self.0})
    }
}

fn models(models: &[ModelInfo<'_>]) -> Value {
    models.iter().map(|model| model.name).collect()
}

#[cfg(test)]
mod tests {
    use crate::server::Server;
    use crate::{Listen, ModelsOptions, NamedModel, ServerConfig};
    use serde_json::{Value, json};
    use sluice::host::topology::Cores;
    use sluice::{Limits, Team};
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::sync::mpsc;
    use tokio::runtime::Runtime;

    fn config() -> ServerConfig {
        let path = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../models/tale-5.8m-Q4_K_M.gguf"
        );
        let named = NamedModel {
            alias: Some("tale".to_owned()),
            path: path.into(),
        };
        ServerConfig {
            listen: vec![Listen::Tcp("127.0.0.1".to_owned(), 0)],
            models: ModelsOptions {
                named: vec![named],
                limits: Limits {
                    n_ctx: 256,
                    n_seq: 1,
                    ..Limits::default()
                },
                ..ModelsOptions::default()
            },
            ..ServerConfig::default()
        }
    }

    /// Starts a server, which ends with the process; returns its address.
    fn serve() -> String {
        let (sender, ready) = mpsc::channel();
        std::thread::spawn(move || {
            Runtime::new().unwrap().block_on(async {
                let team = Team::new(1, &Cores::detect()).unwrap();
                let server = Server::bind(config(), team).await.unwrap();
                let address = server.address().trim_start_matches("http://");
                sender.send(address.to_owned()).unwrap();
                server.run(Box::pin(core::future::pending())).await.unwrap();
            });
        });
        ready.recv().unwrap()
    }

    fn answer(address: &str, path: &str, body: Option<Value>) -> (u16, String) {
        let method = if body.is_some() { "POST" } else { "GET" };
        let body = body.map(|body| body.to_string()).unwrap_or_default();
        let length = body.len();
        let mut stream = TcpStream::connect(address).unwrap();
        // Version 1.0 ends a body by closing the connection.
        let head = format!("{method} {path} HTTP/1.0\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all((head + &body).as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    #[test]
    fn a_new_dialect_is_served_whole_as_a_stream_and_in_errors() {
        let service = serve();
        let mut ask = json!({"say": "Once upon a time", "most": 6});
        let (status, whole) = answer(&service, "/toy/talk", Some(ask.clone()));
        assert_eq!(status, 200, "{whole}");
        let whole: Value = serde_json::from_str(&whole).unwrap();
        ask["drip"] = true.into();
        let (status, lines) = answer(&service, "/toy/talk", Some(ask));
        assert_eq!(status, 200, "{lines}");
        let lines = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let mut lines: Vec<Value> = lines.collect();
        assert_eq!(lines.pop().unwrap(), json!({"drops": 6}));
        let text: String = lines
            .iter()
            .map(|line| line["drop"].as_str().unwrap())
            .collect();
        assert_eq!(whole, json!({"said": text}));
        let wrong = json!({"say": "x", "most": 3, "least": 4});
        let (status, error) = answer(&service, "/toy/talk", Some(wrong));
        let expected = json!({"oops": "is 4 tokens, but max_tokens is 3", "at": "least"});
        assert_eq!((status, error), (400, expected.to_string()));
        let (status, error) = answer(&service, "/toy/talk", None);
        let expected = json!({"oops": "this method is not allowed for the route", "at": null});
        assert_eq!((status, error), (405, expected.to_string()));
        let models = answer(&service, "/toy/models", None);
        assert_eq!(models, (200, "[\"tale\"]".to_owned()));
    }
}
