//! Sorting with little code.
//!
//! The library's sort is compiled for each type and each order, 4 to 10 KB every time, which was 7% of the
//! bare-metal image. Where its speed matters (a vocabulary by logit, the pairs of a long text) it is called
//! directly. Elsewhere indices share one instance of it, and short lists are sorted by a heap.
#![forbid(unsafe_code)]

use core::cmp::Ordering;

/// An order of indices, by the items they refer to; no two are equal.
pub(crate) type IndexOrder<'a> = dyn Fn(u32, u32) -> Ordering + 'a;

/// Sorts indices.
pub(crate) fn sort_indices(indices: &mut [u32], order: &IndexOrder<'_>) {
    indices.sort_unstable_by(|a, b| order(*a, *b));
}

/// Puts the `nth` index of the order into its place, smaller ones before it; returns it.
///
/// # Panics
/// If there are `nth` indices or fewer.
pub(crate) fn select_index(indices: &mut [u32], nth: usize, order: &IndexOrder<'_>) -> u32 {
    *indices.select_nth_unstable_by(nth, |a, b| order(*a, *b)).1
}

/// Sorts by `key`, ascending; equal ones in any order. Takes two to three times as long as the library's sort.
pub fn heap_sort_by_key<T: Copy, K: Ord>(entries: &mut [T], key: impl Fn(&T) -> K) {
    for root in (0..entries.len() / 2).rev() {
        sift_down(entries, root, &key);
    }
    sort_heap(entries, &key);
}

/// Sorts a heap with the largest key at the root.
pub(crate) fn sort_heap<T: Copy, K: Ord>(heap: &mut [T], key: &impl Fn(&T) -> K) {
    for end in (1..heap.len()).rev() {
        heap.swap(0, end);
        sift_down(&mut heap[..end], 0, key);
    }
}

/// Moves the entry at `root` down to its place, in a heap where only that entry may be out of place.
pub(crate) fn sift_down<T: Copy, K: Ord>(heap: &mut [T], mut root: usize, key: &impl Fn(&T) -> K) {
    loop {
        let left = 2 * root + 1;
        if left >= heap.len() {
            return;
        }
        let right = left + 1;
        let right_is_larger = right < heap.len() && key(&heap[right]) > key(&heap[left]);
        let child = if right_is_larger { right } else { left };
        if key(&heap[root]) >= key(&heap[child]) {
            return;
        }
        heap.swap(root, child);
        root = child;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn a_heap_sorts_any_length() {
        for len in 0..200_u32 {
            let mut entries: Vec<u32> = (0..len).map(|i| i * 7919 % 101).collect();
            let mut expected = entries.clone();
            expected.sort_unstable();
            heap_sort_by_key(&mut entries, |entry| *entry);
            assert_eq!(entries, expected);
        }
    }

    #[test]
    fn indices_follow_the_order() {
        let order = |a: u32, b: u32| (a % 10, a).cmp(&(b % 10, b));
        let mut indices: Vec<u32> = (0..100).rev().collect();
        assert_eq!(select_index(&mut indices, 25, &order), 52);
        sort_indices(&mut indices, &order);
        assert_eq!(
            indices[..12],
            [0, 10, 20, 30, 40, 50, 60, 70, 80, 90, 1, 11]
        );
    }
}
