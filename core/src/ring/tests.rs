//! One thread, by hand and against std's queue; two threads in `tests/ring_stress.rs`.

use super::{Ring, StaticRing};
use core::mem::MaybeUninit;
use quickcheck::quickcheck;
extern crate std;
use std::collections::VecDeque;
use std::vec;
use std::vec::Vec;

#[test]
fn one_by_one_full_and_empty() {
    let mut ring = StaticRing::<u64, 3>::new();
    let (mut producer, mut consumer) = ring.split();
    for round in 0..10 {
        assert_eq!(consumer.pop(), None);
        for i in 0..3 {
            assert_eq!(producer.push(10 * round + i), Ok(()));
        }
        assert_eq!(producer.push(99), Err(99));
        assert_eq!((producer.free(), consumer.queued()), (0, 3));
        for i in 0..3 {
            assert_eq!(consumer.pop(), Some(10 * round + i));
        }
    }
    assert_eq!((producer.tail(), consumer.head()), (30, 30));
    let gauge = producer.gauge();
    assert_eq!((gauge.tail(), gauge.head()), (30, 30));
}

#[test]
fn a_ring_without_places_is_full_and_empty() {
    let mut ring = StaticRing::<u8, 0>::new();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(producer.push(1), Err(1));
    assert_eq!(producer.push_slice(&[1, 2]), 0);
    assert!(producer.room(4).is_empty());
    assert_eq!(consumer.pop(), None);
    assert_eq!(consumer.pop_slice(&mut [0; 2]), 0);
}

#[test]
fn a_split_starts_anew() {
    let mut slots = [MaybeUninit::uninit(); 4];
    let mut ring = Ring::new(&mut slots);
    ring.split().0.push_slice(&[1, 2, 3]);
    let (mut producer, mut consumer) = ring.split();
    assert_eq!((consumer.pop(), producer.free()), (None, 4));
    assert_eq!(producer.push_slice(&[7; 9]), 4);
    assert_eq!(consumer.items(9), [&[7; 4][..], &[]]);
}

#[test]
#[should_panic(expected = "more than is queued")]
fn what_is_not_queued_is_not_released() {
    let mut ring = StaticRing::<u8, 4>::new();
    let (mut producer, mut consumer) = ring.split();
    assert_eq!(producer.push(1), Ok(()));
    consumer.release(2);
}

quickcheck! {
    /// Any sequence of pushes and pops of any sizes, by slice, in place and one by one, behaves like
    /// a queue.
    fn a_ring_is_a_queue(capacity: u8, steps: Vec<(u8, u8)>) -> bool {
        let capacity = usize::from(capacity % 40);
        let mut slots = vec![MaybeUninit::uninit(); capacity];
        let mut ring = Ring::new(&mut slots);
        let (mut producer, mut consumer) = ring.split();
        let (mut queue, mut next) = (VecDeque::new(), 0u32);
        for (kind, n) in steps {
            let n = usize::from(n % 48);
            let free = capacity - queue.len();
            match kind % 5 {
                0 => {
                    let items: Vec<u32> = (next..).take(n).collect();
                    assert_eq!(producer.push_slice(&items), n.min(free));
                    queue.extend(&items[..n.min(free)]);
                    next += 48;
                }
                1 => {
                    let mut room = producer.room(n);
                    let lent = room.len();
                    assert_eq!(lent, n.min(free));
                    let written = lent / 2;
                    let items: Vec<u32> = (next..).take(written).collect();
                    let slots = room.slots().into_iter().flatten();
                    for (slot, item) in slots.zip(&items) {
                        slot.write(*item);
                    }
                    // SAFETY: that many were written.
                    unsafe { room.commit(written) };
                    queue.extend(items);
                    next += 48;
                }
                2 => {
                    let expected = if free > 0 { Ok(()) } else { Err(next) };
                    assert_eq!(producer.push(next), expected);
                    queue.extend(expected.is_ok().then_some(next));
                    next += 1;
                }
                3 => assert_eq!(consumer.pop(), queue.pop_front()),
                _ => {
                    let [first, second] = consumer.items(n);
                    let found = [first, second].concat();
                    let expected: Vec<u32> = queue.iter().copied().take(n).collect();
                    assert_eq!(found, expected);
                    let half = found.len() / 2;
                    consumer.release(half);
                    queue.drain(..half);
                }
            }
            assert_eq!(consumer.queued(), queue.len());
            assert_eq!(producer.free(), capacity - queue.len());
        }
        true
    }
}
