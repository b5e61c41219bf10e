//! Turns of a conversation as a model's chat template writes them.
//!
//! A chat template is a program in Jinja, which the image cannot run. Most models of a family have the same one, so a
//! table holds what it writes, and the template's text decides which row applies. Templates that do more, such as removing
//! thoughts or telling the date, are not recognised.

/// How a template writes turns.
#[derive(Clone, Copy, Debug)]
pub struct Turns<'t> {
    form: &'static Form,
    /// What the template tells the model first, with `\n` for line ends; the family's own text if it has none.
    system: &'t str,
}

/// A row of the table. Texts before and after what is said.
#[derive(Debug)]
struct Form {
    name: &'static str,
    /// Parts of the template's text: all of the first, and none of the second.
    has: &'static [&'static str],
    lacks: &'static [&'static str],
    system: [&'static str; 2],
    user: [&'static str; 2],
    answer: [&'static str; 2],
    /// Whether spaces around what is said are removed.
    trims: bool,
}

const CHATML: [&str; 2] = ["<|im_start|>system\n", "<|im_end|>\n"];
const LLAMA_USER: [&str; 2] = ["<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"];
const LLAMA_ANSWER: [&str; 2] = [
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "<|eot_id|>",
];
/// What templates with more than turns have.
const MORE: [&str; 6] = [
    "think",
    "THINK",
    "<<SYS>>",
    "MODEL_SETTINGS",
    "strftime_now",
    "You are",
];

const PLAIN: Form = Form {
    name: "",
    has: &[],
    lacks: &MORE,
    system: ["", ""],
    user: ["", ""],
    answer: ["", ""],
    trims: false,
};

/// The first row that applies counts.
static FORMS: [Form; 11] = [
    Form {
        name: "Phi",
        has: &["<|im_sep|>", "<|im_start|>user"],
        user: ["<|im_start|>user<|im_sep|>", "<|im_end|>"],
        answer: ["<|im_start|>assistant<|im_sep|>", "<|im_end|>"],
        ..PLAIN
    },
    Form {
        name: "ChatML",
        has: &["<|im_start|>", "<|im_end|>"],
        lacks: &["think", "THINK", "strftime_now", "<|im_sep|>"],
        system: CHATML,
        user: ["<|im_start|>user\n", "<|im_end|>\n"],
        answer: ["<|im_start|>assistant\n", "<|im_end|>\n"],
        ..PLAIN
    },
    Form {
        name: "Llama 3",
        has: &[
            "<|start_header_id|>",
            "Cutting Knowledge Date: December 2023",
            "Today Date: ",
            "26 Jul 2024",
            "message['content'] | trim + '<|eot_id|>'",
        ],
        // Without a clock, the template's own date.
        lacks: &["think", "THINK"],
        system: [
            "<|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
            "<|eot_id|>",
        ],
        user: LLAMA_USER,
        answer: LLAMA_ANSWER,
        trims: true,
    },
    Form {
        name: "Llama 3",
        has: &["<|start_header_id|>", "<|eot_id|>", "| trim"],
        lacks: &["think", "THINK", "Date", "tool", "You are"],
        user: LLAMA_USER,
        answer: LLAMA_ANSWER,
        trims: true,
        ..PLAIN
    },
    Form {
        name: "Gemma",
        has: &["<start_of_turn>", "<end_of_turn>", "| trim"],
        user: ["<start_of_turn>user\n", "<end_of_turn>\n"],
        answer: ["<start_of_turn>model\n", "<end_of_turn>\n"],
        trims: true,
        ..PLAIN
    },
    // The first version, with spaces around turns, after them, or without.
    Form {
        name: "Mistral",
        has: &[" [INST] ", " [/INST]"],
        user: [" [INST] ", " [/INST]"],
        answer: ["", "</s>"],
        ..PLAIN
    },
    Form {
        name: "Mistral",
        has: &["[INST] ", " [/INST]", "eos_token + ' '"],
        user: ["[INST] ", " [/INST]"],
        answer: ["", "</s> "],
        ..PLAIN
    },
    Form {
        name: "Mistral",
        has: &["[INST] ", " [/INST]"],
        user: ["[INST] ", " [/INST]"],
        answer: ["", "</s>"],
        ..PLAIN
    },
    // Versions 2 and 3; later ones without the space.
    Form {
        name: "Mistral",
        has: &["[INST] ", "[/INST]"],
        user: ["[INST] ", "[/INST]"],
        answer: ["", "</s>"],
        ..PLAIN
    },
    Form {
        name: "Mistral",
        has: &["[INST]", "[/INST]"],
        user: ["[INST]", "[/INST]"],
        answer: ["", "</s>"],
        ..PLAIN
    },
    Form {
        name: "Phi",
        has: &["{% for message in messages %}{% if", "<|user|>", "<|end|>"],
        user: ["<|user|>\n", "<|end|>\n"],
        answer: ["<|assistant|>\n", "<|end|>\n"],
        ..PLAIN
    },
];

/// Names of the known families, for messages.
pub(super) const KNOWN: &str = "ChatML, Llama 3, Gemma, Mistral, Phi";

impl<'t> Turns<'t> {
    /// The turns of a template; `None` if it is not a known one.
    #[must_use]
    pub fn of(template: &'t str) -> Option<Self> {
        let has = |part: &&str| template.contains(part);
        let mut forms = FORMS.iter();
        let form = forms.find(|form| form.has.iter().all(has) && !form.lacks.iter().any(has))?;
        let system = match form.system == CHATML {
            true => default_system(template)?,
            false => "",
        };
        Some(Self { form, system })
    }

    /// The family's name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.form.name
    }

    /// The text that begins a conversation with `said`, up to where the model goes on; `None` if `out` is too short.
    pub fn first<'o>(&self, said: &str, out: &'o mut [u8]) -> Option<&'o str> {
        let mut out = Text { bytes: out, len: 0 };
        let [open, close] = self.form.system;
        if self.form.system != CHATML || !self.system.is_empty() {
            out.push(open)?;
            for (i, line) in self.system.split("\\n").enumerate() {
                out.push(if i > 0 { "\n" } else { "" })?;
                out.push(line)?;
            }
            out.push(close)?;
        }
        self.say(said, out)
    }

    /// The text between an answer and the next one.
    pub fn next<'o>(&self, said: &str, out: &'o mut [u8]) -> Option<&'o str> {
        let mut out = Text { bytes: out, len: 0 };
        out.push(self.form.answer[1])?;
        self.say(said, out)
    }

    fn say<'o>(&self, said: &str, mut out: Text<'o>) -> Option<&'o str> {
        let said = if self.form.trims { said.trim() } else { said };
        let [open, close] = self.form.user;
        for part in [open, said, close, self.form.answer[0]] {
            out.push(part)?;
        }
        core::str::from_utf8(&out.bytes[..out.len]).ok()
    }

    /// Bytes that are written in addition to what is said, at most.
    #[must_use]
    pub fn more_bytes(&self) -> usize {
        let Form {
            system,
            user,
            answer,
            ..
        } = self.form;
        let texts = system.iter().chain(user).chain(answer);
        self.system.len() + texts.map(|text| text.len()).sum::<usize>()
    }
}

/// The text that a ChatML template begins with if the caller gives none; `None` if it has one that is not plain.
fn default_system(template: &str) -> Option<&str> {
    let mut starts = template.split("<|im_start|>system").skip(1);
    let found = starts.find_map(|rest| {
        let rest = rest
            .strip_prefix("\\n")
            .or_else(|| rest.strip_prefix('\n'))?;
        let (text, _) = rest.split_once("<|im_end|>")?;
        let is_plain = !text.is_empty() && !text.contains(['\'', '"', '{', '}', '<']);
        is_plain.then_some(text)
    });
    match found {
        None if template.contains("You are") => None,
        found => Some(found.unwrap_or("")),
    }
}

/// Text in a buffer.
struct Text<'o> {
    bytes: &'o mut [u8],
    len: usize,
}

impl Text<'_> {
    fn push(&mut self, text: &str) -> Option<()> {
        let end = self.len.checked_add(text.len())?;
        self.bytes
            .get_mut(self.len..end)?
            .copy_from_slice(text.as_bytes());
        self.len = end;
        Some(())
    }
}
