//! Which adapters take part in a step, where no more than so many may.

use super::running::Request;
use super::served::Served;
use std::collections::HashMap;
use std::sync::Arc;

impl Served {
    /// Adapters that the next step leaves out. Those whose texts have waited for the most steps come first, so that
    /// each has its turn; texts of the model alone always take part.
    pub(super) fn left_out(&mut self) -> Vec<u64> {
        self.n_turns += 1;
        if self.max_adapters == 0 {
            return Vec::new();
        }
        let mut oldest: HashMap<u64, (u64, u64)> = HashMap::new();
        for running in self.running.iter().filter(|running| running.can_step()) {
            let key = running.request.adapter_key();
            let since = (running.last_turn, running.request.arrival);
            let known = oldest.entry(key).or_insert(since);
            *known = since.min(*known);
        }
        oldest.remove(&0);
        let mut order: Vec<_> = oldest.into_iter().collect();
        order.sort_by_key(|(_, since)| *since);
        let left_out = order.split_off(self.max_adapters.min(order.len()));
        let left_out: Vec<u64> = left_out.into_iter().map(|(key, _)| key).collect();
        for running in &mut self.running {
            if running.can_step() && !left_out.contains(&running.request.adapter_key()) {
                running.last_turn = self.n_turns;
            }
        }
        left_out
    }
}

/// The names of the adapters of some requests, each once.
pub(super) fn adapters_of<'r>(requests: impl Iterator<Item = &'r Request>) -> Vec<Arc<str>> {
    let names = requests.filter_map(|request| request.adapter.as_ref());
    let mut names: Vec<_> = names.map(|(_, name)| Arc::clone(name)).collect();
    names.sort_unstable();
    names.dedup();
    names
}
