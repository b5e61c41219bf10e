//! A list to which models can be added, and in which they can be replaced, while others read it.

use core::iter;
use core::ops::Index;
use std::sync::OnceLock;

/// A list with room for [`ADDED_MAX`] more than it begins with. Its elements stay where they are: one that was replaced is
/// kept for those who read it, which takes little for what few people change by hand.
#[derive(Debug)]
pub(super) struct Roster<T> {
    first: Vec<Versions<T>>,
    added: Box<[OnceLock<Versions<T>>]>,
}

/// An element, and what it was replaced by.
#[derive(Debug)]
struct Versions<T> {
    value: T,
    next: OnceLock<Box<Self>>,
}

impl<T> Versions<T> {
    const fn new(value: T) -> Self {
        Self {
            value,
            next: OnceLock::new(),
        }
    }

    fn last(&self) -> &Self {
        let all = iter::successors(Some(self), |version| version.next.get().map(|next| &**next));
        all.last().unwrap_or(self)
    }
}

impl<T> Roster<T> {
    pub(super) fn new(first: Vec<T>) -> Self {
        Self {
            first: first.into_iter().map(Versions::new).collect(),
            added: iter::repeat_with(OnceLock::new).take(ADDED_MAX).collect(),
        }
    }

    /// Adds an element, and returns its index; `None` if it is full. One thread at a time.
    pub(super) fn add(&self, value: T) -> Option<usize> {
        let at = self.added.iter().position(|slot| slot.get().is_none())?;
        self.added[at].set(Versions::new(value)).ok()?;
        Some(self.first.len() + at)
    }

    /// Replaces an element. One thread at a time.
    pub(super) fn replace(&self, index: usize, value: T) {
        let versions = self.versions().nth(index);
        if let Some(versions) = versions {
            // It is the last one, as long as no other thread adds one.
            let _replaced = versions.last().next.set(Box::new(Versions::new(value)));
        }
    }

    /// Whether nothing more can be added.
    pub(super) fn is_full(&self) -> bool {
        self.added.last().is_some_and(|slot| slot.get().is_some())
    }

    pub(super) fn get(&self, index: usize) -> Option<&T> {
        let added = || self.added.get(index - self.first.len())?.get();
        let versions = self.first.get(index).or_else(added)?;
        Some(&versions.last().value)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.versions().map(|versions| &versions.last().value)
    }

    fn versions(&self) -> impl Iterator<Item = &Versions<T>> {
        let added = self.added.iter().map_while(OnceLock::get);
        self.first.iter().chain(added)
    }

    pub(super) fn len(&self) -> usize {
        self.versions().count()
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

    #[test]
    fn the_last_version_is_read_and_the_others_stay() {
        let roster = Roster::new(vec![0, 1]);
        roster.add(2);
        let before = &roster[2];
        for value in 3..9 {
            roster.replace(2, value);
            roster.replace(0, value);
        }
        assert_eq!(*before, 2);
        assert!(roster.iter().eq([&8, &1, &8]));
        assert_eq!((roster.len(), roster.get(3)), (3, None));
    }
}
