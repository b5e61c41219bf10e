//! Speculation: which tokens of which texts the next step verifies, and the results.
//!
//! [`Session::set_speculation`](crate::Session::set_speculation) turns it on. Texts are the same with and without,
//! bit for bit: a draft token is accepted where it is what the sampler draws anyway. Draft tokens come from a grammar
//! that leaves no choice, from the text itself and a table of n-grams ([`sluice_core::speculate`]), and from a
//! [`Drafter`], such as [`DraftModel`](crate::draft::DraftModel). The number verified follows from how often they were
//! accepted and from the time of steps, both measured all the time.
#![forbid(unsafe_code)]

mod drafter;
mod figures;
mod plan;
mod text;

pub use drafter::{Ask, Drafter};
pub use figures::{Figures, SourceFigures};
pub use sluice_core::speculate::POSITIONS_MAX;

use crate::sequence::Sequence;
use core::fmt;
use core::panic::AssertUnwindSafe;
use core::time::Duration;
use sluice_core::costs::Costs;
use sluice_core::engine::{EngineLimits, Outputs};
use sluice_core::speculate::{Acceptance, NgramTable};
use std::collections::HashMap;
use std::time::Instant;
use text::Text;

/// Settings of drafting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SpeculationOptions {
    /// Maximum draft tokens of a text in a step, 1 to [`POSITIONS_MAX`].
    pub n_max: usize,
    /// Minimum draft tokens: if fewer are worth it, none are verified.
    pub n_min: usize,
    /// A draft token with a lower probability by the drafting model ends its draft tokens, 0 to 1.
    pub p_min: f32,
    /// Whether texts and the table of n-grams are looked up.
    pub ngrams: bool,
    /// Whether `n_max` draft tokens are always verified, if available, whether it pays or not: for measurements.
    pub is_fixed: bool,
}

impl Default for SpeculationOptions {
    fn default() -> Self {
        Self {
            n_max: 8,
            n_min: 1,
            p_min: 0.0,
            ngrams: true,
            is_fixed: false,
        }
    }
}

/// The state of speculation in a session.
pub struct Speculation {
    options: SpeculationOptions,
    /// Tokens of the longest text.
    n_ctx: usize,
    /// Whether steps stand at the end of each page, where a host may keep a recurrent state.
    stands_at_pages: bool,
    /// By the number of their sequence.
    texts: Vec<Text>,
    /// By domain ([`crate::Settings::domain`]), with the time of their last use.
    tables: HashMap<u64, (u64, NgramTable<Vec<u32>>)>,
    n_used: u64,
    drafter: Option<Box<dyn Drafter>>,
    acceptance: Acceptance,
    costs: Costs,
    figures: Figures,
    /// Hidden states to be passed to the drafter.
    hidden: Vec<f32>,
    /// Why the drafter stopped.
    failure: Option<String>,
}

impl Speculation {
    /// For a session with `limits`; `keeps_states` keeps recurrent states of written texts.
    pub(crate) fn new(
        options: SpeculationOptions,
        limits: &EngineLimits,
        keeps_states: bool,
    ) -> Self {
        let n_max = options.n_max.clamp(1, POSITIONS_MAX);
        Self {
            options: SpeculationOptions { n_max, ..options },
            n_ctx: limits.n_ctx,
            stands_at_pages: keeps_states,
            texts: (0..limits.n_seq).map(|_| Text::new()).collect(),
            tables: HashMap::new(),
            n_used: 0,
            drafter: None,
            acceptance: Acceptance::of_session(),
            costs: Costs::new(),
            figures: Figures::default(),
            hidden: Vec::new(),
            failure: None,
        }
    }

    /// The settings.
    #[must_use]
    pub const fn options(&self) -> &SpeculationOptions {
        &self.options
    }

    /// The statistics so far.
    #[must_use]
    pub const fn figures(&self) -> &Figures {
        &self.figures
    }

    /// The drafter, if there is one.
    #[must_use]
    pub fn drafter(&self) -> Option<&dyn Drafter> {
        self.drafter.as_deref()
    }

    /// Why the drafter stopped, once.
    pub const fn failure(&mut self) -> Option<String> {
        self.failure.take()
    }

    pub(crate) fn set_drafter(&mut self, drafter: Option<Box<dyn Drafter>>) {
        self.drafter = drafter;
    }

    /// Drafts for the texts that are being written: up to `n_rows` rows of draft tokens, in addition to `n_beside`
    /// rows of prompts. Returns the number of draft rows.
    pub(crate) fn draft(
        &mut self,
        sequences: &mut [&mut Sequence],
        n_beside: usize,
        n_rows: usize,
    ) -> usize {
        let start = Instant::now();
        for sequence in sequences.iter_mut() {
            sequence.drafts.clear();
            sequence.is_drafted = sequence.is_being_written();
        }
        let mut written: Vec<_> = (0..sequences.len()).collect();
        written.retain(|&i| sequences[i].is_drafted);
        // The token to be read next is part of the text meanwhile, so that nothing need be copied.
        for &i in &written {
            let next = sequences[i].queue[0];
            sequences[i].tokens.push(next);
        }
        // Samplers and drafters may be the host's: one that panics costs the step's draft tokens, and no text.
        let drafted = std::panic::catch_unwind(AssertUnwindSafe(|| {
            for &i in &written {
                self.look_up(sequences[i]);
            }
            self.choose(sequences, &written, n_beside, n_rows)
        }));
        for &i in &written {
            sequences[i].tokens.pop();
        }
        self.figures.drafting += start.elapsed();
        drafted.unwrap_or_else(|_| {
            written.iter().for_each(|&i| sequences[i].drafts.clear());
            self.failure = Some("the drafter panicked".to_owned());
            0
        })
    }

    /// Whether the drafter needs the hidden states that the model computes.
    pub(crate) fn reads_hidden(&self) -> bool {
        let drafter = self.drafter.as_ref();
        drafter.is_some_and(|drafter| drafter.reads_hidden())
    }

    /// A step has read the tokens of a text after the first `n_before`; entry `start` of its batch is the first.
    pub(crate) fn note_read(
        &mut self,
        sequence: &Sequence,
        n_before: usize,
        start: usize,
        outputs: &Outputs<'_>,
    ) {
        let tokens = &sequence.tokens[n_before..];
        self.hidden.clear();
        for entry in start..start + tokens.len() {
            let Some(row) = outputs.hidden(entry) else {
                return;
            };
            self.hidden.extend_from_slice(row);
        }
        if let Some(drafter) = self.drafter.as_mut().filter(|_| !tokens.is_empty()) {
            drafter.saw(sequence.slot, n_before, tokens, &self.hidden);
        }
    }

    /// Notes the time of a step over a number of rows, which looked back at `n_positions`; it verified drafts, or none.
    pub(crate) fn note_step(
        &mut self,
        n_rows: usize,
        n_positions: usize,
        time: Duration,
        verified: bool,
    ) {
        let ns = time.as_secs_f64() * 1e9;
        self.costs.note(n_rows, n_positions, ns);
        if verified {
            self.figures.verifying += time;
        }
    }

    /// Notes the tokens drawn after a text: all but the last token had been drafted.
    pub(crate) fn note_drawn(&mut self, sequence: &mut Sequence) {
        if sequence.chosen.is_empty() {
            return;
        }
        let drawn = sequence.chosen.iter().map(|chosen| chosen.token);
        let text = &mut self.texts[sequence.slot as usize];
        text.compare(drawn, &mut self.acceptance);
        self.figures.n_passes += 1;
        self.figures.n_drawn += sequence.chosen.len() as u64;
        if !sequence.drafts.is_empty() {
            let n_accepted = sequence.chosen.len() - 1;
            self.figures.note(&sequence.drafts, n_accepted);
            sequence.n_drafted += sequence.drafts.len();
            sequence.n_accepted += n_accepted;
        }
        sequence.drafts.clear();
        sequence.is_drafted = false;
    }

    /// The table of a domain. Only a few are kept.
    fn table(&mut self, domain: u64) -> &mut NgramTable<Vec<u32>> {
        self.n_used += 1;
        let is_new = !self.tables.contains_key(&domain);
        if is_new && self.tables.len() >= TABLES_MAX.max(self.texts.len()) {
            let oldest = self.tables.iter().min_by_key(|(_, (used, _))| *used);
            if let Some(domain) = oldest.map(|(domain, _)| *domain) {
                self.tables.remove(&domain);
            }
        }
        let (used, table) = self.tables.entry(domain).or_insert_with(|| {
            let table = NgramTable::new(vec![0; TABLE_WORDS]).expect("a power of two");
            (0, table)
        });
        *used = self.n_used;
        table
    }
}

impl fmt::Debug for Speculation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Speculation")
            .field("options", &self.options)
            .field("figures", &self.figures)
            .finish_non_exhaustive()
    }
}

/// Words of a table: 512 KiB.
const TABLE_WORDS: usize = 1 << 17;
/// Tables that are kept at least; the one used longest ago is removed first.
const TABLES_MAX: usize = 16;
