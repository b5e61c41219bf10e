//! Caches of neurons: policies, traces, bytes.

use super::numbers;
use crate::sparse::*;
use sluice_core::sparse::FfnDims;

/// Text reuses words: half of the uses are of a few neurons.
fn trace(n_neurons: usize) -> NeuronTrace {
    let mut chaos = PiChaos::hashed(7);
    let mut trace = NeuronTrace::new("a model", n_neurons);
    for _ in 0..2000 {
        let row: std::collections::BTreeSet<usize> = (0..20)
            .map(|_| {
                let x = chaos.next_float();
                ((x * x * x) * n_neurons as f32) as usize
            })
            .collect();
        trace.push(&row.into_iter().collect::<Vec<_>>()).unwrap();
    }
    trace
}

#[test]
fn caches_keep_what_their_policy_says() {
    let trace = trace(400);
    let uses: usize = trace.rows().iter().map(Vec::len).sum();
    let mut rates = Vec::new();
    for cache_strategy in [
        CacheStrategy::None,
        CacheStrategy::Fifo,
        CacheStrategy::Lru,
        CacheStrategy::Lfu,
    ] {
        let config = CacheConfig {
            hot_neuron_fraction: 0.0,
            max_cold_cache_size: 100,
            cache_strategy,
            ..CacheConfig::default()
        };
        let mut cache = NeuronCache::new(400, config).unwrap();
        assert!(cache.stats().hit_rate().is_err());
        let stats = cache.replay(&trace, "a model").unwrap();
        assert_eq!(stats.hits + stats.misses, uses as u64);
        rates.push(stats.hit_rate().unwrap());
    }
    let best = trace.best_hits(100).unwrap() as f64 / uses as f64;
    assert_eq!(rates[0], 0.0);
    for rate in &rates[1..] {
        assert!((0.3..=best).contains(rate), "{rates:?}, at best {best}");
    }
    assert!(rates[3] > rates[2] && rates[2] > rates[1], "{rates:?}");
    let hot = CacheConfig {
        hot_neuron_fraction: 0.25,
        hot_threshold: 0.01,
        cache_strategy: CacheStrategy::None,
        ..CacheConfig::default()
    };
    let mut cache = NeuronCache::new(400, hot).unwrap();
    let stats = cache.replay(&trace, "a model").unwrap();
    assert_eq!((stats.num_hot, stats.num_cold), (100, 300));
    // Nothing is hot before the first 1000 records.
    assert!(stats.hit_rate().unwrap() > 0.2);
}

#[test]
fn hot_neurons_are_the_predecessors() {
    let mut cache = NeuronCache::with_threshold(100, 0.1).unwrap();
    for _ in 0..1000 {
        cache.record_activations(&[0, 1, 2, 3, 4]).unwrap();
    }
    assert_eq!(cache.hot_neurons(), [0, 1, 2, 3, 4], "after 1000 records");
    assert_eq!(cache.activation_frequency(2).unwrap(), 1.0);
    assert_eq!(cache.stats().hot_ratio, 0.05);
    cache.clear();
    assert_eq!(cache.cold_neurons().len(), 100);
    for (error, text) in [
        (
            cache.activation_frequency(2).unwrap_err(),
            "inference: activation frequency: nothing has been recorded yet",
        ),
        (
            cache.record_activations(&[1, 100]).unwrap_err(),
            "inference: active[1] is neuron 100: there are 100",
        ),
        (
            cache.replay(&trace(100), "another model").unwrap_err(),
            "cache: the trace is of model a model: expected another model",
        ),
        (
            cache.replay(&trace(99), "a model").unwrap_err(),
            "cache: the trace has 99 neurons: the cache has 100",
        ),
        (
            NeuronTrace::new("a model", 3).best_hits(2).unwrap_err(),
            "inference: trace: nothing has been recorded yet",
        ),
        (
            NeuronCache::new(
                9,
                CacheConfig {
                    use_mmap: true,
                    ..CacheConfig::default()
                },
            )
            .unwrap_err(),
            "cache: use_mmap is not supported: cold neurons are read, set it to false",
        ),
    ] {
        assert_eq!(error.to_string(), text);
    }
}

#[test]
fn bytes_fall_with_the_hit_rate_and_outputs_stay() {
    let folder = std::env::temp_dir().join(format!("sluice-bundles-{}", std::process::id()));
    let ffn = SparseFfn::new(24, 400, 16, ActivationType::Gelu).unwrap();
    let trace = trace(400);
    let mut read = Vec::new();
    for room in [0, 20, 100, 400] {
        let source = BundleFile::create(&folder, &ffn).unwrap();
        let config = CacheConfig {
            hot_neuron_fraction: 0.1,
            hot_threshold: 0.05,
            max_cold_cache_size: room,
            cache_strategy: CacheStrategy::Lru,
            ..CacheConfig::default()
        };
        let dims = FfnDims {
            input: 24,
            hidden: 400,
            output: 16,
        };
        let activation = ActivationType::Gelu;
        let mut cached =
            CachedFfn::new(dims, Box::new(source), vec![0.0; 16], activation, config).unwrap();
        for (i, active) in trace.rows()[..1100].iter().enumerate() {
            let x = numbers(24, i as u64);
            assert_eq!(
                cached.forward_sparse(&x, active).unwrap(),
                ffn.forward_sparse(&x, active).unwrap(),
                "{room} {i}"
            );
        }
        let stats = cached.stats();
        assert!(cached.n_resident() <= stats.num_hot + room, "{stats:?}");
        let n_bundle = 4 * (24 + 1 + 16);
        assert_eq!(cached.bytes_read(), stats.misses * n_bundle, "{stats:?}");
        read.push((stats.hit_rate().unwrap(), cached.bytes_read()));
    }
    assert!(
        read.windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1),
        "{read:?}"
    );
    std::fs::remove_file(folder).unwrap();
}

#[test]
fn a_neuron_that_becomes_hot_is_missed_until_it_was_read() {
    let config = CacheConfig {
        hot_neuron_fraction: 0.5,
        hot_threshold: 0.3,
        cache_strategy: CacheStrategy::None,
        ..CacheConfig::default()
    };
    let mut cache = NeuronCache::new(4, config).unwrap();
    for _ in 0..10 {
        let change = cache.record_activations(&[0, 1]).unwrap();
        assert_eq!((change.missed, change.evicted), (vec![0, 1], vec![0, 1]));
    }
    assert!(cache.reclassify().is_empty(), "neither was in memory");
    assert_eq!(cache.hot_neurons(), [0, 1]);
    assert!(!cache.is_resident(0));
    let misses = cache.stats().misses;
    assert_eq!(cache.record_activations(&[0]).unwrap().missed, [0]);
    assert_eq!(cache.stats().misses, misses + 1);
    assert!(cache.is_resident(0) && !cache.is_resident(1));
    assert!(cache.record_activations(&[0]).unwrap().missed.is_empty());
    assert_eq!(cache.stats().misses, misses + 1);
    for _ in 0..30 {
        cache.record_activations(&[2, 3]).unwrap();
    }
    assert_eq!(cache.reclassify(), [0], "1 was never read");
    assert_eq!(cache.hot_neurons(), [2, 3]);
    assert!(!cache.is_resident(0));
}

#[test]
fn a_cold_neuron_that_becomes_hot_stays_in_memory() {
    let config = CacheConfig {
        hot_neuron_fraction: 0.25,
        max_cold_cache_size: 1,
        ..CacheConfig::default()
    };
    let mut cache = NeuronCache::new(4, config).unwrap();
    assert_eq!(cache.record_activations(&[2]).unwrap().missed, [2]);
    assert!(cache.reclassify().is_empty());
    assert_eq!(cache.hot_neurons(), [2]);
    assert_eq!(
        cache.record_activations(&[2]).unwrap(),
        CacheChange::default()
    );
    // Of both only the last is kept; the one that is evicted and used within a record was in memory before it.
    let change = cache.record_activations(&[0, 1]).unwrap();
    assert_eq!((change.missed, change.evicted), (vec![0, 1], vec![0]));
    let change = cache.record_activations(&[0, 1]).unwrap();
    assert_eq!((change.missed, change.evicted), (vec![0], vec![0]));
}

/// A file of which some neurons cannot be read.
struct Broken(BundleFile, std::sync::Arc<std::sync::Mutex<Option<usize>>>);

impl NeuronSource for Broken {
    fn read(&self, neuron: usize, bundle: &mut [f32]) -> std::io::Result<()> {
        match *self.1.lock().unwrap() == Some(neuron) {
            true => Err(std::io::Error::other("a broken disk")),
            false => self.0.read(neuron, bundle),
        }
    }
}

#[test]
fn what_cannot_be_computed_leaves_the_cache_as_it_was() {
    let path = std::env::temp_dir().join(format!("sluice-broken-{}", std::process::id()));
    let ffn = SparseFfn::new(8, 10, 4, ActivationType::Silu).unwrap();
    let broken = std::sync::Arc::default();
    let source = Broken(
        BundleFile::create(&path, &ffn).unwrap(),
        std::sync::Arc::clone(&broken),
    );
    let dims = FfnDims {
        input: 8,
        hidden: 10,
        output: 4,
    };
    let config = CacheConfig {
        max_cold_cache_size: 2,
        ..CacheConfig::default()
    };
    let silu = ActivationType::Silu;
    let mut cached = CachedFfn::new(dims, Box::new(source), vec![0.0; 4], silu, config).unwrap();
    let x = numbers(8, 1);
    cached.forward_sparse(&x, &[1, 2]).unwrap();
    let (stats, bytes) = (cached.stats(), cached.bytes_read());
    *broken.lock().unwrap() = Some(5);
    let mut infinite = x.clone();
    infinite[3] = f32::INFINITY;
    for (input, active, text) in [
        (
            &x[..],
            &[3, 3][..],
            "active[1] is neuron 3: expected ascending neurons, each once",
        ),
        (
            &x[..],
            &[5, 2],
            "active[1] is neuron 2: expected ascending neurons, each once",
        ),
        (&x[..], &[2, 10], "active[1] is neuron 10: there are 10"),
        (
            &x[..],
            &[],
            "no active neurons: lower the threshold, or set top_k",
        ),
        (&x[..7], &[3], "input has 7 elements: expected 8"),
        (
            &infinite[..],
            &[3],
            "input[3] is inf: expected a finite number",
        ),
        (&x[..], &[3, 4, 5], "a broken disk"),
    ] {
        let error = cached
            .forward_sparse(input, active)
            .unwrap_err()
            .to_string();
        assert_eq!(error.trim_start_matches("inference: "), text);
        assert_eq!(
            (cached.stats(), cached.bytes_read()),
            (stats, bytes),
            "{text}"
        );
        assert_eq!(cached.n_resident(), 2, "{text}");
    }
    *broken.lock().unwrap() = None;
    assert_eq!(
        cached.forward_sparse(&x, &[1, 2, 5]).unwrap(),
        ffn.forward_sparse(&x, &[1, 2, 5]).unwrap()
    );
    assert_eq!((cached.stats().hits, cached.stats().misses), (2, 3));
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_network_that_cannot_be_cached_is_named() {
    let path = std::env::temp_dir().join(format!("sluice-refused-{}", std::process::id()));
    let (silu, config) = (ActivationType::Silu, CacheConfig::default());
    let ffn = SparseFfn::new(8, 10, 4, silu).unwrap();
    BundleFile::create(&path, &ffn).unwrap();
    let dims = FfnDims {
        input: 8,
        hidden: 10,
        output: 4,
    };
    for (dims, b2, text) in [
        (
            FfnDims { hidden: 0, ..dims },
            0.0,
            "hidden_dim is 0: expected at least 1",
        ),
        (dims, f32::NAN, "b2[0] is NaN: expected a finite number"),
        (
            FfnDims {
                input: usize::MAX,
                ..dims
            },
            0.0,
            "input_dim is 18446744073709552000: expected a size in memory",
        ),
        (
            FfnDims {
                hidden: usize::MAX / 1024,
                ..dims
            },
            0.0,
            "num_neurons is 18014398509481984: expected a number that fits in memory",
        ),
    ] {
        let source = Box::new(BundleFile::open(&path).unwrap());
        let error = CachedFfn::new(dims, source, vec![b2; 4], silu, config).unwrap_err();
        assert_eq!(error.to_string().trim_start_matches("inference: "), text);
    }
    std::fs::remove_file(path).unwrap();
}
