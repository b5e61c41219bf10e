//! Marks of formats that differ in nothing else.

/// A format whose arguments are between tags. Line breaks at the ends of tags are what models write; the parser takes any.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TagMarks {
    pub(super) name: &'static str,
    /// Texts by which a template is recognised.
    pub(super) hints: &'static [&'static str],
    /// Before a call, or before all calls.
    pub(super) open: &'static str,
    /// After it; empty if that is `call_end`.
    pub(super) close: &'static str,
    /// Whether all calls are between one pair of marks.
    pub(super) is_shared: bool,
    /// Before the name and after it.
    pub(super) call: &'static str,
    pub(super) name_end: &'static str,
    /// Before an argument's name.
    pub(super) key: &'static str,
    /// After it, if the value is a text, and if it is JSON.
    pub(super) key_ends: [&'static str; 2],
    /// Before the value and after it.
    pub(super) value: &'static str,
    pub(super) value_end: &'static str,
    /// Around a text with `<`, `&` or a line break; empty if it is written as it is.
    pub(super) wrapper: [&'static str; 2],
    pub(super) call_end: &'static str,
    /// Whether tags may be control tokens, and line breaks after them are optional.
    pub(super) is_loose: bool,
}

impl TagMarks {
    /// A text as it is written before the end of a value.
    pub(super) fn wrapped(&self, text: &str) -> String {
        let [open, close] = self.wrapper;
        match text.contains(['<', '&', '\n']) {
            true => [open, text, close].concat(),
            false => text.to_owned(),
        }
    }
}

/// `<tool_call><function=..><parameter=..>..</parameter></function></tool_call>`.
pub(super) static QWEN_CODER: TagMarks = TagMarks {
    name: "qwen3-coder",
    hints: &["<tool_call>", "<function=", "<parameter="],
    close: "</tool_call>",
    ..QWEN
};

/// `<|tool_call>call:name{key:<|"|>text<|"|>,other:[1,true]}<tool_call|>`: a notation of its own, with commas.
pub(super) const GEMMA4: TagMarks = TagMarks {
    name: "gemma4",
    hints: &["<|tool_call>"],
    open: "<|tool_call>",
    close: "<tool_call|>",
    call: "call:",
    name_end: "{",
    key: "",
    key_ends: [":<|\"|>", ":"],
    value_end: "<|\"|>",
    call_end: "}",
    is_loose: true,
    ..QWEN
};

/// Formats of tags, the most specific ones first.
pub(super) static TAGS: [&TagMarks; 8] = [
    &GEMMA4,
    &TagMarks {
        name: "seed-oss",
        hints: &["<seed:tool_call>"],
        open: "<seed:tool_call>",
        close: "</seed:tool_call>",
        key_ends: [">"; 2],
        value_end: "</parameter>\n",
        ..QWEN
    },
    &TagMarks {
        name: "minimax-m2",
        hints: &["<minimax:tool_call>"],
        open: "<minimax:tool_call>",
        close: "</minimax:tool_call>",
        ..INVOKE
    },
    &TagMarks {
        name: "deepseek-v3.2",
        hints: &["｜DSML｜", "function_calls>"],
        open: "<｜DSML｜function_calls>",
        close: "</｜DSML｜function_calls>",
        ..DSML
    },
    &TagMarks {
        name: "deepseek-v4",
        hints: &["｜DSML｜", "tool_calls>"],
        open: "<｜DSML｜tool_calls>",
        close: "</｜DSML｜tool_calls>",
        ..DSML
    },
    &TagMarks {
        name: "minicpm5",
        hints: &["<function name=", "<param name="],
        open: "<function name=\"",
        close: "",
        call: "",
        name_end: "\">",
        key: "<param name=\"",
        key_ends: ["\">"; 2],
        value_end: "</param>",
        wrapper: ["<![CDATA[", "]]>"],
        ..QWEN
    },
    &TagMarks {
        name: "glm",
        hints: &["<tool_call>", "<arg_key>"],
        close: "",
        call: "",
        name_end: "\n",
        key: "<arg_key>",
        key_ends: ["</arg_key>\n"; 2],
        value: "<arg_value>",
        value_end: "</arg_value>\n",
        call_end: "</tool_call>",
        is_loose: true,
        ..QWEN
    },
    &QWEN_CODER,
];

const QWEN: TagMarks = TagMarks {
    name: "",
    hints: &[],
    open: "<tool_call>",
    close: "",
    is_shared: false,
    call: "<function=",
    name_end: ">\n",
    key: "<parameter=",
    key_ends: [">\n"; 2],
    value: "",
    value_end: "\n</parameter>\n",
    wrapper: [""; 2],
    call_end: "</function>",
    is_loose: false,
};
const INVOKE: TagMarks = TagMarks {
    is_shared: true,
    call: "<invoke name=\"",
    name_end: "\">\n",
    key: "<parameter name=\"",
    key_ends: ["\">"; 2],
    value_end: "</parameter>\n",
    call_end: "</invoke>",
    ..QWEN
};
const DSML: TagMarks = TagMarks {
    call: "<｜DSML｜invoke name=\"",
    key: "<｜DSML｜parameter name=\"",
    key_ends: ["\" string=\"true\">", "\" string=\"false\">"],
    value_end: "</｜DSML｜parameter>\n",
    call_end: "</｜DSML｜invoke>",
    ..INVOKE
};

/// A format whose calls are a name and a JSON object.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NameMarks {
    pub(super) name: &'static str,
    pub(super) hints: &'static [&'static str],
    /// Around all calls, or empty.
    pub(super) open: &'static str,
    pub(super) close: &'static str,
    /// Before a call.
    pub(super) call: &'static str,
    /// Before the name, in addition to an id.
    pub(super) lead: &'static str,
    /// Whether `:` and a number follow the name.
    pub(super) is_numbered: bool,
    /// Between the name and the arguments.
    pub(super) separator: &'static str,
    pub(super) call_end: &'static str,
}

pub(super) static DEEPSEEK_V31: NameMarks = NameMarks {
    name: "deepseek-v3.1",
    hints: &[],
    open: "<｜tool▁calls▁begin｜>",
    close: "<｜tool▁calls▁end｜>",
    call: "<｜tool▁call▁begin｜>",
    lead: "",
    is_numbered: false,
    separator: "<｜tool▁sep｜>",
    call_end: "<｜tool▁call▁end｜>",
};

pub(super) static NAMED: [&NameMarks; 3] = [
    &NameMarks {
        name: "kimi-k2",
        hints: &["<|tool_call_argument_begin|>"],
        open: "<|tool_calls_section_begin|>",
        close: "<|tool_calls_section_end|>",
        call: "<|tool_call_begin|>",
        lead: "functions.",
        is_numbered: true,
        separator: "<|tool_call_argument_begin|>",
        call_end: "<|tool_call_end|>",
    },
    &NameMarks {
        name: "functionary-v3.1",
        hints: &["<function=", "</function>"],
        open: "",
        close: "",
        call: "<function=",
        lead: "",
        is_numbered: false,
        separator: ">",
        call_end: "</function>",
    },
    &DEEPSEEK_V31,
];

/// A format whose calls are JSON objects between two marks.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ObjectMarks {
    pub(super) name: &'static str,
    pub(super) hints: &'static [&'static str],
    pub(super) open: &'static str,
    /// Empty if the list ends the calls.
    pub(super) close: &'static str,
    /// Between calls; those with a comma are in a list.
    pub(super) separator: &'static str,
    /// Whether the name is the key of the arguments.
    pub(super) is_keyed: bool,
}

pub(super) static OBJECTS: [&ObjectMarks; 6] = [
    &ObjectMarks {
        name: "minimax-m1",
        hints: &["<tool_calls>", "<end_of_sentence>"],
        separator: "\n",
        ..TOOL_CALLS
    },
    &ObjectMarks {
        name: "tool-calls",
        hints: &["<tool_calls>"],
        ..TOOL_CALLS
    },
    &ObjectMarks {
        name: "nemotron-v2",
        hints: &["<TOOLCALL>"],
        open: "<TOOLCALL>",
        close: "</TOOLCALL>",
        ..TOOL_CALLS
    },
    &ObjectMarks {
        name: "apertus",
        hints: &["<|tools_prefix|>"],
        open: "<|tools_prefix|>",
        close: "<|tools_suffix|>",
        is_keyed: true,
        ..TOOL_CALLS
    },
    &ObjectMarks {
        name: "granite-3",
        hints: &["<|tool_call|>"],
        open: "<|tool_call|>",
        close: "",
        ..TOOL_CALLS
    },
    &ObjectMarks {
        name: "gigachat3.1",
        hints: &["<|function_call|>"],
        open: "<|function_call|>",
        close: "",
        separator: "\n",
        ..TOOL_CALLS
    },
];

const TOOL_CALLS: ObjectMarks = ObjectMarks {
    name: "",
    hints: &[],
    open: "<tool_calls>",
    close: "</tool_calls>",
    separator: ", ",
    is_keyed: false,
};
