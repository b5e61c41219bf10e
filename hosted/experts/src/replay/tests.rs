//! Optimum and policies against sequences by hand, against a search of all choices, and against each other.

use super::super::cache::{Pool, Rate};
use super::super::slots::ordered;
use super::super::steps::tests::steps_of;
use super::*;
use quickcheck::quickcheck;

/// Steps of one layer.
fn of_layer(steps: &[Vec<u32>]) -> Steps {
    let lines: Vec<_> = (0..)
        .zip(steps)
        .map(|(token, ids)| (token, 0, &**ids))
        .collect();
    steps_of(&lines, 16)
}

fn setup(n_slots: usize) -> CacheSetup {
    let pool = Pool::All;
    CacheSetup { n_slots, pool }
}

fn hits(steps: &Steps, n_slots: usize) -> [u64; 8] {
    let report = replay(steps, setup(n_slots), &EvictionPolicy::ALL, None).unwrap();
    let [aged, lru, lfu, fifo, heat, fixed] = &*report.policies else {
        panic!("six policies")
    };
    let all = [
        &report.optimum,
        &report.bypass,
        &aged.hits,
        &lru.hits,
        &lfu.hits,
        &fifo.hits,
        &heat.hits,
        &fixed.hits,
    ];
    all.map(|hits| hits.total().n_hits)
}

/// The textbooks' sequence: with 3 slots the optimum misses 6 times, LRU 7 times and FIFO 9 times.
#[test]
fn single_experts_by_hand() {
    let sequence = [2, 3, 2, 1, 5, 2, 4, 5, 3, 2, 5, 2].map(|id| vec![id]);
    let steps = of_layer(&sequence);
    let [optimum, bypass, _, lru, _, fifo, ..] = hits(&steps, 3);
    assert_eq!((optimum, lru, fifo), (6, 5, 3));
    // 1 and 4 are used once and take no slot: 2, 3 and 5 miss once each, and so do they.
    assert_eq!(bypass, 7);
}

/// With 3 slots: {0,1} miss, miss; {2,3} need two slots: one of 0 and 1 is evicted, 1, as 0 is next;
/// {0,1} hit 0 and miss 1, for which 2 is evicted, as it is never needed again; {3,1} hit both.
#[test]
fn steps_that_need_two_by_hand() {
    let steps = of_layer(&[vec![0, 1], vec![2, 3], vec![0, 1], vec![3, 1]]);
    let [optimum, bypass, _, lru, ..] = hits(&steps, 3);
    assert_eq!((optimum, bypass), (3, 4));
    // LRU: 0 is evicted for 3; then 0 misses and takes 2's slot, 1 hits; both hit at last.
    assert_eq!(lru, 3);
}

#[test]
fn static_experts_stay() {
    // 0 is used most, with more others between than there are slots; LFU loses it before it has two uses.
    let sequence = [0, 1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0].map(|id| vec![id]);
    let steps = of_layer(&sequence);
    let [optimum, _, _, lru, lfu, _, _, fixed] = hits(&steps, 2);
    assert_eq!((optimum, lru, lfu, fixed), (3, 0, 2, 3));
}

#[test]
fn pools_by_layer_have_their_own_slots() {
    let lines: Vec<(u64, u32, &[u32])> = vec![
        (0, 2, &[0]),
        (0, 5, &[1]),
        (1, 2, &[1]),
        (1, 5, &[1]),
        (2, 2, &[0]),
        (2, 5, &[1]),
    ];
    let steps = steps_of(&lines, 4);
    let cache = |n_slots, pool| {
        replay(
            &steps,
            CacheSetup { n_slots, pool },
            &[EvictionPolicy::Lru],
            None,
        )
    };
    let report = cache(3, Pool::Layer).unwrap();
    // Layer 2 has two slots, layer 5 one.
    let rate = |n_hits| Rate { n_hits, n_uses: 3 };
    assert_eq!(report.policies[0].hits.layers, [rate(1), rate(2)]);
    assert_eq!(
        report.optimum.total(),
        Rate {
            n_hits: 3,
            n_uses: 6
        }
    );
    assert!((report.slots_per_expert - 3.0 / 8.0).abs() < 1e-12);
    let report = cache(2, Pool::All).unwrap();
    assert_eq!(report.optimum.layers, [rate(0), rate(2)]);
    let error = cache(1, Pool::Layer).unwrap_err();
    assert!(error.to_string().contains("at least 2"), "{error}");
    assert!(cache(1, Pool::All).is_ok());
}

/// The maximum number of hits over all choices of evictions, without bypass.
fn searched(steps: &[Vec<u32>], inside: &[u32], n_slots: usize) -> u64 {
    let Some((step, rest)) = steps.split_first() else {
        return 0;
    };
    let is_hit = |id: &&u32| inside.contains(id);
    let n_hits = step.iter().filter(is_hit).count() as u64;
    let others: Vec<u32> = inside
        .iter()
        .copied()
        .filter(|id| !step.contains(id))
        .collect();
    let room = n_slots - step.len();
    // All ways to keep as many of the others as there is room for.
    let subsets = (0..1_u32 << others.len()).filter(|set| set.count_ones() as usize <= room);
    let best = subsets.map(|set| {
        let kept = others.iter().enumerate().filter(|(i, _)| set >> i & 1 == 1);
        let inside: Vec<u32> = kept
            .map(|(_, &id)| id)
            .chain(step.iter().copied())
            .collect();
        searched(rest, &inside, n_slots)
    });
    n_hits + best.max().unwrap_or_default()
}

/// The hits where each eviction looks at all slots, as the live cache may do it.
fn scanned(steps: &Steps, n_slots: usize, policy: EvictionPolicy) -> u64 {
    let cut = steps.profile().for_slots(n_slots);
    let mut worth = Worth::new(policy, steps.n_ids(), n_slots, Some(&cut));
    let (mut slots, mut n_hits) = (Vec::<u32>::new(), 0);
    for step in steps.iter() {
        let (hit, missed): (Vec<_>, Vec<_>) =
            step.experts.iter().partition(|id| slots.contains(id));
        n_hits += hit.len() as u64;
        for id in missed {
            if slots.len() == n_slots {
                let others = (0..n_slots).filter(|&slot| !step.experts.contains(&slots[slot]));
                let key = |&slot: &usize| (ordered(worth.of(slots[slot])), slots[slot]);
                let least = others.min_by_key(key).unwrap();
                slots.remove(least);
            }
            slots.push(id);
        }
        for &id in step.experts {
            worth.used(id);
            if !hit.contains(&id) {
                worth.inserted(id);
            }
        }
    }
    n_hits
}

/// Steps of at most `width` of `n` experts.
fn random(seed: &[Vec<u8>], n: u8, width: usize) -> Vec<Vec<u32>> {
    let step = |ids: &Vec<u8>| {
        let mut step: Vec<u32> = Vec::new();
        for id in ids.iter().map(|id| u32::from(id % n)) {
            if step.len() < width && !step.contains(&id) {
                step.push(id);
            }
        }
        step
    };
    let mut steps: Vec<_> = seed.iter().map(step).collect();
    steps.push(vec![0]);
    steps
}

quickcheck! {
    fn the_optimum_is_what_a_search_finds(seed: Vec<Vec<u8>>, n_slots: u8) -> bool {
        let seed = &seed[..seed.len().min(7)];
        let steps = random(seed, 5, 2);
        let n_slots = 2 + usize::from(n_slots % 2);
        hits(&of_layer(&steps), n_slots)[0] == searched(&steps, &[], n_slots)
    }

    fn no_policy_is_above_the_optimum(seed: Vec<Vec<u8>>, n_slots: u8) -> bool {
        let steps = of_layer(&random(&seed, 16, 4));
        let [optimum, bypass, policies @ ..] = hits(&steps, 4 + usize::from(n_slots % 14));
        bypass >= optimum && policies.iter().all(|&hits| hits <= optimum)
    }

    fn slots_kept_in_order_are_slots_that_are_scanned(seed: Vec<Vec<u8>>, n_slots: u8) -> bool {
        let steps = of_layer(&random(&seed, 16, 4));
        let n_slots = 4 + usize::from(n_slots % 14);
        let [_, _, policies @ ..] = hits(&steps, n_slots);
        policies.into_iter().zip(EvictionPolicy::ALL).all(|(hits, policy)| hits == scanned(&steps, n_slots, policy))
    }

    fn more_slots_are_no_fewer_hits_of_the_optimum(seed: Vec<Vec<u8>>) -> bool {
        let steps = of_layer(&random(&seed, 16, 4));
        let all: Vec<_> = (4..18).map(|n_slots| hits(&steps, n_slots)[0]).collect();
        all.is_sorted()
    }
}

#[test]
fn the_order_of_bits_is_the_order_of_numbers() {
    let numbers = [
        f64::NEG_INFINITY,
        -2.5,
        -1e-300,
        0.0,
        1e-300,
        3.0,
        f64::INFINITY,
    ];
    assert!(numbers.map(ordered).is_sorted());
}
