//! Parses answers incrementally.
//!
//! Text is reported only once its meaning is certain, so the result does not depend on how an answer is split into
//! pieces. Marks are never reported, except text that only looks like a mark. White space around reasoning, and between
//! content and a call, is dropped.
//!
//! ```text
//! Content ──mark──▶ Reasoning, Call, Header        Call ──bad──▶ Lost ──closing mark──▶ Content
//!    ▲                  │       │     │
//!    └──────────────────┴───────┴─────┘   Between: of gpt-oss, after a message
//! ```

mod bare;
mod delta;
mod event;
mod literal;
mod marks;
mod message;
mod named;
mod objects;
mod reader;
mod table;
mod value;
mod xml;

use super::dialect::{Dialect, Format, ReasoningState};
use super::tool::Tool;
pub use delta::{Delta, ParserOptions};
use event::{Event, Step};
use marks::{Found, Trimmed, find};
use message::Kind as MessageKind;
use reader::{Kind, Reader};
use table::Action;
pub(super) use xml::is_text;

/// Parses one answer.
#[derive(Clone, Debug)]
pub struct AnswerParser {
    dialect: Dialect,
    tools: Vec<Tool>,
    parallel: bool,
    split_reasoning: bool,
    stream_arguments: bool,
    id_seed: u64,
    /// Marks that are recognised in content, and those in reasoning.
    content_marks: Vec<(&'static str, Action)>,
    reasoning_marks: Vec<(&'static str, Action)>,
    state: State,
    /// Text whose meaning is still uncertain.
    buffer: String,
    content: Trimmed,
    reasoning: Trimmed,
    /// Whether no content has been shown since the start, or since reasoning or a call.
    is_start: bool,
    /// Whether a call without a mark may begin here.
    may_be_bare: bool,
    n_calls: usize,
    /// Whether the answer ended before the model ended it.
    is_cut: bool,
    /// The deltas of the current piece.
    deltas: Vec<Delta>,
}

#[derive(Clone, Debug)]
enum State {
    Content,
    Reasoning,
    Call(Box<Call>),
    /// A malformed call, up to its closing mark.
    Lost(&'static str),
    /// For gpt-oss: between messages, and in the text before a message.
    Between,
    Header,
}

/// A call, or several between one pair of marks.
#[derive(Clone, Debug)]
struct Call {
    reader: Reader,
    /// The text read since the last complete call.
    raw: String,
    /// Events that are held back until the call is complete.
    held: Vec<Event>,
    /// Whether the call has already been reported in part.
    is_told: bool,
    /// The mark that ends a malformed call.
    close: &'static str,
    /// Whether no mark began it, so that it may be an answer in JSON.
    is_bare: bool,
}

impl AnswerParser {
    /// A parser of one answer.
    #[must_use]
    pub fn new(dialect: &Dialect, options: &ParserOptions<'_>) -> Self {
        let has_tools = !options.tools.is_empty();
        let state = match dialect.format {
            Format::Harmony => message::state_of_prompt(options.prompt_end),
            _ if dialect.reasoning_state(options.prompt_end) == ReasoningState::Open => {
                MessageKind::Reasoning
            }
            _ => MessageKind::Content,
        };
        let mut parser = Self {
            dialect: dialect.clone(),
            tools: options.tools.to_vec(),
            parallel: options.parallel,
            split_reasoning: options.split_reasoning,
            stream_arguments: options.stream_arguments,
            id_seed: options.id_seed,
            content_marks: table::content(dialect, has_tools),
            reasoning_marks: table::reasoning(dialect),
            state: State::Content,
            buffer: String::new(),
            content: Trimmed::default(),
            reasoning: Trimmed::default(),
            is_start: true,
            may_be_bare: false,
            n_calls: 0,
            is_cut: false,
            deltas: Vec::new(),
        };
        parser.may_be_bare = parser.has_bare_calls();
        parser.enter(state);
        parser
    }

    /// Parses the next piece of the answer.
    pub fn push(&mut self, piece: &str, emit: &mut dyn FnMut(Delta)) {
        self.buffer.push_str(piece);
        while self.step(false) {}
        self.deltas.drain(..).for_each(emit);
    }

    /// Ends the answer. If it was cut off, what may be the beginning of a call or of a mark is dropped; otherwise it is
    /// text, because the model ended it.
    pub fn finish(&mut self, is_cut: bool, emit: &mut dyn FnMut(Delta)) {
        self.is_cut = is_cut;
        while self.step(true) {}
        if let Some(space) = self.content.finish() {
            self.tell(Delta::Content(space));
        }
        self.deltas.drain(..).for_each(emit);
    }

    /// The number of reported calls, including incomplete ones.
    #[must_use]
    pub const fn n_calls(&self) -> usize {
        self.n_calls
    }

    /// Parses one step, if the buffer allows it.
    fn step(&mut self, is_last: bool) -> bool {
        if self.buffer.is_empty() && !matches!(self.state, State::Call(_)) {
            return false;
        }
        match self.state {
            State::Content if self.may_be_bare => self.bare(is_last),
            State::Content | State::Reasoning => self.text(is_last),
            State::Call(_) => self.call(is_last),
            State::Lost(close) => self.lost(close, is_last),
            State::Between => self.between(is_last),
            State::Header => self.header(is_last),
        }
    }

    /// Parses content or reasoning, up to the next mark.
    fn text(&mut self, is_last: bool) -> bool {
        let is_content = matches!(self.state, State::Content);
        let marks = if is_content {
            &self.content_marks
        } else {
            &self.reasoning_marks
        };
        let found = find(&self.buffer, marks.iter().map(|(mark, _)| *mark));
        match found {
            Found::None { clear } => {
                let is_whole = is_last && !self.is_cut;
                let clear = if is_whole { self.buffer.len() } else { clear };
                let text: String = self.buffer.drain(..clear).collect();
                self.show(&text);
                if is_last {
                    self.buffer.clear();
                }
                is_last
            }
            Found::Mark { at, number } => {
                let (mark, action) = marks[number];
                let text: String = self.buffer.drain(..at).collect();
                self.buffer.drain(..mark.len());
                self.show(&text);
                self.act(mark, action);
                true
            }
        }
    }

    /// Handles a mark.
    fn act(&mut self, mark: &'static str, action: Action) {
        match action {
            Action::Drop => {}
            Action::DropAtStart if self.is_start => {}
            Action::ReasonAtStart if !self.is_start => self.show(mark),
            Action::Reason | Action::ReasonAtStart => {
                if !self.split_reasoning {
                    self.show(mark);
                }
                self.enter(MessageKind::Reasoning);
            }
            Action::DropAtStart => self.show(mark),
            Action::Answer => {
                if self.split_reasoning {
                    self.reasoning.interrupt();
                    self.content.interrupt();
                } else {
                    self.show(mark);
                }
                self.is_start = true;
                self.may_be_bare = self.has_bare_calls() && self.n_calls == 0;
                self.state = State::Content;
            }
            Action::Call(kind, close) => self.begin_call(Reader::Undecided(kind), close),
            Action::End => {
                if !self.split_reasoning && matches!(self.state, State::Reasoning) {
                    self.show(mark);
                }
                self.state = State::Between;
            }
            Action::Header => {
                self.buffer.insert_str(0, mark);
                self.state = State::Between;
            }
        }
    }

    fn enter(&mut self, kind: MessageKind) {
        self.state = match kind {
            MessageKind::Reasoning => {
                if self.split_reasoning {
                    self.reasoning.interrupt();
                    self.content.interrupt();
                }
                State::Reasoning
            }
            MessageKind::Content => State::Content,
            MessageKind::Between => State::Between,
            MessageKind::Call(_) if self.tools.is_empty() => State::Content,
            MessageKind::Call(name) => return self.begin_call(Reader::of_message(name), ""),
        };
    }

    fn begin_call(&mut self, reader: Reader, close: &'static str) {
        self.may_be_bare = false;
        self.state = State::Call(Box::new(Call {
            is_bare: matches!(reader, Reader::Undecided(Kind::Bare)),
            reader,
            raw: String::new(),
            held: Vec::new(),
            is_told: false,
            close,
        }));
    }

    /// Parses the inside of calls.
    fn call(&mut self, is_last: bool) -> bool {
        let State::Call(mut call) = core::mem::replace(&mut self.state, State::Content) else {
            return false;
        };
        let buffer = core::mem::take(&mut self.buffer);
        let mut events = Vec::new();
        for (at, c) in buffer.char_indices() {
            let mut step = call.reader.push(c, &self.tools, &mut events);
            if call.is_bare && events.iter().any(|event| self.is_of_no_tool(event)) {
                step = Step::Bad;
                events.clear();
            }
            let is_complete = events.last() == Some(&Event::End);
            for event in events.drain(..) {
                self.event(&mut call, event);
            }
            match step {
                Step::More => call.raw.push(c),
                Step::Done => {
                    buffer[at + c.len_utf8()..].clone_into(&mut self.buffer);
                    self.end_calls();
                    return true;
                }
                Step::Over => {
                    self.buffer = call.reader.unread().to_owned() + &buffer[at..];
                    self.end_calls();
                    return true;
                }
                Step::Bad => {
                    self.bad(&call, &buffer[at..]);
                    return true;
                }
            }
            if is_complete {
                call.raw.clear();
            }
        }
        if !is_last {
            self.state = State::Call(call);
            return false;
        }
        let is_between = call.reader.is_between();
        if self.is_cut && (is_between || (!call.is_told && self.may_be_call(&call))) {
            return false;
        }
        if is_between {
            call.reader.unread().clone_into(&mut self.buffer);
        } else {
            self.bad(&call, "");
        }
        true
    }

    /// Handles a malformed call: the part that has not been reported becomes content.
    fn bad(&mut self, call: &Call, rest: &str) {
        if call.is_told {
            self.n_calls += 1;
            rest.clone_into(&mut self.buffer);
        } else {
            self.buffer = call.raw.clone() + rest;
        }
        self.state = if call.close.is_empty() {
            State::Content
        } else {
            State::Lost(call.close)
        };
    }

    fn end_calls(&mut self) {
        self.state = if self.dialect.format == Format::Harmony {
            State::Between
        } else {
            State::Content
        };
    }

    fn event(&mut self, call: &mut Call, event: Event) {
        let is_end = event == Event::End;
        let is_begin = matches!(event, Event::Begin(_));
        call.held.push(event);
        // A call that is malformed before its arguments always becomes content.
        if is_end || (self.stream_arguments && !is_begin) {
            let held = core::mem::take(&mut call.held);
            held.into_iter().for_each(|event| self.tell_event(event));
            call.is_told = !is_end;
        }
    }

    fn tell_event(&mut self, event: Event) {
        let index = self.n_calls;
        let is_dropped = index > 0 && !self.parallel;
        match event {
            Event::Begin(name) => {
                self.content.interrupt();
                self.is_start = true;
                let id = self.dialect.call_id(self.id_seed, index);
                if !is_dropped {
                    self.tell(Delta::CallBegin { index, id, name });
                }
            }
            Event::Arguments(text) if !is_dropped => {
                self.tell(Delta::CallArguments { index, text });
            }
            Event::Arguments(_) => {}
            Event::End => self.n_calls += 1,
        }
    }

    /// Shows the rest of a malformed call as content, up to its closing mark.
    fn lost(&mut self, close: &'static str, is_last: bool) -> bool {
        let found = find(&self.buffer, core::iter::once(close));
        let (clear, len) = match found {
            Found::Mark { at, .. } => (at, close.len()),
            Found::None { .. } if is_last && !self.is_cut => (self.buffer.len(), 0),
            Found::None { clear } => (clear, 0),
        };
        let text: String = self.buffer.drain(..clear).collect();
        self.buffer.drain(..len);
        self.show(&text);
        if len > 0 {
            self.state = State::Content;
        }
        len > 0
    }

    /// Reports text as content or reasoning, depending on the state.
    fn show(&mut self, text: &str) {
        if self.split_reasoning && matches!(self.state, State::Reasoning) {
            if let Some(text) = self.reasoning.push(text) {
                self.tell(Delta::Reasoning(text));
            }
            return;
        }
        self.is_start &= text.trim().is_empty();
        if let Some(text) = self.content.push(text) {
            self.tell(Delta::Content(text));
        }
    }

    /// Appends to the last delta, or starts another.
    fn tell(&mut self, delta: Delta) {
        match (self.deltas.last_mut(), &delta) {
            (Some(Delta::Content(last)), Delta::Content(text))
            | (Some(Delta::Reasoning(last)), Delta::Reasoning(text)) => last.push_str(text),
            (
                Some(Delta::CallArguments {
                    index: last_index,
                    text: last,
                }),
                Delta::CallArguments { index, text },
            ) if last_index == index => last.push_str(text),
            _ => self.deltas.push(delta),
        }
    }
}
