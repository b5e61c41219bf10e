//! What is kept of a text so that a stream that broke can be taken up again.

use crate::engine::{Event, TextKeeper, Timings, Why};
use crate::metrics::Metrics;
use core::fmt;
use core::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use core::time::Duration;
use sluice::sequence::{EndReason, TokenReport, UnfinishedText};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::timeout;

/// A text of one choice, while it is computed and for some time afterwards. The engine's thread records its events.
#[derive(Debug)]
pub(crate) struct KeptText {
    /// Whether the stream was taken up by another request: the engine ends the text as if its client had disconnected.
    is_left: AtomicBool,
    /// Whether the engine has nothing to add any more.
    is_settled: watch::Sender<bool>,
    n_bytes: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` for a text that was too long to be kept.
    record: Option<TextRecord>,
    /// What continues the text, if it did not end.
    unfinished: Option<UnfinishedText>,
    /// A count that is to be taken when the text goes on.
    awaited: Option<AwaitedToken>,
}

/// Counts the steps from when the engine is given a stream that was taken up, to its first new token.
#[derive(Debug)]
pub(super) struct AwaitedToken {
    metrics: Arc<Metrics>,
    /// The steps that had ended before.
    n_before: u64,
    total: Arc<AtomicU64>,
}

impl AwaitedToken {
    /// Counts the steps of a model for `total`.
    pub(super) fn new(metrics: &Arc<Metrics>, total: &Arc<AtomicU64>) -> Self {
        Self {
            metrics: Arc::clone(metrics),
            n_before: 0,
            total: Arc::clone(total),
        }
    }

    fn begin(&mut self) {
        self.n_before = self.metrics.n_steps();
    }

    /// The step that runs has made the token. One that ran at the beginning counts as well.
    fn end(&self) {
        let n_steps = self.metrics.n_steps() + 1 - self.n_before;
        self.total.fetch_add(n_steps, Ordering::Relaxed);
    }
}

/// The events of a text so far.
#[derive(Clone, Debug, Default)]
pub(crate) struct TextRecord {
    started: Option<(usize, u32)>,
    text: String,
    tokens: Vec<RecordedToken>,
    reports: Vec<TokenReport>,
    /// The end of the text.
    last: Vec<Event>,
    /// What was used before the text broke off.
    spent: Timings,
    /// Its size.
    n_bytes: usize,
}

#[derive(Clone, Copy, Debug)]
struct RecordedToken {
    token: u32,
    /// Where its piece ends in the text.
    end: u32,
    has_report: bool,
}

/// The engine's hold on a kept text. Dropping it tells those who wait that nothing will be added.
struct Keeper(Arc<KeptText>);

impl KeptText {
    /// A text that begins with `record`; `awaited` counts until it goes on.
    pub(super) fn new(record: TextRecord, awaited: Option<AwaitedToken>) -> Arc<Self> {
        Arc::new(Self {
            is_left: AtomicBool::new(false),
            is_settled: watch::Sender::new(false),
            n_bytes: AtomicUsize::new(record.n_bytes),
            inner: Mutex::new(Inner {
                record: Some(record),
                unfinished: None,
                awaited,
            }),
        })
    }

    /// The engine's hold on it, which it is given now; `unfinished` continues it.
    pub(super) fn keeper(
        self: &Arc<Self>,
        unfinished: Option<UnfinishedText>,
    ) -> Box<dyn TextKeeper> {
        let mut inner = self.lock();
        inner.unfinished = unfinished;
        if let Some(awaited) = &mut inner.awaited {
            awaited.begin();
        }
        drop(inner);
        Box::new(Keeper(Arc::clone(self)))
    }

    /// The size of the record in bytes.
    pub(super) fn n_bytes(&self) -> usize {
        self.n_bytes.load(Ordering::Relaxed)
    }

    /// Whether the text has ended.
    pub(super) fn is_ended(&self) -> bool {
        let inner = self.lock();
        inner.record.as_ref().is_none_or(TextRecord::is_ended)
    }

    /// Has the engine end the text, and takes it from there. `None` if it was too long to be kept.
    pub(super) async fn take(&self) -> Option<(TextRecord, Option<UnfinishedText>)> {
        self.is_left.store(true, Ordering::Release);
        let mut settled = self.is_settled.subscribe();
        let settled = settled.wait_for(|is_settled| *is_settled);
        // The engine notices it within a turn.
        timeout(PATIENCE, settled).await.ok()?.ok()?;
        let mut inner = self.lock();
        let unfinished = inner.unfinished.take();
        inner.record.clone().map(|record| (record, unfinished))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TextKeeper for Keeper {
    fn is_left(&self) -> bool {
        self.0.is_left.load(Ordering::Acquire)
    }

    fn record(&self, event: &Event) {
        let mut inner = self.0.lock();
        if matches!(event, Event::Token { .. } | Event::EndToken { .. })
            && let Some(awaited) = inner.awaited.take()
        {
            awaited.end();
        }
        let Some(record) = &mut inner.record else {
            return;
        };
        record.push(event);
        if record.n_bytes > RECORD_BYTES {
            inner.record = None;
        }
        let n_bytes = inner.record.as_ref().map_or(0, |record| record.n_bytes);
        self.0.n_bytes.store(n_bytes, Ordering::Relaxed);
    }

    fn take_unfinished(&self) -> Option<UnfinishedText> {
        self.0.lock().unfinished.take()
    }

    fn keep_unfinished(&self, text: Option<UnfinishedText>) {
        let mut inner = self.0.lock();
        if inner.record.is_some() {
            inner.unfinished = text;
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.is_settled.send_replace(true);
    }
}

impl fmt::Debug for Keeper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keeper").finish_non_exhaustive()
    }
}

impl TextRecord {
    fn push(&mut self, event: &Event) {
        match event {
            Event::Started { cached, slot, .. } => {
                self.started.get_or_insert((*cached, *slot));
            }
            Event::Token {
                token,
                piece,
                report,
                ..
            } => {
                self.text.push_str(piece);
                self.tokens.push(RecordedToken {
                    token: *token,
                    end: u32::try_from(self.text.len()).unwrap_or(u32::MAX),
                    has_report: report.is_some(),
                });
                let top = report
                    .as_ref()
                    .map_or(0, |report| size_of_val(&*report.top));
                let each = size_of::<RecordedToken>() + size_of::<TokenReport>();
                self.n_bytes += piece.len() + each + top;
                self.reports.extend(report.clone());
            }
            Event::Ended { why, timings, .. } => match why {
                Why::Ended(EndReason::Closed) | Why::Failed(_) => {
                    self.spent = self.spent.plus(timings)
                }
                _ => self.last.push(event.clone()),
            },
            Event::EndToken { .. } => self.last.push(event.clone()),
            Event::Moved { .. } | Event::Progress { .. } | Event::ReadAgain { .. } => {}
        }
    }

    /// Whether the text has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.last
            .iter()
            .any(|event| matches!(event, Event::Ended { .. }))
    }

    /// What was used before the text broke off.
    pub(super) const fn spent(&self) -> &Timings {
        &self.spent
    }

    /// The events, as the engine sent them.
    pub(super) fn events(&self) -> Vec<Event> {
        let mut events = Vec::with_capacity(1 + self.tokens.len() + self.last.len());
        let started = self.started.map(|(cached, slot)| Event::Started {
            cached,
            slot,
            queued: Duration::ZERO,
        });
        events.extend(started);
        let (mut begin, mut reports) = (0, self.reports.iter());
        for recorded in &self.tokens {
            let end = recorded.end as usize;
            events.push(Event::Token {
                choice: 0,
                token: recorded.token,
                piece: self.text[begin..end].to_owned(),
                report: recorded
                    .has_report
                    .then(|| reports.next().cloned())
                    .flatten(),
            });
            begin = end;
        }
        events.extend(self.last.iter().cloned());
        events
    }
}

/// Maximum size of a text that is kept.
const RECORD_BYTES: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(10);
