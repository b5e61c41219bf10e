//! Free memory: what the loader calls RAM, less what is already in use.

use core::ops::Range;

/// The largest piece of `ram` that overlaps none of `taken`, its start rounded up and its end
/// rounded down to `align` (a power of two). `None` if nothing is left.
///
/// Ranges may overlap, touch, be empty and be in any order: loaders' maps do all of that.
pub fn largest_free(
    ram: impl Iterator<Item = Range<u64>>,
    taken: impl Iterator<Item = Range<u64>> + Clone,
    align: u64,
) -> Option<Range<u64>> {
    let mut best: Option<Range<u64>> = None;
    for range in ram {
        let mut start = range.start;
        while start < range.end {
            // The nearest obstacle at or after `start`; it may also contain `start`.
            let next = taken
                .clone()
                .filter(|taken| taken.start < taken.end && taken.end > start)
                .min_by_key(|taken| taken.start);
            let end = next
                .as_ref()
                .map_or(range.end, |next| next.start.min(range.end));
            if let Some(piece) = aligned(start..end, align)
                && best.as_ref().is_none_or(|best| len(&piece) > len(best))
            {
                best = Some(piece);
            }
            start = next.map_or(range.end, |next| next.end);
        }
    }
    best
}

fn len(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn aligned(range: Range<u64>, align: u64) -> Option<Range<u64>> {
    let start = range.start.checked_next_multiple_of(align)?;
    let end = range.end / align * align;
    (start < end).then_some(start..end)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn free(ram: &[Range<u64>], taken: &[Range<u64>]) -> Option<Range<u64>> {
        largest_free(ram.iter().cloned(), taken.iter().cloned(), MIB)
    }

    #[test]
    fn the_gap_between_image_and_module_is_found() {
        let ram = [0..640 << 10, MIB..256 * MIB];
        let (image, module) = (2 * MIB..3 * MIB, 250 * MIB + 17..255 * MIB + 5);
        assert_eq!(
            free(&ram, &[module.clone(), image.clone()]),
            Some(3 * MIB..250 * MIB)
        );
        // A module in the middle of memory leaves the larger side.
        assert_eq!(
            free(&ram, &[image, 10 * MIB..20 * MIB]),
            Some(20 * MIB..256 * MIB)
        );
    }

    #[test]
    fn overlapping_touching_and_empty_ranges() {
        let ram = [0..8 * MIB, 8 * MIB..8 * MIB, 4 * MIB..16 * MIB];
        let taken = [
            0..2 * MIB,
            MIB..3 * MIB,
            3 * MIB..3 * MIB,
            15 * MIB..20 * MIB,
        ];
        assert_eq!(free(&ram, &taken), Some(4 * MIB..15 * MIB));
        assert_eq!(free(&ram, &[0..64 * MIB, 0..0]), None);
        assert_eq!(free(&[], &taken), None);
        assert_eq!(free(&[5..MIB / 2, 7..7], &[]), None);
        assert_eq!(free(&[u64::MAX - 5..u64::MAX, 0..0], &[]), None);
    }

    /// Compared with the definition, unit by unit, on small maps made from a counter.
    #[test]
    fn as_by_counting_units() {
        let mut state = 1u64;
        let mut draw = |n: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % n
        };
        for _ in 0..2000 {
            let mut range = || {
                let start = draw(20);
                start..start + draw(9)
            };
            let (ram, taken) = ([range(), range()], [range(), range(), range()]);
            let found = largest_free(ram.iter().cloned(), taken.iter().cloned(), 1);
            // A piece never spans two ranges of the map, so runs are counted within each.
            let mut longest = 0;
            for ram in &ram {
                let mut run = 0;
                for unit in ram.clone() {
                    run = if taken.iter().any(|t| t.contains(&unit)) {
                        0
                    } else {
                        run + 1
                    };
                    longest = longest.max(run);
                }
            }
            assert_eq!(found.as_ref().map_or(0, len), longest, "{ram:?} {taken:?}");
            if let Some(found) = found {
                assert!(
                    ram.iter()
                        .any(|r| r.start <= found.start && found.end <= r.end)
                );
                assert!(
                    found
                        .clone()
                        .all(|unit| !taken.iter().any(|t| t.contains(&unit)))
                );
            }
        }
    }
}
