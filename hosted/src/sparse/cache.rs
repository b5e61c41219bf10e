//! Which neurons stay in memory: hot ones always, cold ones as a policy keeps them.

use super::error::{SparseInferenceError, SparseResult};
use super::trace::NeuronTrace;
use sluice_core::sparse::SparsityError;
use std::collections::BTreeSet;

/// Records between two classifications.
const PERIOD: u64 = 1000;

/// Which cold neuron leaves the cache for another one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CacheStrategy {
    /// The one that was used longest ago.
    #[default]
    Lru,
    /// The one that was used least often; of several, the one that was used longest ago.
    Lfu,
    /// The one that came first.
    Fifo,
    /// Cold neurons are not kept at all.
    None,
}

/// How many neurons stay in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CacheConfig {
    /// Share of all neurons that may be hot.
    pub hot_neuron_fraction: f32,
    /// Cold neurons that may be kept.
    pub max_cold_cache_size: usize,
    /// Which of them leaves.
    pub cache_strategy: CacheStrategy,
    /// Neurons that may be hot.
    pub hot_neuron_count: usize,
    /// Cold neurons that may be kept with [`CacheStrategy::Lru`].
    pub lru_cache_size: usize,
    /// Map cold weights. Refused: they are read.
    pub use_mmap: bool,
    /// Share of the records from which on a neuron is hot.
    pub hot_threshold: f32,
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self {
            hot_neuron_fraction: 0.2,
            max_cold_cache_size: 1000,
            cache_strategy: CacheStrategy::Lru,
            hot_neuron_count: 1024,
            lru_cache_size: 4096,
            use_mmap: false,
            hot_threshold: 0.5,
        }
    }
}

/// Counts of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CacheStats {
    /// Hot neurons.
    pub num_hot: usize,
    /// Cold neurons.
    pub num_cold: usize,
    /// Records.
    pub total_activations: u64,
    /// Share of the neurons that are hot.
    pub hot_ratio: f64,
    /// Uses of neurons that were in memory.
    pub hits: u64,
    /// Uses of neurons that had to be read.
    pub misses: u64,
}

impl CacheStats {
    /// Share of the uses whose neuron was in memory.
    ///
    /// # Errors
    /// No uses yet.
    pub fn hit_rate(&self) -> SparseResult<f64> {
        match self.hits + self.misses {
            0 => Err(SparsityError::EmptyHistory { what: "hit rate" }.into()),
            uses => Ok(self.hits as f64 / uses as f64),
        }
    }
}

/// What a record changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheChange {
    /// Neurons that were not in memory before the record, ascending: they have to be read.
    pub missed: Vec<usize>,
    /// Neurons that are not kept after it, ascending; missed ones may be among them.
    pub evicted: Vec<usize>,
}

/// The counts of one neuron.
#[derive(Clone, Copy, Debug, Default)]
struct Neuron {
    count: u64,
    is_hot: bool,
    /// Whether it is in memory. A neuron that becomes hot is not, until its next use has read it.
    is_resident: bool,
    /// Its place in the order of leaving, if it is a cold one in memory.
    rank: Option<Rank>,
}

/// Lower leaves first: a count, then a time.
type Rank = (u64, u64);

/// Counts activations, and keeps the cache of neurons that follows from them.
#[derive(Clone, Debug)]
pub struct NeuronCache {
    neurons: Vec<Neuron>,
    hot: Vec<usize>,
    cold: Vec<usize>,
    /// Cold neurons in memory, the first to leave first.
    order: BTreeSet<(Rank, usize)>,
    threshold: f64,
    most_hot: usize,
    room: usize,
    strategy: CacheStrategy,
    total: u64,
    clock: u64,
    hits: u64,
    misses: u64,
}

impl NeuronCache {
    /// With the limits of `config`: of the neurons that are used in a share of `hot_threshold` of the records, the most
    /// used ones are hot, up to the smaller of `hot_neuron_fraction` and `hot_neuron_count`. (The predecessor takes the
    /// fraction as the threshold.)
    ///
    /// # Errors
    /// A share outside 0 to 1; `use_mmap`.
    pub fn new(num_neurons: usize, config: CacheConfig) -> SparseResult<Self> {
        for (name, value) in [
            ("hot_neuron_fraction", config.hot_neuron_fraction),
            ("hot_threshold", config.hot_threshold),
        ] {
            check_share(name, f64::from(value))?;
        }
        if config.use_mmap {
            let why = "use_mmap is not supported: cold neurons are read, set it to false";
            return Err(SparseInferenceError::Cache(why.into()));
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count"
        )]
        let share = (config.hot_neuron_fraction * num_neurons as f32).ceil() as usize;
        let room = match config.cache_strategy {
            CacheStrategy::None => 0,
            CacheStrategy::Lru => config.max_cold_cache_size.min(config.lru_cache_size),
            CacheStrategy::Lfu | CacheStrategy::Fifo => config.max_cold_cache_size,
        };
        let mut cache = Self::with_threshold(num_neurons, f64::from(config.hot_threshold))?;
        cache.most_hot = share.min(config.hot_neuron_count);
        (cache.room, cache.strategy) = (room, config.cache_strategy);
        Ok(cache)
    }

    /// With a threshold alone: all neurons that reach it are hot, and cold ones are not kept.
    ///
    /// # Errors
    /// A share outside 0 to 1.
    pub fn with_threshold(num_neurons: usize, hot_threshold: f64) -> SparseResult<Self> {
        check_share("hot_threshold", hot_threshold)?;
        let (mut neurons, mut cold) = (Vec::new(), Vec::new());
        neurons
            .try_reserve_exact(num_neurons)
            .and_then(|()| cold.try_reserve_exact(num_neurons))
            .map_err(|_| SparsityError::Setting {
                name: "num_neurons",
                value: num_neurons as f64,
                expected: "a number that fits in memory",
            })?;
        neurons.resize(num_neurons, Neuron::default());
        cold.extend(0..num_neurons);
        Ok(Self {
            neurons,
            hot: Vec::new(),
            cold,
            order: BTreeSet::new(),
            threshold: hot_threshold,
            most_hot: num_neurons,
            room: 0,
            strategy: CacheStrategy::None,
            total: 0,
            clock: 0,
            hits: 0,
            misses: 0,
        })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.neurons.fill(Neuron::default());
        self.hot.clear();
        self.cold = (0..self.neurons.len()).collect();
        self.order.clear();
        (self.total, self.clock, self.hits, self.misses) = (0, 0, 0, 0);
    }

    /// Counts the active neurons of a vector, and brings those into the cache that are not in it: a use is a hit if the
    /// neuron was in memory before the vector. Every 1000 records neurons are classified again.
    ///
    /// # Errors
    /// A neuron that does not exist, by its place in the list; nothing has changed then.
    pub fn record_activations(&mut self, active_neurons: &[usize]) -> SparseResult<CacheChange> {
        let n_neurons = self.neurons.len();
        if let Some(index) = active_neurons.iter().position(|i| *i >= n_neurons) {
            let neuron = active_neurons[index];
            return Err(SparsityError::Neuron {
                index,
                neuron,
                n_neurons,
            }
            .into());
        }
        let is_missing = |i: &usize| !self.neurons[*i].is_resident;
        let mut missed: Vec<usize> = active_neurons.iter().copied().filter(is_missing).collect();
        let mut evicted = Vec::new();
        self.misses += missed.len() as u64;
        self.hits += (active_neurons.len() - missed.len()) as u64;
        for &i in active_neurons {
            self.neurons[i].count += 1;
            self.clock += 1;
            match self.neurons[i].is_hot {
                true => self.neurons[i].is_resident = true,
                false => self.keep(i, &mut evicted),
            }
        }
        self.total += 1;
        if self.total.is_multiple_of(PERIOD) {
            evicted.extend(self.reclassify());
        }
        for list in [&mut missed, &mut evicted] {
            list.sort_unstable();
            list.dedup();
        }
        // One may have been evicted and kept again within this record.
        evicted.retain(|i| !self.neurons[*i].is_resident);
        Ok(CacheChange { missed, evicted })
    }

    /// Puts a cold neuron at its place in the cache.
    fn keep(&mut self, i: usize, evicted: &mut Vec<usize>) {
        if self.room == 0 {
            evicted.push(i);
            return;
        }
        let neuron = self.neurons[i];
        let rank = match (self.strategy, neuron.rank) {
            (CacheStrategy::Fifo, Some(rank)) => rank,
            (CacheStrategy::Lfu, _) => (neuron.count, self.clock),
            _ => (0, self.clock),
        };
        if let Some(old) = neuron.rank {
            self.order.remove(&(old, i));
        } else if self.order.len() == self.room
            && let Some((_, out)) = self.order.pop_first()
        {
            self.neurons[out].rank = None;
            self.neurons[out].is_resident = false;
            evicted.push(out);
        }
        self.neurons[i].rank = Some(rank);
        self.neurons[i].is_resident = true;
        self.order.insert((rank, i));
    }

    /// Classifies neurons now; returns those that are evicted, ascending: they were hot, and are not any more.
    pub fn reclassify(&mut self) -> Vec<usize> {
        if self.total == 0 {
            return Vec::new();
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a share of a count, as the predecessor rounds it"
        )]
        let least = (self.total as f64 * self.threshold) as u64;
        let mut hot: Vec<usize> = (0..self.neurons.len())
            .filter(|i| self.neurons[*i].count >= least)
            .collect();
        hot.sort_by_key(|i| (u64::MAX - self.neurons[*i].count, *i));
        hot.truncate(self.most_hot);
        hot.sort_unstable();
        let was_hot = core::mem::replace(&mut self.hot, hot);
        for &i in &was_hot {
            self.neurons[i].is_hot = false;
        }
        for &i in &self.hot {
            self.neurons[i].is_hot = true;
            if let Some(rank) = self.neurons[i].rank.take() {
                self.order.remove(&(rank, i));
            }
        }
        self.cold = (0..self.neurons.len())
            .filter(|i| !self.neurons[*i].is_hot)
            .collect();
        let mut evicted = was_hot;
        evicted.retain(|i| {
            let neuron = &mut self.neurons[*i];
            !neuron.is_hot && core::mem::take(&mut neuron.is_resident)
        });
        evicted
    }

    /// Whether a neuron is in memory, or would be, if every missed one was read.
    #[must_use]
    pub fn is_resident(&self, neuron: usize) -> bool {
        self.neurons.get(neuron).is_some_and(|n| n.is_resident)
    }

    /// Hot neurons, ascending.
    #[must_use]
    pub fn hot_neurons(&self) -> &[usize] {
        &self.hot
    }

    /// All others, ascending.
    #[must_use]
    pub fn cold_neurons(&self) -> &[usize] {
        &self.cold
    }

    /// Share of the records in which a neuron was active.
    ///
    /// # Errors
    /// A neuron that does not exist; no records yet.
    pub fn activation_frequency(&self, neuron: usize) -> SparseResult<f64> {
        let found = self.neurons.get(neuron).ok_or(SparsityError::Neuron {
            index: 0,
            neuron,
            n_neurons: self.neurons.len(),
        })?;
        match self.total {
            0 => Err(SparsityError::EmptyHistory {
                what: "activation frequency",
            }
            .into()),
            total => Ok(found.count as f64 / total as f64),
        }
    }

    /// Records a whole trace.
    ///
    /// # Errors
    /// A trace of another model, or of another number of neurons; [`NeuronCache::record_activations`].
    pub fn replay(&mut self, trace: &NeuronTrace, model: &str) -> SparseResult<CacheStats> {
        trace.check(model, self.neurons.len())?;
        for row in trace.rows() {
            self.record_activations(row)?;
        }
        Ok(self.stats())
    }

    /// Counts so far.
    #[must_use]
    pub fn stats(&self) -> CacheStats {
        CacheStats {
            num_hot: self.hot.len(),
            num_cold: self.cold.len(),
            total_activations: self.total,
            hot_ratio: self.hot.len() as f64 / self.neurons.len().max(1) as f64,
            hits: self.hits,
            misses: self.misses,
        }
    }
}

fn check_share(name: &'static str, value: f64) -> SparseResult<()> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(()),
        false => Err(SparsityError::Setting {
            name,
            value,
            expected: "a number from 0 to 1",
        }
        .into()),
    }
}
