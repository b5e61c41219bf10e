//! Caches of neurons: policies, traces, bytes.

use super::numbers;
use crate::sparse::*;

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
        let dims = sluice_core::sparse::FfnDims {
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
        // A neuron that became hot may still have to be read once.
        assert!(cached.n_resident() <= stats.num_hot + room, "{stats:?}");
        read.push((stats.hit_rate().unwrap(), cached.bytes_read()));
    }
    assert!(
        read.windows(2)
            .all(|pair| pair[0].0 < pair[1].0 && pair[0].1 > pair[1].1),
        "{read:?}"
    );
    std::fs::remove_file(folder).unwrap();
}
