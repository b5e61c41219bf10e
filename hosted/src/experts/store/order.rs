//! Slots in the order of eviction.
#![forbid(unsafe_code)]

/// A heap of slots, the one of least worth first, in which a slot's worth can change. Allocates nothing once it is made.
#[derive(Debug)]
pub(super) struct Order {
    heap: Vec<u32>,
    /// By slot, its place in the heap; [`OUT`] outside.
    places: Box<[u32]>,
    /// By slot, its worth and its expert's id.
    keys: Box<[(f64, u32)]>,
    /// Slots that must stay, set aside during a search for one that may be evicted.
    aside: Vec<u32>,
}

const OUT: u32 = u32::MAX;

impl Order {
    pub(super) fn new(n_slots: usize) -> Self {
        Self {
            heap: Vec::with_capacity(n_slots),
            places: vec![OUT; n_slots].into(),
            keys: vec![(0.0, 0); n_slots].into(),
            aside: Vec::with_capacity(n_slots),
        }
    }

    /// Inserts a slot by its worth, or moves it.
    pub(super) fn put(&mut self, slot: usize, worth: f64, id: u32) {
        self.keys[slot] = (worth, id);
        if self.places[slot] == OUT {
            self.push(slot_number(slot));
        } else {
            let at = self.places[slot] as usize;
            self.sift_up(at);
            self.sift_down(self.places[slot] as usize);
        }
    }

    /// Removes a slot, if it is there.
    pub(super) fn remove(&mut self, slot: usize) {
        let at = core::mem::replace(&mut self.places[slot], OUT) as usize;
        if at >= self.heap.len() {
            return;
        }
        self.heap.swap_remove(at);
        if let Some(&moved) = self.heap.get(at) {
            self.places[moved as usize] = slot_number(at);
            self.sift_up(at);
            self.sift_down(self.places[moved as usize] as usize);
        }
    }

    /// Removes and returns the first slot for which `may_go` is true.
    pub(super) fn pop(&mut self, mut may_go: impl FnMut(usize) -> bool) -> Option<usize> {
        let mut found = None;
        while let Some(&first) = self.heap.first() {
            self.remove(first as usize);
            if may_go(first as usize) {
                found = Some(first as usize);
                break;
            }
            self.aside.push(first);
        }
        while let Some(slot) = self.aside.pop() {
            self.push(slot);
        }
        found
    }

    fn push(&mut self, slot: u32) {
        self.places[slot as usize] = slot_number(self.heap.len());
        self.heap.push(slot);
        self.sift_up(self.heap.len() - 1);
    }

    /// Whether the slot at place `a` precedes the one at place `b`.
    fn precedes(&self, a: usize, b: usize) -> bool {
        let key = |at: usize| self.keys[self.heap[at] as usize];
        let ((a, a_id), (b, b_id)) = (key(a), key(b));
        a.total_cmp(&b).then(a_id.cmp(&b_id)).is_lt()
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.places[self.heap[a] as usize] = slot_number(a);
        self.places[self.heap[b] as usize] = slot_number(b);
    }

    fn sift_up(&mut self, mut at: usize) {
        while at > 0 && self.precedes(at, (at - 1) / 2) {
            self.swap(at, (at - 1) / 2);
            at = (at - 1) / 2;
        }
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let children = (2 * at + 1..2 * at + 3).filter(|&child| child < self.heap.len());
            let least = children.reduce(|a, b| if self.precedes(b, a) { b } else { a });
            match least {
                Some(child) if self.precedes(child, at) => {
                    self.swap(child, at);
                    at = child;
                }
                _ => return,
            }
        }
    }
}

fn slot_number(slot: usize) -> u32 {
    u32::try_from(slot).unwrap_or(OUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Insertions, changes and removals in any order: the result equals a search of all slots.
    #[test]
    fn the_least_comes_first_whatever_was_done() {
        const N: u32 = 17;
        let mut order = Order::new(N as usize);
        let mut plain = [None; N as usize];
        let mut random = 7u64;
        let mut next = |n: u32| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            u32::try_from(random >> 33).expect("31 bits") % n
        };
        for _ in 0..20_000 {
            let slot = next(N) as usize;
            match next(5) {
                0 => {
                    order.remove(slot);
                    plain[slot] = None;
                }
                1 => {
                    let stays = next(N) as usize;
                    let of_plain =
                        (0..N as usize).filter(|&slot| slot != stays && plain[slot].is_some());
                    let expected = of_plain.min_by_key(|&slot| plain[slot]);
                    let found = order.pop(|slot| slot != stays);
                    assert_eq!(found, expected);
                    if let Some(slot) = found {
                        plain[slot] = None;
                    }
                }
                _ => {
                    let (worth, id) = (next(6), next(1000) * N + slot_number(slot));
                    order.put(slot, worth.into(), id);
                    plain[slot] = Some((worth, id));
                }
            }
        }
    }
}
