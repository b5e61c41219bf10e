//! The order of the neurons of feed-forward networks, where a file has another than the model it was made from.
//!
//! `sluice quantize --hot` puts the most active neurons of each network first and counts them as hot. The file has two
//! keys of its own, under the architecture's name: `hot_neuron_count` (u32 by layer, 0 for layers without a network)
//! and `neuron_order` (u32: for each neuron of the file its index in the model, network after network).

use sluice_core::gguf::{Array, Gguf};
use sluice_core::hash::Hash64;
use sluice_core::model::{Channel, ModelConfig, Site};

pub use sluice_core::engine::CLUSTER_NEURONS;

/// The key with the number of hot neurons of each layer, after the architecture's name.
pub const HOT_NEURON_COUNT: &str = "hot_neuron_count";
/// The key with the order of neurons, after the architecture's name.
pub const NEURON_ORDER: &str = "neuron_order";

/// The feed-forward network that a layer runs for every token: its own, or its shared expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenNetwork {
    /// The layer.
    pub layer: usize,
    /// Neurons.
    pub n_ff: usize,
    /// Gate, up and down.
    pub sites: [Site; 3],
}

impl TokenNetwork {
    /// The networks of a model, by layer. Routed experts are not among them.
    pub fn all(config: &ModelConfig) -> impl Iterator<Item = Self> + '_ {
        (0..config.n_layer()).filter_map(|layer| {
            let (n_ff, sites) = match config.kind(layer).channel {
                Channel::Ffn(shape) => (shape.n_ff, OWN),
                Channel::Experts(shape) => (shape.shared?.n_ff, SHARED),
                _ => return None,
            };
            Some(Self { layer, n_ff, sites })
        })
    }
}

const OWN: [Site; 3] = [Site::FfnGate, Site::FfnUp, Site::FfnDown];
const SHARED: [Site; 3] = [Site::FfnGateShexp, Site::FfnUpShexp, Site::FfnDownShexp];

/// The order of a network's neurons.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkOrder {
    /// The network.
    pub network: TokenNetwork,
    /// Its first neurons that are hot.
    pub n_hot: u32,
    /// For each neuron of the file its index in the model.
    pub order: Vec<u32>,
}

/// The order of all neurons of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NeuronOrder {
    networks: Vec<NetworkOrder>,
    n_layer: usize,
}

/// The keys of an order do not fit the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{key} {what}")]
pub struct NeuronOrderError {
    /// The key.
    pub key: String,
    /// What is wrong with it.
    pub what: String,
}

impl NeuronOrder {
    /// An order of the networks of [`TokenNetwork::all`].
    #[must_use]
    pub const fn new(networks: Vec<NetworkOrder>, n_layer: usize) -> Self {
        Self { networks, n_layer }
    }

    /// The order of a file; `None` if its neurons are in the model's own.
    ///
    /// # Errors
    /// [`NeuronOrderError`]: one of the keys is missing, or is not an order of this model's neurons.
    pub fn of(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Option<Self>, NeuronOrderError> {
        let key = |key: &str| format!("{}.{key}", config.architecture.name());
        let [counts, order] = [HOT_NEURON_COUNT, NEURON_ORDER].map(key);
        if gguf.get(&counts).is_none() && gguf.get(&order).is_none() {
            return Ok(None);
        }
        let list = |key: &str| {
            let array = gguf.get(key).and_then(|value| value.as_array());
            let list = array.and_then(Array::u32s);
            list.ok_or_else(|| error(key, "is not an array of u32"))
        };
        let n_hot: Vec<u32> = list(&counts)?.collect();
        if n_hot.len() != config.n_layer() {
            return Err(error(&counts, "has not one number for each layer"));
        }
        let mut rest = list(&order)?;
        let n: usize = TokenNetwork::all(config).map(|network| network.n_ff).sum();
        if rest.len() != n {
            return Err(error(&order, "has not one number for each neuron"));
        }
        let mut networks = Vec::new();
        for network in TokenNetwork::all(config) {
            let (layer, n_hot) = (network.layer, n_hot[network.layer]);
            if n_hot as usize > network.n_ff {
                let what = format!("has more hot neurons than layer {layer} has neurons");
                return Err(error(&counts, &what));
            }
            let order_of: Vec<u32> = rest.by_ref().take(network.n_ff).collect();
            if !is_permutation(&order_of) {
                let what = format!("does not name each neuron of layer {layer} once");
                return Err(error(&order, &what));
            }
            networks.push(NetworkOrder {
                network,
                n_hot,
                order: order_of,
            });
        }
        Ok(Some(Self::new(networks, config.n_layer())))
    }

    /// The networks, by layer.
    #[must_use]
    pub fn networks(&self) -> &[NetworkOrder] {
        &self.networks
    }

    /// Hot neurons of each layer, as [`HOT_NEURON_COUNT`] has them.
    #[must_use]
    pub fn hot_counts(&self) -> Vec<u32> {
        let mut counts = vec![0; self.n_layer];
        for order in &self.networks {
            counts[order.network.layer] = order.n_hot;
        }
        counts
    }

    /// The order of all neurons, as [`NEURON_ORDER`] has it.
    #[must_use]
    pub fn indices(&self) -> Vec<u32> {
        let networks = self.networks.iter();
        networks
            .flat_map(|order| order.order.iter().copied())
            .collect()
    }

    /// Neurons of all networks, and hot ones.
    #[must_use]
    pub fn n_neurons(&self) -> (usize, usize) {
        let networks = self.networks.iter();
        let counts = networks.map(|order| (order.order.len(), order.n_hot as usize));
        counts.fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1))
    }

    /// A number that other orders do not have: what was measured on a file of one order does not fit a file of another.
    #[must_use]
    pub fn digest(&self) -> u64 {
        let mut hash = Hash64::new();
        for order in &self.networks {
            let bytes: Vec<u8> = order.order.iter().flat_map(|n| n.to_le_bytes()).collect();
            hash.write(&bytes);
        }
        hash.finish()
    }

    /// The order of the network that the matrix `site` of a layer belongs to, if it is one of [`Self::networks`].
    #[must_use]
    pub fn find(&self, layer: usize, site: Site) -> Option<&NetworkOrder> {
        let mut networks = self.networks.iter();
        networks.find(|order| order.network.layer == layer && order.network.sites.contains(&site))
    }
}

fn error(key: &str, what: &str) -> NeuronOrderError {
    NeuronOrderError {
        key: key.into(),
        what: what.into(),
    }
}

fn is_permutation(order: &[u32]) -> bool {
    let mut seen = vec![false; order.len()];
    order.iter().all(|&index| {
        let seen = seen.get_mut(index as usize);
        seen.is_some_and(|seen| !core::mem::replace(seen, true))
    })
}
