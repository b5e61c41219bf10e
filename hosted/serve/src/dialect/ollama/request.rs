//! `POST /api/chat` and `POST /api/generate`.

use super::super::fields::{Fields, shown, wrong};
use super::super::generation::model;
use super::super::grammar::json_schema;
use super::super::seam::{Exchange, MemoryRequest, TextRequest, WriteText};
use super::writer::{Kind, Options, Writer, loaded};
use super::{messages, options};
use crate::api::{
    ApiError, ChatRequest, CompletionPrompt, CompletionRequest, Defaults, Generation, Infill,
    ModelChoice,
};
use core::time::Duration;
use serde_json::{Value, json};
use sluice_text::grammar::GrammarSource;

type Result<T> = core::result::Result<T, ApiError>;
type Asked = Exchange<TextRequest, WriteText>;

/// Parses a request to answer a conversation.
pub(super) fn chat(body: &Value, defaults: &Defaults) -> Result<Asked> {
    let fields = Fields::of_body(body)?;
    let settings = Settings::read(fields, defaults)?;
    if fields.list("messages")?.is_empty() {
        return Ok(settings.memory(Kind::Chat));
    }
    let mut request = ChatRequest::new(defaults);
    messages::read(fields, &mut request)?;
    messages::tools(fields, &mut request)?;
    Ok(settings.chat(request, Kind::Chat))
}

/// Parses a request to answer a prompt.
pub(super) fn generate(body: &Value, defaults: &Defaults) -> Result<Asked> {
    let fields = Fields::of_body(body)?;
    let settings = Settings::read(fields, defaults)?;
    messages::refuse_images(fields)?;
    let empty = [json!(""), json!([])];
    let template = "is not supported: start the server with --chat-template, or send raw: true with a whole prompt";
    fields.refuse("template", &empty, template)?;
    let context = "is not supported: send the conversation to /api/chat";
    fields.refuse("context", &empty, context)?;
    for name in ["width", "height", "steps"] {
        let text = "is not supported: this server writes only text";
        fields.refuse(name, &[json!(0)], text)?;
    }
    let prompt = fields.str("prompt")?.unwrap_or_default();
    let suffix = fields.str("suffix")?.unwrap_or_default();
    let system = fields.str("system")?.unwrap_or_default();
    let raw = fields.bool("raw")?.unwrap_or(false);
    if prompt.is_empty() {
        return Ok(settings.memory(Kind::Generate));
    }
    let whole = match (raw, suffix.is_empty()) {
        (_, false) => "suffix",
        (true, true) => "raw",
        (false, true) => {
            let mut request = ChatRequest::new(defaults);
            request.messages = messages::of_prompt(system, prompt);
            return Ok(settings.chat(request, Kind::Generate));
        }
    };
    settings.check_whole(whole, system)?;
    let prompt = match suffix.is_empty() {
        true => CompletionPrompt::text(prompt),
        false => CompletionPrompt::Infill(Infill {
            prefix: prompt.to_owned(),
            suffix: suffix.to_owned(),
            extra: Vec::new(),
        }),
    };
    Ok(settings.complete(prompt, defaults))
}

/// What both routes share.
struct Settings {
    model: ModelChoice,
    keep_for: Option<Duration>,
    generation: Generation,
    think: Think,
    truncates: bool,
    left_out: Vec<String>,
}

/// Whether the model is to reason, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Think {
    /// As the server does it.
    Usual,
    Off,
    On(Option<&'static str>),
}

impl Settings {
    fn read(fields: Fields<'_>, defaults: &Defaults) -> Result<Self> {
        let mut generation = Generation::new(defaults);
        generation.streams = fields.bool("stream")?.unwrap_or(true);
        generation.grammar = format(fields)?;
        generation.sampling.n_probs = likely(fields)?;
        generation.context_shift = fields.bool("shift")?;
        let unknown = options::read(fields, &mut generation)?;
        let render = "is not supported: POST /apply-template renders a conversation";
        fields.refuse("_debug_render_only", &[json!(false)], render)?;
        let keep_for = options::keep_alive(fields)?;
        Ok(Self {
            model: ModelChoice {
                keep_for,
                ..model(fields)?
            },
            keep_for,
            generation,
            think: Think::read(fields)?,
            truncates: fields.bool("truncate")?.unwrap_or(false),
            left_out: options::note(&unknown),
        })
    }

    /// A request without text: it loads the model, or unloads it if that is to stay for no time.
    fn memory(self, kind: Kind) -> Asked {
        let loads = self.keep_for != Some(Duration::ZERO);
        let reply = loaded(kind, self.name(), loads);
        let model = self.model;
        exchange(
            TextRequest::Memory(MemoryRequest {
                model,
                loads,
                reply,
                left_out: self.left_out,
            }),
            // Nothing is written.
            Options {
                kind,
                name: String::new(),
                is_stream: false,
            },
        )
    }

    fn chat(self, mut request: ChatRequest, kind: Kind) -> Asked {
        let options = self.options(kind);
        self.think.apply(&mut request);
        request.model = self.model;
        request.generation = self.generation;
        request.drops_oldest = self.truncates;
        request.left_out = self.left_out;
        exchange(TextRequest::Chat(request), options)
    }

    fn complete(self, prompt: CompletionPrompt, defaults: &Defaults) -> Asked {
        let options = self.options(Kind::Generate);
        let mut request = CompletionRequest::new(defaults);
        request.prompts = vec![prompt];
        request.model = self.model;
        request.generation = self.generation;
        request.left_out = self.left_out;
        exchange(TextRequest::Complete(request), options)
    }

    /// Refuses what needs a template, for a request with the field `name`, which has none.
    fn check_whole(&self, name: &str, system: &str) -> Result<()> {
        let refuse = |field: &str, is_given: bool| match is_given {
            true => {
                let what = format!("cannot be combined with {name}, for which no template is used");
                Err(ApiError::field(field, what))
            }
            false => Ok(()),
        };
        refuse("system", !system.is_empty())?;
        refuse("think", matches!(self.think, Think::On(_)))?;
        refuse("truncate", self.truncates)
    }

    fn options(&self, kind: Kind) -> Options {
        Options {
            kind,
            name: self.name().to_owned(),
            is_stream: self.generation.streams,
        }
    }

    /// The name that the request gave, which its reply repeats.
    fn name(&self) -> &str {
        self.model.name.as_deref().unwrap_or_default()
    }
}

fn exchange(request: TextRequest, options: Options) -> Asked {
    Exchange {
        too_long: None,
        request,
        names: Vec::new(),
        writer: Box::new(move |start| Box::new(Writer::new(start, options))),
    }
}

impl Think {
    fn read(fields: Fields<'_>) -> Result<Self> {
        let level = match fields.value("think") {
            None => return Ok(Self::Usual),
            Some(Value::Bool(true)) => None,
            Some(Value::Bool(false)) => return Ok(Self::Off),
            Some(Value::String(level)) => Some(level.as_str()),
            Some(other) => return Err(wrong("think", other, "true, false or a level")),
        };
        Ok(Self::On(match level {
            None => None,
            Some("low") => Some("low"),
            Some("medium") => Some("medium"),
            // Templates know no higher one.
            Some("high" | "max") => Some("high"),
            Some(other) => {
                let words = "low, medium, high, max, true, false";
                let what = format!("{} is not one of {words}", shown(&other.into()));
                return Err(ApiError::field("think", what));
            }
        }))
    }

    fn apply(self, request: &mut ChatRequest) {
        let variables = &mut request.template_kwargs;
        match self {
            Self::Usual => {}
            Self::Off => drop(variables.insert("enable_thinking".into(), false.into())),
            Self::On(level) => {
                request.must_reason = true;
                variables.insert("enable_thinking".into(), true.into());
                if let Some(level) = level {
                    variables.insert("reasoning_effort".into(), level.into());
                }
            }
        }
    }
}

/// Parses `format`: `json`, or a schema.
fn format(fields: Fields<'_>) -> Result<Option<GrammarSource>> {
    let schema = match fields.value("format") {
        None => return Ok(None),
        Some(Value::String(word)) if word.is_empty() => return Ok(None),
        Some(Value::String(word)) if word == "json" => &json!({"type": "object"}),
        Some(schema @ Value::Object(_)) => schema,
        Some(other) => return Err(wrong("format", other, "json or a JSON schema")),
    };
    let grammar = json_schema(schema);
    let grammar = grammar.map_err(|error| ApiError::field("format", error.what))?;
    Ok(Some(grammar))
}

/// The number of likely tokens that are reported; `None` for no report.
fn likely(fields: Fields<'_>) -> Result<Option<usize>> {
    let top = fields.count("top_logprobs", 0..=LIKELY_MAX)?.unwrap_or(0);
    match fields.bool("logprobs")? {
        Some(true) => Ok(Some(top)),
        _ if top > 0 => Err(ApiError::field("top_logprobs", "requires logprobs: true")),
        _ => Ok(None),
    }
}

/// As in Ollama.
const LIKELY_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_text::chat_template::Message;

    fn asked(body: &Value, parse: fn(&Value, &Defaults) -> Result<Asked>) -> Result<TextRequest> {
        parse(body, &Defaults::default()).map(|exchange| exchange.request)
    }

    fn of_chat(more: &Value) -> Result<ChatRequest> {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "x"}]});
        body.as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        match asked(&body, chat)? {
            TextRequest::Chat(request) => Ok(request),
            _ => panic!("not a conversation"),
        }
    }

    #[test]
    fn a_stream_is_the_usual_answer() {
        let request = of_chat(&json!({})).unwrap();
        assert!(request.generation.streams && !request.drops_oldest);
        assert!(!request.template_kwargs.contains_key("enable_thinking"));
        let more = json!({"stream": false, "format": "json", "logprobs": true, "top_logprobs": 2,
            "truncate": true, "shift": false, "keep_alive": "5m", "options": {"num_ctx": 99, "x": 1}});
        let request = of_chat(&more).unwrap();
        let generation = &request.generation;
        assert!(!generation.streams && request.drops_oldest);
        assert_eq!(generation.sampling.n_probs, Some(2));
        assert_eq!(generation.context_shift, Some(false));
        assert_eq!(generation.wants_ctx, Some(99));
        assert_eq!(request.model.keep_for, Some(Duration::from_secs(300)));
        let expected = Some(GrammarSource::JsonSchema("{\"type\":\"object\"}".into()));
        assert_eq!(generation.grammar, expected);
        assert_eq!(request.left_out, ["options without effect: x"]);
    }

    #[test]
    fn thinking_is_a_bool_or_a_level() {
        for (think, thinks, level) in [
            (json!(true), json!(true), json!(null)),
            (json!(false), json!(false), json!(null)),
            (json!("low"), json!(true), json!("low")),
            (json!("max"), json!(true), json!("high")),
        ] {
            let request = of_chat(&json!({"think": think})).unwrap();
            let variable = |name: &str| request.template_kwargs.get(name).cloned();
            assert_eq!(variable("enable_thinking"), Some(thinks.clone()));
            assert_eq!(variable("reasoning_effort").unwrap_or_default(), level);
            assert_eq!(json!(request.must_reason), thinks);
        }
    }

    #[test]
    fn a_prompt_is_a_conversation_unless_it_is_raw_or_has_a_suffix() {
        let of = |body: &Value| asked(body, generate).unwrap();
        let TextRequest::Chat(request) = of(&json!({"prompt": "x", "system": "s"})) else {
            panic!("not a conversation");
        };
        let expected = [Message::new("system", "s"), Message::new("user", "x")];
        assert_eq!(request.messages, expected);
        for (body, expected) in [
            (
                json!({"prompt": "x", "raw": true, "options": {"y": 1}}),
                CompletionPrompt::text("x"),
            ),
            (
                json!({"prompt": "x", "suffix": "y", "options": {"y": 1}}),
                CompletionPrompt::Infill(Infill {
                    prefix: "x".into(),
                    suffix: "y".into(),
                    extra: Vec::new(),
                }),
            ),
        ] {
            let TextRequest::Complete(request) = of(&body) else {
                panic!("not a text: {body}");
            };
            assert_eq!(request.prompts, [expected]);
            assert_eq!(request.left_out, ["options without effect: y"]);
        }
    }

    #[test]
    fn a_request_without_text_loads_or_unloads() {
        for (body, is_chat, loads, reason) in [
            (json!({"model": "m"}), true, true, "load"),
            (json!({"model": "m", "messages": []}), true, true, "load"),
            (
                json!({"model": "m", "keep_alive": 0}),
                true,
                false,
                "unload",
            ),
            (
                json!({"model": "m", "keep_alive": "0s"}),
                false,
                false,
                "unload",
            ),
            (
                json!({"model": "m", "prompt": "", "keep_alive": "1m"}),
                false,
                true,
                "load",
            ),
        ] {
            let asked = asked(&body, if is_chat { chat } else { generate });
            let Ok(TextRequest::Memory(memory)) = asked else {
                panic!("{body}");
            };
            assert_eq!(memory.loads, loads);
            assert_eq!(memory.reply["done_reason"], reason, "{body}");
            assert_eq!(
                (&memory.reply["model"], &memory.reply["done"]),
                (&json!("m"), &json!(true))
            );
            assert_eq!(memory.reply.get("message").is_some(), is_chat);
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (more, field) in [
            (json!({"stream": 1}), "stream"),
            (json!({"messages": 3}), "messages"),
            (json!({"think": "much"}), "think"),
            (json!({"think": 3}), "think"),
            (json!({"format": "xml"}), "format"),
            (json!({"top_logprobs": 2}), "top_logprobs"),
            (
                json!({"logprobs": true, "top_logprobs": 21}),
                "top_logprobs",
            ),
            (json!({"keep_alive": "soon"}), "keep_alive"),
            (json!({"tools": [{"type": "web"}]}), "tools[0].type"),
            (json!({"_debug_render_only": true}), "_debug_render_only"),
        ] {
            let error = of_chat(&more).unwrap_err();
            assert_eq!(error.field.as_deref(), Some(field), "{more}");
        }
        for (more, field) in [
            (json!({"template": "{{ .Prompt }}"}), "template"),
            (json!({"context": [1, 2]}), "context"),
            (json!({"images": ["AA"]}), "images"),
            (json!({"steps": 4}), "steps"),
            (json!({"raw": true, "system": "s"}), "system"),
            (json!({"suffix": "s", "think": true}), "think"),
            (json!({"raw": true, "truncate": true}), "truncate"),
        ] {
            let mut body = json!({"model": "m", "prompt": "x"});
            body.as_object_mut()
                .unwrap()
                .extend(more.as_object().unwrap().clone());
            let error = asked(&body, generate).err().unwrap();
            assert_eq!(error.field.as_deref(), Some(field), "{more}");
        }
    }
}
