//! The pairs of a band in the order in which they merge.

/// Ordered by key, then by position.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Entry {
    pub key: u32,
    pub start: u32,
}

/// The pairs of a band, smallest first: sorted pairs, and a heap of later ones.
///
/// The heap has four children a node: half the levels of a binary heap, and the children share a
/// cache line or two.
#[derive(Debug)]
pub(super) struct Queue<'w> {
    /// `[key, start]` of each entry: the sorted ones, then the heap, then room.
    entries: &'w mut [[u32; 2]],
    /// Entries up to here are sorted.
    sorted_count: usize,
    /// Number of these that have been popped.
    popped_count: usize,
    /// Entries in the heap.
    heap_count: usize,
    /// The highest key of the band.
    pub last: u32,
}

impl<'w> Queue<'w> {
    pub(super) fn new(entries: &'w mut [[u32; 2]]) -> Self {
        Self {
            entries,
            sorted_count: 0,
            popped_count: 0,
            heap_count: 0,
            last: 0,
        }
    }

    /// Empties the queue for a band with keys up to `last`.
    pub(super) fn begin(&mut self, last: u32) {
        self.sorted_count = 0;
        self.popped_count = 0;
        self.heap_count = 0;
        self.last = last;
    }

    /// Adds an entry to those that [`Self::sort`] will sort; there is room.
    pub(super) fn append(&mut self, entry: Entry) {
        self.entries[self.sorted_count] = [entry.key, entry.start];
        self.sorted_count += 1;
    }

    pub(super) fn sort(&mut self) {
        let order = |&[key, start]: &[u32; 2]| u64::from(key) << 32 | u64::from(start);
        self.entries[..self.sorted_count].sort_unstable_by_key(order);
    }

    /// The smallest entry.
    pub(super) fn pop(&mut self) -> Option<Entry> {
        let sorted = (self.popped_count < self.sorted_count).then(|| {
            let [key, start] = self.entries[self.popped_count];
            Entry { key, start }
        });
        let waiting = (self.heap_count > 0).then(|| self.at(0));
        match (sorted, waiting) {
            (Some(entry), None) => {
                self.popped_count += 1;
                Some(entry)
            }
            (Some(entry), Some(other)) if entry <= other => {
                self.popped_count += 1;
                Some(entry)
            }
            (_, least) => {
                if least.is_some() {
                    self.heap_count -= 1;
                    if self.heap_count > 0 {
                        self.sift_down(self.at(self.heap_count));
                    }
                }
                least
            }
        }
    }

    /// Adds an entry to the heap. False if the heap is full.
    pub(super) fn push(&mut self, entry: Entry) -> bool {
        let heap = &mut self.entries[self.sorted_count..];
        if self.heap_count == heap.len() {
            return false;
        }
        let mut hole = self.heap_count;
        self.heap_count += 1;
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            let [key, start] = heap[parent];
            if (Entry { key, start }) <= entry {
                break;
            }
            heap[hole] = heap[parent];
            hole = parent;
        }
        heap[hole] = [entry.key, entry.start];
        true
    }

    /// Puts `entry` where it belongs, the root of the heap being free.
    fn sift_down(&mut self, entry: Entry) {
        let mut hole = 0;
        loop {
            let first = hole * ARITY + 1;
            let children = first..self.heap_count.min(first + ARITY);
            let Some(least) = children.min_by_key(|&child| self.at(child)) else {
                break;
            };
            if entry <= self.at(least) {
                break;
            }
            self.entries[self.sorted_count + hole] = self.entries[self.sorted_count + least];
            hole = least;
        }
        self.entries[self.sorted_count + hole] = [entry.key, entry.start];
    }

    /// An entry of the heap.
    fn at(&self, node: usize) -> Entry {
        let [key, start] = self.entries[self.sorted_count + node];
        Entry { key, start }
    }
}

const ARITY: usize = 4;

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec::Vec;

    use super::*;

    #[test]
    fn the_queue_sorts_and_says_when_it_is_full() {
        let mut words = [[0; 2]; 40];
        let mut queue = Queue::new(&mut words);
        queue.begin(u32::MAX);
        let mut random = 7_u32;
        let mut all = Vec::new();
        for start in 0..40 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let entry = Entry {
                key: random >> 29,
                start,
            };
            match start {
                0..15 => queue.append(entry),
                15 => {
                    queue.append(entry);
                    queue.sort();
                }
                _ => assert!(queue.push(entry)),
            }
            all.push(entry);
        }
        assert!(!queue.push(all[0]));
        all.sort();
        let popped: Vec<Entry> = core::iter::from_fn(|| queue.pop()).collect();
        assert_eq!(popped, all);
    }
}
