//! The experts of a head that predicts a token further: a layer of the same store, after the model's layers.
#![forbid(unsafe_code)]

use super::ExpertStore;
use core::sync::atomic::AtomicU32;
use sluice_core::engine::{ExpertPart, ExpertSource, Loan, NeededExperts};
use std::sync::Arc;

/// A model's store, as its head sees it: the head's own layer is number 0.
#[derive(Clone, Debug)]
pub(crate) struct HeadExperts {
    store: Arc<ExpertStore>,
    first: usize,
}

impl HeadExperts {
    /// `None` if the head has no experts, or is not one that is run.
    pub(crate) fn of(store: &Arc<ExpertStore>) -> Option<Self> {
        let first = store.head_layer?;
        let store = Arc::clone(store);
        Some(Self { store, first })
    }

    pub(crate) const fn store(&self) -> &Arc<ExpertStore> {
        &self.store
    }
}

impl ExpertSource for HeadExperts {
    fn announce(&self, needed: &NeededExperts<'_>) {
        let layer = self.first + needed.layer;
        self.store.announce(&NeededExperts { layer, ..*needed });
    }

    fn looks_ahead(&self) -> Option<usize> {
        self.store.looks_ahead()
    }

    fn expect(&self, layer: usize, experts: &[u32]) {
        self.store.expect(self.first + layer, experts);
    }

    fn lend(&self, layer: usize, expert: u32, part: ExpertPart) -> Loan<'_> {
        self.store.lend(self.first + layer, expert, part)
    }

    fn give_back(&self, layer: usize, expert: u32, part: ExpertPart) {
        self.store.give_back(self.first + layer, expert, part);
    }

    fn arrivals(&self) -> Option<&AtomicU32> {
        self.store.arrivals()
    }
}
