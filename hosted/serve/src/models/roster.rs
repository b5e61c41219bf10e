//! A list to which models can be added while others read it, and whose elements stay where they are.

use core::ops::Index;
use std::sync::OnceLock;

/// A list with room for [`ADDED_MAX`] more than it begins with.
#[derive(Debug)]
pub(super) struct Roster<T> {
    first: Vec<T>,
    added: Box<[OnceLock<T>]>,
}

impl<T> Roster<T> {
    pub(super) fn new(first: Vec<T>) -> Self {
        Self {
            first,
            added: core::iter::repeat_with(OnceLock::new)
                .take(ADDED_MAX)
                .collect(),
        }
    }

    /// Adds an element, and returns its index; `None` if it is full. One thread at a time.
    pub(super) fn add(&self, value: T) -> Option<usize> {
        let at = self.added.iter().position(|slot| slot.get().is_none())?;
        self.added[at].set(value).ok()?;
        Some(self.first.len() + at)
    }

    /// Whether nothing more can be added.
    pub(super) fn is_full(&self) -> bool {
        self.added.last().is_some_and(|slot| slot.get().is_some())
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let added = || self.added.get(index - self.first.len())?.get();
        self.first.get(index).or_else(added)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        let added = self.added.iter().map_while(OnceLock::get);
        self.first.iter().chain(added)
    }

    pub(super) fn len(&self) -> usize {
        self.iter().count()
    }
}

impl<'r, T> IntoIterator for &'r Roster<T> {
    type Item = &'r T;
    type IntoIter = Box<dyn Iterator<Item = &'r T> + 'r>;

    fn into_iter(self) -> Self::IntoIter {
        Box::new(self.iter())
    }
}

impl<T> Index<usize> for Roster<T> {
    type Output = T;

    fn index(&self, index: usize) -> &T {
        self.get(index).expect("the index of an element")
    }
}

/// Maximum number of models that are added while a server runs.
pub(super) const ADDED_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_stay_where_they_are() {
        let roster = Roster::new(vec![0, 1]);
        let first = &raw const roster[0];
        for i in 2..ADDED_MAX + 2 {
            assert_eq!(roster.add(i), Some(i));
            assert_eq!((roster.len(), roster[i]), (i + 1, i));
        }
        assert!(roster.is_full());
        assert_eq!(roster.add(0), None);
        assert_eq!(first, &raw const roster[0]);
        assert!(roster.iter().copied().eq(0..ADDED_MAX + 2));
    }
}
