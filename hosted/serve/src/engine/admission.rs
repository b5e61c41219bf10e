//! Who gets a sequence, and room for it: waiting texts in order, what they can begin with, and who makes way.

use super::disk::{Kind, Name};
use super::ending::fail;
use super::job::Event;
use super::prefix::Key;
use super::running::{Fetch, Running, Waiting, settings};
use super::served::Served;
use super::thread::Command;
use core::sync::atomic::Ordering;
use sluice::Sequence;
use sluice::generate::common_prefix;
use sluice::session::GenerateError;
use sluice_core::state::PAGE_TOKENS;
use std::rc::Rc;

impl Served {
    /// Goes on with texts that made way, then begins those that wait, as far as there is room.
    pub(super) fn admit(&mut self) {
        if !self.resume() {
            return;
        }
        self.waiting.sort_by_key(|waiting| waiting.request.rank());
        let mut at = 0;
        while let Some(waiting) = self.waiting.get(at) {
            if waiting.fetch == Fetch::Asked {
                at += 1;
                continue;
            }
            let has_sequence = self.session.n_free_sequences() > 0 || !self.idle.is_empty();
            let n_new = waiting.request.prompt.len() + 1;
            if !has_sequence || !self.has_room(n_new) {
                return;
            }
            if waiting.fetch == Fetch::Not {
                let asked = self.fetch(at);
                self.waiting[at].fetch = if asked { Fetch::Asked } else { Fetch::Done };
                if asked {
                    continue;
                }
            }
            let waiting = self.waiting.remove(at);
            self.begin(waiting);
        }
    }

    /// Whether a text of `n_tokens` fits beside those that run, each with all of its prompt and a token more.
    fn has_room(&self, n_tokens: usize) -> bool {
        let running = self.running.iter().filter(|running| !running.is_parked);
        let taken = running
            .map(|running| n_pages(running.n_tokens() + 1))
            .sum::<usize>();
        taken + n_pages(n_tokens) < self.n_pages || self.running.is_empty()
    }

    /// Texts whose state was dropped are read again, the most urgent first. False while some cannot.
    fn resume(&mut self) -> bool {
        loop {
            let parked = self
                .running
                .iter()
                .enumerate()
                .filter(|(_, running)| running.is_parked);
            let Some((i, running)) = parked.min_by_key(|(_, running)| running.request.rank())
            else {
                return true;
            };
            if !self.has_room(running.n_tokens() + 1) {
                return false;
            }
            self.unpark(i);
        }
    }

    fn unpark(&mut self, i: usize) {
        let mut running = self.running.remove(i);
        running.is_parked = false;
        let begun = match running.saved.take() {
            Some((tokens, bytes)) => {
                self.ensure_free(n_pages(tokens.len()) + 1);
                self.session
                    .restore_bytes(&mut running.sequence, &tokens, &bytes)
            }
            None => {
                let text = running.sequence.queue().to_vec();
                running.n_kept = 0;
                self.enter(&mut running, &text).map(drop)
            }
        };
        if let Err(error) = begun {
            running.end = Some(super::Why::Failed(super::JobError::Failed(
                error.to_string(),
            )));
        }
        self.running.insert(i, running);
    }

    /// Begins a text that waits.
    fn begin(&mut self, mut waiting: Waiting) {
        let Some((index, choice)) = waiting.choices.pop_front() else {
            return;
        };
        self.entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
        let request = Rc::clone(&waiting.request);
        let begun = self.sequence_for(&waiting, choice);
        let mut running = match begun {
            Ok(sequence) => Running::new(
                Rc::clone(&request),
                index,
                sequence,
                waiting.chain,
                waiting.choices,
            ),
            Err(error) => {
                fail(&request, index, &error);
                for (choice, _) in &waiting.choices {
                    self.entry.n_waiting.fetch_sub(1, Ordering::Relaxed);
                    fail(&request, *choice, &error);
                }
                return;
            }
        };
        match self.enter(&mut running, &request.prompt) {
            Ok(cached) => {
                running.timings.cached = cached;
                request.send(Event::Started {
                    cached,
                    slot: running.sequence.slot(),
                });
                let metrics = &self.entry.metrics;
                metrics.started(running.timings.queued, request.prompt.len(), cached);
                if request.uses_cache {
                    metrics.prefix(request.prompt.len(), cached);
                }
            }
            Err(error) => {
                running.end = Some(super::Why::Failed(super::JobError::Failed(
                    error.to_string(),
                )))
            }
        }
        self.running.push(running);
    }

    /// A sequence: the idle one that has most of the prompt, a free one, or that of the text which ended longest
    /// ago.
    fn sequence_for(
        &mut self,
        waiting: &Waiting,
        choice: super::Choice,
    ) -> Result<Sequence, GenerateError> {
        let request = &waiting.request;
        let settings = settings(&choice, request);
        let shows_special = choice.shows_special;
        let mut sequence = match self.reusable(waiting) {
            Some(at) => {
                let idle = self.idle.remove(at).ok_or(GenerateError::ForeignSequence)?;
                self.session
                    .restart(idle.sequence, &settings, choice.sampler)?
            }
            None => {
                if self.session.n_free_sequences() == 0
                    && let Some(idle) = self.idle.pop_front()
                {
                    self.session.remove(idle.sequence)?;
                }
                self.session.add_with(&settings, choice.sampler)?
            }
        };
        if shows_special {
            sequence.show_special();
        }
        Ok(sequence)
    }

    /// The idle text that saves more than the pages in the cache do.
    fn reusable(&mut self, waiting: &Waiting) -> Option<usize> {
        let request = &waiting.request;
        if !request.uses_cache {
            return None;
        }
        let prompt = &request.prompt[..request.prompt.len() - 1];
        let is_recurrent = self.session.model().config().is_recurrent();
        let saved = |sequence: &Sequence| {
            let same = common_prefix(sequence.tokens(), prompt);
            // A recurrent state cannot be taken back.
            let is_whole = same == sequence.tokens().len();
            if is_recurrent && !is_whole { 0 } else { same }
        };
        let idle = self.idle.iter().enumerate();
        let key = request.adapter_key();
        let idle = idle.filter(|(_, idle)| {
            idle.salt == request.salt && idle.sequence.adapter_fingerprint() == key
        });
        let asked = |idle: &super::served::Idle| request.slot == Some(idle.sequence.slot());
        let best = idle.max_by_key(|(i, idle)| (saved(&idle.sequence), asked(idle), *i));
        let (at, same) = best.map(|(at, idle)| (at, saved(&idle.sequence)))?;
        let mut chain = waiting.chain.clone();
        let in_cache = self.cache.n_usable(chain.of(prompt)) * PAGE_TOKENS;
        (same > in_cache).then_some(at)
    }

    /// Lets a sequence begin with `text`: with what it has of it, or with pages of the cache; the rest is queued.
    /// Returns how many tokens need not be read.
    fn enter(&mut self, running: &mut Running, text: &[u32]) -> Result<usize, GenerateError> {
        let head = &text[..text.len() - 1];
        let same = common_prefix(running.sequence.tokens(), head);
        let mut known = self.session.truncate(&mut running.sequence, same)?;
        if known == 0 && running.request.uses_cache {
            let keys = running.chain.of(head).to_vec();
            let n = self.cache.n_usable(&keys);
            if n > 0 {
                let (pages, state) = self.cache.pages(&keys[..n]);
                known = n * PAGE_TOKENS;
                self.session
                    .attach(&mut running.sequence, &text[..known], &pages, state)?;
                self.cache.touch(&keys[..n]);
            }
        }
        running.sequence.push(&text[known..], 1);
        self.ensure_free(n_pages(text.len() + 1).saturating_sub(known / PAGE_TOKENS) + 1);
        Ok(known)
    }

    /// Asks the disk for pages that memory does not have; false if it has none.
    fn fetch(&mut self, at: usize) -> bool {
        let Some(disk) = &self.disk else { return false };
        let waiting = &mut self.waiting[at];
        let request = &waiting.request;
        if !request.uses_cache {
            return false;
        }
        let keys = waiting
            .chain
            .of(&request.prompt[..request.prompt.len() - 1]);
        let n_here = self.cache.n_leading(keys);
        let on_disk = |key: &Key| disk.contains(&(*key, Kind::Page));
        let n = n_here + keys[n_here..].iter().take_while(|key| on_disk(key)).count();
        let n = n.min(self.cache.n_pages_max());
        let has_state =
            |key: &Key| self.cache.has_state(key) || disk.contains(&(*key, Kind::State));
        let usable = (1..=n)
            .rev()
            .find(|&n| has_state(&keys[n - 1]))
            .unwrap_or(0);
        if usable <= self.cache.n_usable(keys) {
            return false;
        }
        let mut names: Vec<Name> = keys[n_here.min(usable)..usable]
            .iter()
            .map(|key| (*key, Kind::Page))
            .collect();
        if !self.cache.has_state(&keys[usable - 1]) {
            names.push((keys[usable - 1], Kind::State));
        }
        let (commands, model, arrival) = (self.commands.clone(), self.id, request.arrival);
        disk.read(names, move |read| {
            // Where the engine has ended, nobody waits for it.
            let _sent = commands.send(Command::Fetched(model, arrival, read));
        })
    }

    /// Takes pages that the disk has read for the request that arrived as `arrival`.
    pub(super) fn fetched(&mut self, arrival: u64, read: super::disk::Read) {
        let Some(at) = self
            .waiting
            .iter()
            .position(|waiting| waiting.request.arrival == arrival)
        else {
            return;
        };
        self.waiting[at].fetch = Fetch::Done;
        let waiting = &mut self.waiting[at];
        let prompt = &waiting.request.prompt;
        let keys = waiting.chain.of(&prompt[..prompt.len() - 1]).to_vec();
        for ((key, kind), bytes) in read {
            let Some(index) = keys.iter().position(|known| *known == key) else {
                continue;
            };
            match kind {
                Kind::Page => self.put_page(&keys[..index], key, &bytes),
                Kind::State => self.put_state(&key, (index + 1) * PAGE_TOKENS, &bytes),
            }
        }
    }

    fn put_page(&mut self, before: &[Key], key: Key, bytes: &[u8]) {
        self.ensure_free(2);
        let fingerprint = self.session.model().fingerprint();
        match self
            .session
            .with_state(|state| state.write_page(fingerprint, bytes))
        {
            Ok(page) => self.cache.insert(&mut self.session, key, before, page),
            Err(error) => (self.log)(&format!("a page from disk is not used: {error}")),
        }
    }

    fn put_state(&mut self, key: &Key, len: usize, bytes: &[u8]) {
        let Some(name) = self.cache.name_for(&mut self.session, key) else {
            return;
        };
        let fingerprint = self.session.model().fingerprint();
        match self
            .session
            .with_state(|state| state.write_state(name, fingerprint, bytes))
        {
            Ok(found) if found == len => self.cache.named(key, name),
            Ok(_) => self.session.with_state(|state| state.forget(name)),
            Err(error) => (self.log)(&format!("a state from disk is not used: {error}")),
        }
    }

    /// Frees pages until there are `n`: texts that have ended, then cached ones that were used longest ago. Returns
    /// how many are free.
    pub(super) fn ensure_free(&mut self, n: usize) -> usize {
        loop {
            let free = self.session.state().free_pages();
            if free >= n {
                return free;
            }
            if let Some(idle) = self.idle.pop_front() {
                if let Err(error) = self.session.remove(idle.sequence) {
                    (self.log)(&format!("{error}"));
                }
            } else if !self.cache.evict(&mut self.session) {
                return free;
            }
        }
    }

    /// Makes room for a step: shortens prompts, and drops the state of the texts that are least urgent.
    pub(super) fn make_room(&mut self, indexes: &mut Vec<usize>, parts: &mut Vec<usize>) {
        loop {
            let needed: usize = indexes
                .iter()
                .zip(&*parts)
                .map(|(&i, &n)| {
                    let len = self.running[i].sequence.tokens().len();
                    // The last page may have to be copied first.
                    n_pages(len + n) - n_pages(len)
                        + usize::from(
                            !len.is_multiple_of(PAGE_TOKENS)
                                && self.running[i].request.shift.is_some(),
                        )
                })
                .sum();
            // One more, so that no text ends because the others have taken the last.
            if indexes.is_empty() || self.ensure_free(needed + 1) > needed {
                break;
            }
            // One text alone goes on to the end of what there is.
            if self.running.len() == 1 && self.session.state().free_pages() >= needed {
                break;
            }
            let parts_of = |i: usize| indexes.iter().position(|index| *index == i);
            let victims = self
                .running
                .iter()
                .enumerate()
                .filter(|(_, running)| !running.is_parked);
            let Some((victim, _)) = victims.max_by_key(|(_, running)| running.request.rank())
            else {
                break;
            };
            if let Some(at) = parts_of(victim) {
                indexes.remove(at);
                parts.remove(at);
            }
            self.park(victim);
        }
    }

    /// Drops the state of a text; it is read again when there is room.
    fn park(&mut self, i: usize) {
        let running = &mut self.running[i];
        let text = running.sequence.tokens().to_vec();
        let queue = running.sequence.queue().to_vec();
        if running.sequence.n_shifted() > 0 {
            match self.session.save_bytes(&running.sequence) {
                Ok(bytes) => running.saved = Some((text.clone(), bytes)),
                Err(error) => {
                    running.end = Some(super::Why::Failed(super::JobError::Failed(
                        error.to_string(),
                    )));
                    return;
                }
            }
        }
        let dropped = self.session.drop_state(&mut running.sequence);
        if let Err(error) = dropped {
            running.end = Some(super::Why::Failed(super::JobError::Failed(
                error.to_string(),
            )));
            return;
        }
        if running.saved.is_none() {
            running.sequence.push(&text, 0);
        }
        running.sequence.push(&queue, 1);
        running.is_parked = true;
        running.timings.n_preempted += 1;
        self.entry.metrics.preempted();
    }
}

/// Pages of so many tokens.
pub(super) const fn n_pages(n_tokens: usize) -> usize {
    n_tokens.div_ceil(PAGE_TOKENS)
}
