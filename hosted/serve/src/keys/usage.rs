//! What a key uses: its streams, its tokens, and its budget.

use super::budget::Budget;
use crate::engine::TokenMeter;
use crate::metrics::KeyFigures;
use core::num::NonZeroU32;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What the requests with a key use. It outlives the reading of another file of keys.
#[derive(Debug, Default)]
pub(super) struct Usage(Mutex<Account>);

#[derive(Debug, Default)]
struct Account {
    budget: Option<Budget>,
    n_streams_max: Option<usize>,
    n_streams: usize,
    /// [`MEAN_OF`] times the mean number of tokens that recent texts wrote.
    written: u64,
    figures: KeyFigures,
}

/// What a request is going to use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Demand {
    /// Texts that are written or embedded.
    pub(crate) n_texts: usize,
    /// Tokens of all prompts.
    pub(crate) n_prompt: usize,
    /// Maximum number of tokens to write for each text.
    pub(crate) n_predict: Option<usize>,
}

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The budget is overdrawn for this long.
    Budget(Duration),
    /// All of this many streams are in use.
    Streams(usize),
    /// It has more texts than the key may have at once.
    Texts(usize),
}

/// A request that was let in: it counts what it uses until it is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    usage: Arc<Usage>,
    n_texts: usize,
    tally: Mutex<Tally>,
}

#[derive(Debug)]
struct Tally {
    /// Tokens that were taken from the budget and not used yet.
    n_reserved: u64,
    n_written: u64,
}

impl Usage {
    /// Sets what the key may use.
    pub(super) fn limit(&self, per_minute: Option<NonZeroU32>, n_streams: Option<NonZeroU32>) {
        let (now, mut account) = (Instant::now(), self.lock());
        account.n_streams_max = n_streams.map(|n| n.get() as usize);
        match (per_minute.map(NonZeroU32::get), &mut account.budget) {
            (Some(rate), Some(budget)) => budget.set_rate(rate, now),
            (Some(rate), none) => *none = Some(Budget::new(rate, now)),
            (None, budget) => *budget = None,
        }
    }

    /// Whether a request would be let in now, before anything is done for it.
    pub(super) fn check(&self, now: Instant) -> Result<(), Refused> {
        let mut account = self.lock();
        account
            .check(1, now)
            .inspect_err(|why| account.refuse(*why))
    }

    /// Lets a request in.
    pub(super) fn admit(
        self: &Arc<Self>,
        demand: Demand,
        now: Instant,
    ) -> Result<Admitted, Refused> {
        let Demand {
            n_texts,
            n_prompt,
            n_predict,
        } = demand;
        let mut account = self.lock();
        account
            .check(n_texts, now)
            .inspect_err(|why| account.refuse(*why))?;
        let n_written = account.expected(n_predict).saturating_mul(n_texts as u64);
        let n_reserved = (n_prompt as u64).saturating_add(n_written);
        if let Some(budget) = &mut account.budget {
            budget.take(n_reserved, now);
        }
        account.n_streams += n_texts;
        account.figures.n_requests += 1;
        Ok(Admitted {
            usage: Arc::clone(self),
            n_texts,
            tally: Mutex::new(Tally {
                n_reserved,
                n_written: 0,
            }),
        })
    }

    /// The figures for `/metrics`.
    pub(super) fn figures(&self, name: &str) -> KeyFigures {
        let (now, mut account) = (Instant::now(), self.lock());
        KeyFigures {
            name: name.to_owned(),
            n_streams: account.n_streams,
            budget: account.budget.as_mut().map(|budget| budget.level(now)),
            ..account.figures.clone()
        }
    }

    fn lock(&self) -> MutexGuard<'_, Account> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Account {
    fn check(&mut self, n_texts: usize, now: Instant) -> Result<(), Refused> {
        if let Some(max) = self.n_streams_max {
            if n_texts > max {
                return Err(Refused::Texts(max));
            }
            if self.n_streams + n_texts > max {
                return Err(Refused::Streams(max));
            }
        }
        let checked = self.budget.as_mut().map(|budget| budget.check(now));
        checked.unwrap_or(Ok(())).map_err(Refused::Budget)
    }

    const fn refuse(&mut self, why: Refused) {
        match why {
            Refused::Budget(_) => self.figures.n_over_budget += 1,
            Refused::Streams(_) | Refused::Texts(_) => self.figures.n_over_streams += 1,
        }
    }

    /// The number of tokens that a text is likely to write.
    fn expected(&self, n_predict: Option<usize>) -> u64 {
        let mean = self.written / MEAN_OF;
        n_predict.map_or(mean, |max| mean.min(max as u64))
    }

    fn take(&mut self, n: u64, tally: &mut Tally, now: Instant) {
        let n_reserved = n.min(tally.n_reserved);
        tally.n_reserved -= n_reserved;
        if let Some(budget) = &mut self.budget {
            budget.take(n - n_reserved, now);
        }
    }

    fn put(&mut self, n: u64, tally: &mut Tally, now: Instant) {
        let n = n.min(tally.n_reserved);
        tally.n_reserved -= n;
        if let Some(budget) = &mut self.budget {
            budget.put(n, now);
        }
    }
}

impl Admitted {
    fn with(&self, count: impl FnOnce(&mut Account, &mut Tally)) {
        let mut tally = self.tally.lock().unwrap_or_else(PoisonError::into_inner);
        count(&mut self.usage.lock(), &mut tally);
    }

    fn count_prompt(&self, n_read: usize, n_cached: usize, now: Instant) {
        let (n_read, n_cached) = (n_read as u64, n_cached as u64);
        self.with(|account, tally| {
            account.figures.n_read += n_read;
            account.figures.n_cached += n_cached;
            account.take(n_read, tally, now);
            account.put(n_cached, tally, now);
        });
    }

    fn count_token(&self, now: Instant) {
        self.with(|account, tally| {
            account.figures.n_written += 1;
            tally.n_written += 1;
            account.take(1, tally, now);
        });
    }
}

impl TokenMeter for Admitted {
    fn prompt(&self, n_read: usize, n_cached: usize) {
        self.count_prompt(n_read, n_cached, Instant::now());
    }

    fn token(&self) {
        self.count_token(Instant::now());
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let n_texts = self.n_texts;
        self.with(|account, tally| {
            account.n_streams -= n_texts;
            account.put(u64::MAX, tally, Instant::now());
            let written = tally.n_written / n_texts.max(1) as u64;
            account.written = match account.written {
                0 => written * MEAN_OF,
                before if written > 0 => before - before / MEAN_OF + written,
                before => before,
            };
        });
    }
}

/// The number of recent texts that the mean is mostly of.
const MEAN_OF: u64 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// What clients use in ten minutes that ask again as soon as they may, with prompts of `n_prompt` tokens of which
    /// `n_cached` are cached, for answers of `n_written` tokens.
    fn ten_minutes(n_clients: usize, n_prompt: usize, n_cached: usize, n_written: u64) -> u64 {
        let usage = Arc::new(Usage::default());
        usage.limit(NonZeroU32::new(PER_MINUTE), None);
        let (start, tick) = (Instant::now(), Duration::from_millis(50));
        // Of each client: its request with the tokens that are left, and when it asks again.
        let mut clients: Vec<(Option<(Admitted, u64)>, Instant)> = Vec::new();
        clients.resize_with(n_clients, || (None, start));
        let mut now = start;
        while now < start + Duration::from_secs(600) {
            for (running, again) in &mut clients {
                match running {
                    Some((admitted, left)) if *left > 0 => {
                        admitted.count_token(now);
                        *left -= 1;
                    }
                    Some(_) => *running = None,
                    None if *again > now => {}
                    None => {
                        let n_predict = Some(4096);
                        let demand = Demand {
                            n_texts: 1,
                            n_prompt,
                            n_predict,
                        };
                        match usage.admit(demand, now) {
                            Ok(admitted) => {
                                admitted.count_prompt(n_prompt - n_cached, n_cached, now);
                                *running = Some((admitted, n_written));
                            }
                            // A header has whole seconds.
                            Err(Refused::Budget(wait)) => {
                                *again = now + Duration::from_secs(wait.as_secs() + 1);
                            }
                            Err(other) => panic!("{other:?}"),
                        }
                    }
                }
            }
            now += tick;
        }
        let figures = usage.figures("");
        figures.n_read + figures.n_written
    }

    const PER_MINUTE: u32 = 3000;

    #[test]
    fn ten_minutes_of_a_key_over_its_budget_keep_to_it() {
        let budget = u64::from(PER_MINUTE) * 10;
        for (n_clients, n_prompt, n_cached, n_written) in [
            (1, 400, 0, 100),
            (4, 400, 0, 100),
            (16, 10, 0, 100),
            (16, 400, 390, 100),
            (2, 6000, 0, 10),
        ] {
            let used = ten_minutes(n_clients, n_prompt, n_cached, n_written);
            let request = (n_prompt - n_cached) as u64 + n_written;
            let most = budget * 101 / 100 + request;
            assert!(
                (budget * 9 / 10..=most).contains(&used),
                "{used}, {n_clients} clients, {n_prompt}"
            );
        }
    }

    #[test]
    fn what_is_not_used_is_given_back() {
        let usage = Arc::new(Usage::default());
        usage.limit(NonZeroU32::new(600), NonZeroU32::new(2));
        let now = Instant::now();
        let demand = |n_texts| Demand {
            n_texts,
            n_prompt: 500,
            n_predict: None,
        };
        let admitted = usage.admit(demand(1), now).unwrap();
        assert!(matches!(usage.check(now), Err(Refused::Budget(_))));
        admitted.count_prompt(20, 480, now);
        usage.check(now).unwrap();
        let other = usage.admit(demand(1), now).unwrap();
        assert_eq!(usage.check(now), Err(Refused::Streams(2)));
        drop((admitted, other));
        usage.check(now).unwrap();
        assert_eq!(usage.admit(demand(3), now).unwrap_err(), Refused::Texts(2));
        let figures = usage.figures("a");
        assert_eq!(
            (
                figures.n_requests,
                figures.n_over_budget,
                figures.n_over_streams
            ),
            (2, 1, 2)
        );
        assert_eq!(
            (figures.n_read, figures.n_cached, figures.n_streams),
            (20, 480, 0)
        );
    }
}
