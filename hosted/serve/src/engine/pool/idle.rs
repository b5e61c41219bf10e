//! Ended texts that are still in memory, for the next turn of their conversations.

use crate::engine::request::Request;
use sluice::Sequence;
use sluice::generate::common_prefix;
use sluice::generate::prompt_cache::CacheSalt;
use std::collections::VecDeque;
use std::sync::Arc;

/// Sequences of ended texts, kept until their room is needed; least recently used first.
#[derive(Debug, Default)]
pub(super) struct IdleTexts {
    texts: VecDeque<IdleText>,
}

/// An ended text, and whose it is.
#[derive(Debug)]
pub(super) struct IdleText {
    pub(super) sequence: Sequence,
    pub(super) group: Arc<str>,
    pub(super) salt: CacheSalt,
}

/// An idle text from which a request can continue.
#[derive(Clone, Copy, Debug)]
pub(super) struct IdleMatch {
    pub(super) slot: u32,
    /// Number of tokens that need not be read again.
    pub(super) n_saved: usize,
}

impl IdleTexts {
    pub(super) fn push(&mut self, sequence: Sequence, group: Arc<str>, salt: CacheSalt) {
        self.texts.push_back(IdleText {
            sequence,
            group,
            salt,
        });
    }

    /// Removes the least recently used one.
    pub(super) fn pop(&mut self) -> Option<Sequence> {
        self.texts.pop_front().map(|idle| idle.sequence)
    }

    /// Removes the one in this slot.
    pub(super) fn take(&mut self, slot: u32) -> Option<Sequence> {
        let at = self.iter().position(|sequence| sequence.slot() == slot)?;
        self.texts.remove(at).map(|idle| idle.sequence)
    }

    /// Whether the one in this slot, if there is any, is not of this group.
    pub(super) fn is_foreign(&self, slot: u32, group: &str) -> bool {
        let mut texts = self.texts.iter();
        texts.any(|idle| idle.sequence.slot() == slot && *idle.group != *group)
    }

    /// The one in this slot.
    pub(super) fn get(&self, slot: u32) -> Option<&IdleText> {
        let mut texts = self.texts.iter();
        texts.find(|idle| idle.sequence.slot() == slot)
    }

    pub(super) fn texts(&self) -> impl Iterator<Item = &IdleText> {
        self.texts.iter()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Sequence> {
        self.texts.iter().map(|idle| &idle.sequence)
    }

    /// The text that shares the longest prefix with a request's prompt, in the slot `pinned` if there is one; of several
    /// that `fits` accepts, the most recent. A recurrent state cannot be rewound, so its whole text must be a prefix of
    /// the prompt.
    pub(super) fn best(
        &self,
        request: &Request,
        pinned: Option<u32>,
        is_recurrent: bool,
        fits: impl Fn(&Sequence) -> bool,
    ) -> Option<IdleMatch> {
        let prompt = request.head();
        let saved = |sequence: &Sequence| {
            let same = common_prefix(sequence.tokens(), prompt);
            let is_whole = same == sequence.tokens().len();
            if is_recurrent && !is_whole { 0 } else { same }
        };
        let key = request.adapter_key();
        let usable = self.texts.iter().enumerate().filter(|(_, idle)| {
            let is_open = pinned.is_none_or(|slot| slot == idle.sequence.slot());
            let domain = &request.domain;
            let is_own = idle.group == domain.group && idle.salt.is(&domain.salt);
            let is_alike = idle.sequence.adapter_identity() == key && fits(&idle.sequence);
            is_open && is_own && is_alike
        });
        let ranked = usable.map(|(i, idle)| {
            let slot = idle.sequence.slot();
            (saved(&idle.sequence), i, slot)
        });
        let (n_saved, _, slot) = ranked.max()?;
        Some(IdleMatch { slot, n_saved })
    }
}
