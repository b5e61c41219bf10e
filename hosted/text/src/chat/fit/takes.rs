//! What a template takes, found by rendering made-up conversations with it.

use crate::assistant::Dialect;
use crate::chat_template::{ChatTemplate, Message, RenderOptions};
use serde_json::{Value, json};

/// What a template takes.
#[derive(Clone, Debug, Default)]
pub(super) struct Takes {
    /// It describes the tools, in a format that answers are parsed in.
    pub(super) tools: bool,
    /// What each tool must have, among `description` and `parameters`, which clients may leave out.
    pub(super) needs_of_tool: Vec<&'static str>,
    /// `tools` has to be a list, even without tools.
    pub(super) needs_tools: bool,
    /// The roles that it knows, among `system`, `developer` and `tool`.
    roles: Vec<&'static str>,
    /// The roles whose content may be a list of parts.
    lists: Vec<&'static str>,
    /// Content has to be a list of parts.
    pub(super) only_lists: bool,
    /// What it writes between two parts of a text.
    pub(super) joint: String,
    /// System messages anywhere.
    pub(super) late_system: bool,
    /// Null as the content of a message without calls.
    pub(super) null: bool,
    /// The forms of calls that it writes; none if it cannot write calls.
    pub(super) calls: Vec<CallForm>,
    /// Whether arguments that are text may stay text: they look like those that are objects.
    pub(super) keeps_texts: bool,
    /// Several calls in one message.
    pub(super) several_calls: bool,
    /// Ids of calls have to be nine letters and digits.
    pub(super) short_ids: bool,
    /// Results need the name of their function.
    pub(super) named_results: bool,
}

/// A form of a message with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallForm {
    pub(super) content: ContentForm,
    pub(super) arguments: ArgumentsForm,
}

/// The content of a message with calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ContentForm {
    Null,
    Empty,
    Absent,
    Text,
}

/// Arguments of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ArgumentsForm {
    /// JSON, as clients send it.
    Text,
    /// A value, as transformers' users write it.
    Object,
}

impl Takes {
    pub(super) fn of(template: &ChatTemplate, options: RenderOptions, dialect: &Dialect) -> Self {
        let mut probe = Probe {
            template,
            options,
            only_lists: false,
        };
        probe.options.add_generation_prompt = true;
        let mut takes = Self {
            joint: joint_of(template.source()).to_owned(),
            ..Self::default()
        };
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        let works = ways.into_iter().find(|&(needs_tools, only_lists)| {
            probe.options.tools = needs_tools.then(Vec::new);
            probe.only_lists = only_lists;
            probe.shows(&[user()], &[ASKED]).is_some()
        });
        let Some((needs_tools, only_lists)) = works else {
            // It needs something that only requests have.
            return Self::all(template, dialect);
        };
        (takes.needs_tools, takes.only_lists) = (needs_tools, only_lists);
        let before = probe.options.tools.replace(vec![tool()]);
        takes.tools = dialect.is_native() && probe.shows(&[user()], &[NAME]).is_some();
        if takes.tools {
            takes.find_needs_of_tool(&mut probe);
        } else {
            probe.options.tools = before;
        }
        takes.find_calls(&probe);
        takes.find_roles(&probe);
        takes.find_contents(&probe);
        takes
    }

    /// Of a template that renders no made-up conversation.
    fn all(template: &ChatTemplate, dialect: &Dialect) -> Self {
        let contents = [
            ContentForm::Null,
            ContentForm::Empty,
            ContentForm::Absent,
            ContentForm::Text,
        ];
        let forms = contents.map(|content| CallForm {
            content,
            arguments: ArgumentsForm::Object,
        });
        Self {
            tools: dialect.is_native() && template.source().contains("tools"),
            roles: vec!["system", "developer", "tool"],
            late_system: true,
            null: true,
            calls: forms.into(),
            several_calls: true,
            ..Self::default()
        }
    }

    pub(super) fn knows(&self, role: &str) -> bool {
        self.roles.contains(&role)
    }

    pub(super) fn lists(&self, role: &str) -> bool {
        self.lists.contains(&role)
    }

    fn find_needs_of_tool(&mut self, probe: &mut Probe<'_>) {
        for key in ["description", "parameters"] {
            let mut bare = tool();
            let function = bare.get_mut("function").and_then(Value::as_object_mut);
            function.and_then(|function| function.remove(key));
            probe.options.tools = Some(vec![bare]);
            if probe.shows(&[user()], &[NAME]).is_none() {
                self.needs_of_tool.push(key);
            }
        }
        probe.options.tools = Some(vec![tool()]);
    }

    fn find_calls(&mut self, probe: &Probe<'_>) {
        let ways = [(false, false), (true, false), (false, true), (true, true)];
        for (short_ids, named_results) in ways {
            (self.short_ids, self.named_results) = (short_ids, named_results);
            let [id, other] = self.ids();
            let mut shown = Vec::new();
            for content in CONTENTS {
                for arguments in [ArgumentsForm::Text, ArgumentsForm::Object] {
                    let form = CallForm { content, arguments };
                    let talk = [user(), assistant(form, &[id]), self.result(id)];
                    let said = [NAME, KEY, VALUE, RESULT];
                    // Some drop calls that have been answered.
                    let later = [&talk[..], &[Message::new("assistant", SAID), user()]].concat();
                    let text = probe
                        .shows(&later, &said)
                        .and_then(|_| probe.shows(&talk, &said));
                    let text = text.filter(|text| !text.contains(ESCAPED));
                    shown.extend(text.map(|text| (form, text)));
                }
            }
            // Some print a null as a word.
            let nones = |text: &str| text.matches("None").count();
            let fewest = shown.iter().map(|(_, text)| nones(text)).min();
            shown.retain(|(_, text)| Some(nones(text)) == fewest);
            self.keeps_texts = keeps_texts(&shown);
            self.calls = shown.into_iter().map(|(form, _)| form).collect();
            let Some(&form) = self.calls.first() else {
                continue;
            };
            let talk = [
                user(),
                assistant(form, &[id, other]),
                self.result(id),
                self.result(other),
            ];
            let twice = |text: &String| {
                [VALUE, RESULT]
                    .iter()
                    .all(|word| text.matches(word).count() == 2)
            };
            self.several_calls = probe.shows(&talk, &[]).as_ref().is_some_and(twice);
            return;
        }
        (self.short_ids, self.named_results) = (false, false);
    }

    fn ids(&self) -> [&'static str; 2] {
        match self.short_ids {
            true => ["abcdefghi", "ihgfedcba"],
            false => ["call_0123456789abcdef", "call_fedcba9876543210"],
        }
    }

    fn result(&self, id: &str) -> Message {
        let mut result = Message::new("tool", RESULT);
        result.extra.insert("tool_call_id".into(), id.into());
        if self.named_results {
            result.extra.insert("name".into(), NAME.into());
        }
        result
    }

    fn find_roles(&mut self, probe: &Probe<'_>) {
        let first = |role: &str| probe.shows(&[Message::new(role, SAID), user()], &[SAID]);
        self.roles.extend(
            ["system", "developer"]
                .into_iter()
                .filter(|role| first(role).is_some()),
        );
        let late = [
            user(),
            Message::new("assistant", SAID),
            Message::new("system", RESULT),
            user(),
        ];
        self.late_system = probe.shows(&late, &[RESULT]).is_some();
        // A template that prints any role does not know this one.
        let after_text = |role: &str| {
            let result = Message {
                role: role.to_owned(),
                ..self.result(self.ids()[0])
            };
            probe.shows(
                &[user(), Message::new("assistant", SAID), result],
                &[RESULT],
            )
        };
        let other = after_text(UNKNOWN_ROLE).map(|text| text.replace(UNKNOWN_ROLE, "tool"));
        self.roles.extend(
            after_text("tool")
                .filter(|text| Some(text) != other.as_ref())
                .map(|_| "tool"),
        );
    }

    fn find_contents(&mut self, probe: &Probe<'_>) {
        let null = Message {
            content: Some(Value::Null),
            ..Message::new("assistant", "")
        };
        let shown = probe.shows(&[user(), null, user()], &[]);
        self.null = shown.is_some_and(|text| !text.contains("None"));
        let parts = json!([part(FIRST), part(SECOND)]);
        let listed = |role: &str| Message {
            content: Some(parts.clone()),
            ..Message::new(role, "")
        };
        let form = self.calls.first().copied();
        for role in ["user", "assistant", "system", "tool"] {
            let talk = match (role, form) {
                ("user", _) => vec![listed(role)],
                ("assistant", _) => vec![user(), listed(role), user()],
                ("system", _) => vec![listed(role), user()],
                (_, Some(form)) => {
                    let [id, _] = self.ids();
                    let content = Some(parts.clone());
                    vec![
                        user(),
                        assistant(form, &[id]),
                        Message {
                            content,
                            ..self.result(id)
                        },
                    ]
                }
                (_, None) => continue,
            };
            let shown = probe.shows(&talk, &[FIRST, SECOND]);
            let Some(shown) = shown.filter(|text| !PRINTED.iter().any(|word| text.contains(word)))
            else {
                continue;
            };
            self.lists.push(role);
            let rest = shown.split_once(FIRST).map_or("", |(_, rest)| rest);
            match rest.split_once(SECOND) {
                Some((joint, _)) if joint.trim().is_empty() && self.lists.len() == 1 => {
                    self.joint = joint.to_owned()
                }
                _ => {}
            }
        }
    }
}

/// Whether arguments as text look like those as objects, or those print as Python's and not as JSON.
fn keeps_texts(shown: &[(CallForm, String)]) -> bool {
    let of = |arguments| shown.iter().find(|(form, _)| form.arguments == arguments);
    let Some((form, text)) = of(ArgumentsForm::Text) else {
        return false;
    };
    let same = shown
        .iter()
        .find(|(other, _)| other.content == form.content && other != form);
    same.is_none_or(|(_, object)| object == text || object.contains("{'"))
}

/// What joins parts where the template takes only text: what its family's templates write that take parts.
fn joint_of(source: &str) -> &'static str {
    if source.contains("[INST]") {
        "\n\n"
    } else {
        ""
    }
}

/// Renders made-up conversations.
struct Probe<'t> {
    template: &'t ChatTemplate,
    options: RenderOptions,
    only_lists: bool,
}

impl Probe<'_> {
    /// The rendering, if it contains all of `texts`.
    fn shows(&self, messages: &[Message], texts: &[&str]) -> Option<String> {
        let mut messages = messages.to_vec();
        if self.only_lists {
            messages.iter_mut().for_each(list_text);
        }
        let shown = self.template.render(&messages, &self.options).ok();
        shown.filter(|shown| texts.iter().all(|text| shown.contains(text)))
    }
}

/// Makes a content that is text a list.
pub(super) fn list_text(message: &mut Message) {
    if let Some(Value::String(text)) = &message.content {
        message.content = Some(json!([part(text)]));
    }
}

pub(super) fn part(text: &str) -> Value {
    json!({"type": "text", "text": text})
}

fn user() -> Message {
    Message::new("user", ASKED)
}

fn assistant(form: CallForm, ids: &[&str]) -> Message {
    let content = match form.content {
        ContentForm::Null => Some(Value::Null),
        ContentForm::Empty => Some("".into()),
        ContentForm::Absent => None,
        ContentForm::Text => Some(SAID.into()),
    };
    let arguments = match form.arguments {
        ArgumentsForm::Text => Value::from(ARGUMENTS),
        ArgumentsForm::Object => json!({KEY: VALUE, "days": 7}),
    };
    let call = |id: &&str| {
        let function = json!({"name": NAME, "arguments": arguments});
        json!({"id": id, "type": "function", "function": function})
    };
    let calls: Vec<Value> = ids.iter().map(call).collect();
    let extra = [("tool_calls".to_owned(), Value::from(calls))];
    Message {
        role: "assistant".into(),
        content,
        extra: extra.into_iter().collect(),
    }
}

fn tool() -> Value {
    let parameters = json!({"type": "object", "properties": {KEY: {"type": "string"}, "days": {"type": "integer"}}});
    json!({"type": "function", "function": {"name": NAME, "description": "Reads a gauge", "parameters": parameters}})
}

/// The forms of a message with calls, in the order in which they are preferred.
pub(super) const CONTENTS: [ContentForm; 4] = [
    ContentForm::Null,
    ContentForm::Empty,
    ContentForm::Absent,
    ContentForm::Text,
];
// Words that no template has.
const NAME: &str = "read_tide";
const KEY: &str = "harbour";
const VALUE: &str = "Havneby";
const ASKED: &str = "How high is the water?";
const RESULT: &str = "low tide";
const FIRST: &str = "The ebb";
const SECOND: &str = "is strong.";
/// A list of parts that was printed as it is.
const PRINTED: [&str; 2] = ["'text'", "\"text\""];
const SAID: &str = "Let me look.";
const ARGUMENTS: &str = r#"{"harbour": "Havneby", "days": 7}"#;
/// Arguments that were written as a JSON string.
const ESCAPED: &str = r#"\"harbour"#;
const UNKNOWN_ROLE: &str = "harbourmaster";
