//! Mixes of adapters in batches.

use super::adapters::{Pair, SITES, alone, layer_of};
use super::{Q8_0, ids, limits, logits};
use sluice_core::engine::{
    Adapter, AdapterPair, BatchEntry, Blend, BlendPart, Engine, EngineLimits, Wants,
};
use sluice_core::kernels::lora::LoraType;
use sluice_core::model::Site;
use sluice_tests::build::Random;
use sluice_tests::drive::{Bench, step_with};

/// Sequences, each of the same few tokens.
const N: u32 = 40;
const N_TOKENS: usize = 6;

/// An adapter of its own type, rank and matrices.
fn pairs_of(i: usize) -> Vec<(Pair, Site)> {
    let ty = LoraType::ALL[i % 4];
    let rank = [4, 16, 20, 1, 8][i % 5];
    // Some adapt some matrices alone.
    let own = (0..).zip(SITES.iter().rev());
    let own = own.filter(|(k, _)| i % 3 != 1 || k % 2 == 0);
    own.map(|(k, (site, _, n_cols, n_rows))| {
        let pair = Pair::of(ty, 100 * i as u64 + k, rank, *n_cols, *n_rows);
        (pair, *site)
    })
    .collect()
}

/// The adapter of a sequence's tokens; some have none.
fn adapter_of(sequence: u32) -> Option<u32> {
    (sequence % 10).checked_sub(1)
}

/// A sequence's token at a position.
fn entry_of(sequence: u32, slot: u32, position: usize) -> BatchEntry {
    let id = (ids(N_TOKENS)[position] + sequence) % 300;
    let position = u32::try_from(position).expect("a short text");
    BatchEntry {
        adapter: adapter_of(sequence),
        ..BatchEntry::new(id, slot, position, Wants::Logits)
    }
}

fn room(n_workers: usize) -> EngineLimits {
    EngineLimits {
        adapter_rank: 64,
        n_batch: 128,
        n_outputs: 128,
        n_ctx: 64 * N as usize,
        n_seq: N as usize,
        ..limits(n_workers)
    }
}

/// Any mix of adapters of any type and of base rows, of any number of rows, cut and shared among workers in any
/// way, gives each row the bits that it has alone.
#[test]
fn any_mix_gives_each_row_its_own_bits() {
    let n_mixes = std::env::var("SLUICE_ADAPTER_MIXES").map_or(40, |n| n.parse().unwrap());
    let all: Vec<_> = (0..8).map(pairs_of).collect();
    let mut bench = Bench::new(&Q8_0);
    let config = bench.with(&room(1), |engine| engine.model().config().clone());
    let pairs = all.iter().map(|pairs| {
        let pairs = pairs.iter();
        let mut own: Vec<_> = pairs
            .map(|(pair, site)| pair.at(layer_of(*site), *site, None))
            .collect();
        own.sort_by_key(|pair| (pair.layer, pair.site));
        own
    });
    let pairs: Vec<Vec<AdapterPair<'_>>> = pairs.collect();
    let adapters = pairs.iter();
    let adapters: Vec<_> = adapters
        .map(|pairs| Adapter::new(&config, pairs, None).unwrap())
        .collect();
    // Each alone, and two together.
    let mut parts: Vec<Vec<_>> = adapters.iter().map(|own| alone(own).to_vec()).collect();
    let part = |i: usize, scale| BlendPart {
        adapter: &adapters[i],
        scale,
    };
    parts.push(vec![part(2, 0.75), part(1, -1.5)]);
    let blends: Vec<_> = parts.iter().map(|parts| Blend { parts }).collect();
    let expected = bench.with(&room(1), |engine| {
        let own = (0..N).map(|sequence| {
            engine.state_mut().clear(0).unwrap();
            let batch: Vec<_> = (0..N_TOKENS).map(|i| entry_of(sequence, 0, i)).collect();
            logits(&step_with(engine, &batch, |options| {
                options.adapters = &blends;
            }))
        });
        own.collect::<Vec<_>>()
    });
    let random = &mut Random(77);
    for n_workers in [2, 3, 1] {
        bench.with(&room(n_workers), |engine| {
            for _ in 0..n_mixes {
                mix(engine, &blends, random, &expected);
            }
        });
    }
}

/// Reads some sequences in batches of random cuts.
fn mix(
    engine: &mut Engine<'_>,
    blends: &[Blend<'_>],
    random: &mut Random,
    expected: &[Vec<Vec<u32>>],
) {
    let mut below = |n: u32| u32::try_from(random.next() % u64::from(n)).expect("below a u32");
    let most = [1, 4, 16, 39][below(4) as usize];
    let (n, first) = (1 + below(most), below(N));
    let mut sequences: Vec<u32> = (0..n).map(|i| (first + i * 7) % N).collect();
    if below(2) == 0 {
        // As a host that groups them.
        sequences.sort_by_key(|sequence| adapter_of(*sequence));
    }
    for sequence in 0..N {
        engine.state_mut().clear(sequence).expect("it is one");
    }
    let mut read = vec![0usize; N as usize];
    while sequences.iter().any(|s| read[*s as usize] < N_TOKENS) {
        let mut batch = Vec::new();
        for &sequence in &sequences {
            let done = &mut read[sequence as usize];
            let n = 1 + below(3) as usize;
            let n = n.min(N_TOKENS - *done).min(128 - batch.len());
            batch.extend((*done..*done + n).map(|i| entry_of(sequence, sequence, i)));
            *done += n;
        }
        let rows = step_with(engine, &batch, |options| options.adapters = blends);
        for (entry, row) in batch.iter().zip(logits(&rows)) {
            let (sequence, i) = (entry.sequence as usize, entry.position as usize);
            assert!(row == expected[sequence][i], "{sequences:?} {entry:?}");
        }
    }
}
