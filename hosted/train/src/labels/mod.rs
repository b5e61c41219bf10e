//! From rows to tokens, and which of them the model learns to predict.
//!
//! - A text is learned as a whole, a prompt with its completion from the completion on; both end with the vocabulary's
//!   token for it.
//! - Of a conversation the assistant's turns are learned, with the tokens that end them: what the template puts between
//!   `{% generation %}` and `{% endgeneration %}`, or, without such marks, what growing renderings add (`turns`).

mod spans;
mod turns;

pub use spans::LabelSpans;

use crate::row::{ChatRow, Row};
use core::ops::Range;
use core::time::Duration;
use serde_json::{Map, Value};
use sluice::encode::{encode, token_ends};
use sluice_core::tokenizer::{EncodeOptions, Tokenizer};
use sluice_text::chat::{AlignedPrompt, PromptMaker};
use sluice_text::chat_template::{Message, RenderOptions};
use std::time::{SystemTime, UNIX_EPOCH};
use turns::{FoundTurns, Turns};

/// Makes tokens and labels for one model.
#[derive(Debug)]
pub(crate) struct Labeller<'m> {
    pub(crate) tokenizer: &'m Tokenizer<'m>,
    /// `None` if neither the model nor the configuration has a chat template.
    pub(crate) maker: Option<PromptMaker>,
    /// Variables of the template, which a row's own override.
    pub(crate) kwargs: Map<String, Value>,
    pub(crate) completion_only: bool,
    pub(crate) assistant_only: bool,
}

/// A row's tokens and labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Labelled {
    pub(crate) tokens: Vec<u32>,
    pub(crate) labels: LabelSpans,
    /// A token has the end of the prompt and the beginning of the completion.
    pub(crate) straddles: bool,
    /// Turns of the assistant's that could not be told from the rest.
    pub(crate) turns_lost: usize,
    /// The last label of a conversation is not a token that ends an answer.
    pub(crate) is_open: bool,
}

/// Why a row has no labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RowProblem {
    /// A chat template is missing.
    NoTemplate,
    /// The row is wrong.
    Wrong(String),
}

impl Labeller<'_> {
    /// The tokens of a row, before they are cut, and its labels, which may be none.
    pub(crate) fn label(&self, row: &Row) -> Result<Labelled, RowProblem> {
        match row {
            Row::Text(text) => self.text(text, 0),
            Row::Completion { prompt, completion } => {
                let from = if self.completion_only {
                    prompt.len()
                } else {
                    0
                };
                self.text(&format!("{prompt}{completion}"), from)
            }
            Row::Tokens { ids, learned } => self.ids(ids, learned),
            Row::Chat(row) => self.chat(row),
        }
    }

    /// A text that is learned from the byte `from` on. Control tokens that it names are read as such.
    fn text(&self, text: &str, from: usize) -> Result<Labelled, RowProblem> {
        let wrong = |reason: String| RowProblem::Wrong(reason);
        if text.is_empty() {
            return Ok(Labelled::default());
        }
        let bos = self.tokenizer.bos().map(|bos| self.tokenizer.piece(bos));
        let has_bos = bos.is_some_and(|bos| !bos.is_empty() && text.as_bytes().starts_with(bos));
        let options = EncodeOptions {
            add_special: !has_bos,
            parse_special: true,
        };
        let tokens = encode(self.tokenizer, text, options);
        let mut tokens = tokens.map_err(|error| wrong(error.to_string()))?;
        let ends = token_ends(self.tokenizer, text, &tokens);
        let mut ends = ends.ok_or_else(|| wrong(UNALIGNED.to_owned()))?;
        if let Some(eos) = self.tokenizer.eos()
            && tokens.last() != Some(&eos)
        {
            tokens.push(eos);
            ends.push(text.len());
        }
        // An empty completion has nothing to learn but the end, which the next prompt would unlearn.
        if from == text.len() {
            return Ok(Labelled {
                tokens,
                ..Labelled::default()
            });
        }
        let starts = starts(&ends);
        let straddles = from > 0
            && starts
                .clone()
                .zip(&ends)
                .any(|(start, &end)| start < from && end > from);
        let learned = starts
            .zip(&ends)
            .map(|(start, &end)| end > from || start >= from);
        Ok(Labelled {
            labels: LabelSpans::of(learned),
            tokens,
            straddles,
            ..Labelled::default()
        })
    }

    fn ids(&self, ids: &[u32], learned: &[bool]) -> Result<Labelled, RowProblem> {
        let n_vocab = self.tokenizer.n_vocab();
        if let Some((at, id)) = ids.iter().enumerate().find(|(_, id)| **id >= n_vocab) {
            let reason =
                format!("input_ids[{at}] is {id}, and the vocabulary has {n_vocab} tokens");
            return Err(RowProblem::Wrong(reason));
        }
        Ok(Labelled {
            tokens: ids.to_vec(),
            labels: LabelSpans::of(learned.iter().copied()),
            ..Labelled::default()
        })
    }

    fn chat(&self, row: &ChatRow) -> Result<Labelled, RowProblem> {
        let maker = self.maker.as_ref().ok_or(RowProblem::NoTemplate)?;
        self.check_roles(maker, row)?;
        let messages: Vec<Message> = row.turns.iter().map(|turn| turn.message.clone()).collect();
        let options = self.options(row);
        let prompt = maker.aligned(&messages, &options, self.tokenizer);
        let prompt = prompt.map_err(|error| RowProblem::Wrong(error.to_string()))?;
        let everything = match row.completion_from {
            0 => !self.assistant_only,
            _ => !self.completion_only,
        };
        let has_unlearned = row.turns.iter().any(|turn| !turn.train);
        let found = match everything && !has_unlearned {
            true => FoundTurns::default(),
            false => Turns {
                maker,
                tokenizer: self.tokenizer,
                options: &options,
                messages: &messages,
                row,
                prompt: &prompt,
                unlearned: everything,
            }
            .spans(),
        };
        let of_turns = labels_of(&prompt, &found.spans);
        let labels = match everything {
            true => LabelSpans::of(
                (0..)
                    .zip(&prompt.tokens)
                    .map(|(at, _)| !of_turns.contains(at)),
            ),
            false => of_turns,
        };
        let last = labels.ranges().last().map_or(0, |range| range.end as usize);
        let learned = prompt.tokens.get(..last).unwrap_or_default();
        let ends = |id: &u32| self.tokenizer.is_end_of_generation(*id);
        // A line break may follow it.
        let is_open = !learned.iter().rev().take(TAIL_TOKENS).any(ends);
        Ok(Labelled {
            labels,
            tokens: prompt.tokens,
            straddles: false,
            turns_lost: found.n_lost,
            is_open,
        })
    }

    fn options(&self, row: &ChatRow) -> RenderOptions {
        let mut extra = self.kwargs.clone();
        extra.extend(row.kwargs.clone());
        RenderOptions {
            tools: row.tools.clone(),
            extra,
            now: Some(now()),
            ..RenderOptions::default()
        }
    }

    /// A role is known if the API has it, or if the template's source names it.
    fn check_roles(&self, maker: &PromptMaker, row: &ChatRow) -> Result<(), RowProblem> {
        const ROLES: [&str; 5] = ["system", "developer", "user", "assistant", "tool"];
        let source = maker.template().source();
        for (n, turn) in row.turns.iter().enumerate() {
            let role = &*turn.message.role;
            let is_named =
                || source.contains(&format!("'{role}'")) || source.contains(&format!("\"{role}\""));
            if !ROLES.contains(&role) && !is_named() {
                let reason = format!(
                    "message {n} has the role {role:?}, which the chat template does not know"
                );
                return Err(RowProblem::Wrong(reason));
            }
        }
        Ok(())
    }
}

/// The time that templates see: a run has to be the same on every day. Set `date_string` in `chat_template_kwargs` for
/// another one, where the template has it.
fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(JULY_26_2024)
}

/// Where tokens start, from where they end.
fn starts(ends: &[usize]) -> impl Iterator<Item = usize> + Clone {
    [0].into_iter().chain(ends.iter().copied()).take(ends.len())
}

/// The labels of tokens that have a byte of one of these ascending ranges.
fn labels_of(prompt: &AlignedPrompt, spans: &[Range<usize>]) -> LabelSpans {
    let mut spans = spans.iter().peekable();
    let learned = starts(&prompt.ends).zip(&prompt.ends).map(|(start, &end)| {
        // Of the tokens that share a character, all but the last have a length of 0.
        let end = end.max(start + 1);
        while spans.next_if(|span| span.end <= start).is_some() {}
        spans
            .peek()
            .is_some_and(|span| span.start < end && !span.is_empty())
    });
    LabelSpans::of(learned)
}

const UNALIGNED: &str = "the vocabulary changes the text, so that its tokens cannot be found in it";
/// How far from its end a turn has the token that ends it.
const TAIL_TOKENS: usize = 3;
/// The date that llama 3's templates write where they are given none.
const JULY_26_2024: u64 = 1_721_952_000;
