//! Neurons in the order of their activity: the most active ones of each feed-forward network first.
//!
//! A profile counts how often each neuron is not 0 ([`Importance::active`]). A network has one permutation: rows of gate
//! and up, their biases, columns of down. Nothing else in a model depends on the order, so the file computes what its
//! source does, except for the order of sums and for the blocks that down is quantised in.

use super::importance::{Importance, ImportanceMatrix};
use super::ordered::{Ordered, OrderedTensor};
use core::cmp::Ordering;
use sluice::file::{GgufHeader, MetaValue};
use sluice::neurons::{
    CLUSTER_NEURONS, HOT_NEURON_COUNT, NEURON_ORDER, NetworkOrder, NeuronOrder, NeuronOrderError,
    TokenNetwork,
};
use sluice_core::gguf::source::TensorSource;
use sluice_core::gguf::{Gguf, TensorInfo};
use sluice_core::kernels::GgmlType;
use sluice_core::model::{ModelConfig, ModelError};

/// Why neurons cannot be ordered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum HotError {
    /// This program does not run the model, so what its tensors are is unknown.
    #[error("cannot be run, so its neurons cannot be ordered: {0}")]
    Model(ModelError),
    /// The neurons are ordered already.
    #[error(
        "has its neurons in another order than the model already ({0}): use the file it was made from"
    )]
    IsOrdered(String),
    /// The keys of an existing order are wrong.
    #[error(transparent)]
    Order(#[from] NeuronOrderError),
    /// All networks are routed experts.
    #[error("has no feed-forward network outside of experts, and those keep their order")]
    NoNetwork,
    /// A tensor is quantised.
    #[error(
        "{tensor} is {ty}: neurons can be ordered in F32, F16 and BF16 only, because a block of a quantized down projection \
         holds 32 or more of them"
    )]
    Quantized { tensor: String, ty: GgmlType },
    /// A tensor has another shape than the network.
    #[error("{tensor} does not have the shape of a network of {n_ff} neurons")]
    Shape { tensor: String, n_ff: usize },
    /// The profile was made for another model.
    #[error("the profile {profile} has no counts of active neurons for {tensor}{why}")]
    Profile {
        profile: String,
        tensor: String,
        why: &'static str,
    },
}

/// The neurons of a model in the order of their activity.
#[derive(Debug)]
pub struct Hot {
    order: NeuronOrder,
    /// The tensor that the counts of each network belong to.
    downs: Vec<String>,
    tensors: Vec<OrderedTensor>,
    prefix: String,
    hot_activity: f64,
    activity: f64,
}

/// Some neurons of a network that are hot together or not.
struct Cluster {
    /// Index of the network.
    network: usize,
    /// Index in the network.
    index: usize,
    n_neurons: u32,
    /// Times that a neuron is active, on average, for each row.
    activity: f64,
}

impl Hot {
    /// Orders the neurons of a model by `profile`. Of all neurons, about `share` are hot: whole clusters of
    /// [`CLUSTER_NEURONS`], from the networks in which they are the most active.
    ///
    /// # Errors
    /// [`HotError`].
    pub fn new(gguf: &Gguf<'_>, profile: &ImportanceMatrix, share: f64) -> Result<Self, HotError> {
        let config = ModelConfig::from_gguf(gguf).map_err(HotError::Model)?;
        let prefix = config.architecture.name().to_owned();
        if NeuronOrder::of(gguf, &config)?.is_some() {
            return Err(HotError::IsOrdered(format!("{prefix}.{NEURON_ORDER}")));
        }
        let (mut networks, mut clusters, mut downs) = (Vec::new(), Vec::new(), Vec::new());
        let mut tensors = Vec::new();
        for network in TokenNetwork::all(&config) {
            let index = networks.len();
            find_tensors(gguf, &config, &network, index, &mut tensors)?;
            let down = down_tensor(&config, &network);
            let counts = counts(profile, &down, network.n_ff)?;
            let order = by_activity(counts);
            clusters.extend(cut(index, counts, &order));
            networks.push(NetworkOrder {
                network,
                n_hot: 0,
                order,
            });
            downs.push(down);
        }
        if networks.is_empty() {
            return Err(HotError::NoNetwork);
        }
        tensors.sort_by_key(|tensor| tensor.offset);
        let activity = clusters.iter().map(Cluster::total).sum();
        let hot_activity = choose(&mut clusters, share, &mut networks);
        Ok(Self {
            order: NeuronOrder::new(networks, config.n_layer()),
            downs,
            tensors,
            prefix,
            hot_activity,
            activity,
        })
    }

    /// The order, and the number of hot neurons of each layer.
    #[must_use]
    pub const fn order(&self) -> &NeuronOrder {
        &self.order
    }

    /// Of the neurons that were active in the profile, the share that is hot now.
    #[must_use]
    pub fn hot_activity(&self) -> f64 {
        match self.activity {
            all if all > 0.0 => self.hot_activity / all,
            _ => 0.0,
        }
    }

    /// Active neurons for each row of the profile, as a share of all neurons.
    #[must_use]
    pub fn density(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a count of neurons")]
        let n = self.order.n_neurons().0 as f64;
        self.activity / n
    }

    /// The source with its neurons in this order.
    #[must_use]
    pub fn source<'s>(&'s self, source: &'s dyn TensorSource) -> Ordered<'s> {
        let networks = self.order.networks().iter();
        Ordered {
            source,
            tensors: &self.tensors,
            orders: networks.map(|order| &*order.order).collect(),
        }
    }

    /// Brings the columns of down projections into this order: the importance was collected in the source's.
    pub fn reorder(&self, importance: &mut ImportanceMatrix) {
        for (name, NetworkOrder { order, .. }) in self.downs.iter().zip(self.order.networks()) {
            let Some(weight) = importance.weights.get_mut(name) else {
                continue;
            };
            for numbers in [&mut weight.sums, &mut weight.active] {
                if numbers.len() == order.len() {
                    *numbers = order.iter().map(|from| numbers[*from as usize]).collect();
                }
            }
        }
    }

    /// Writes the order to the header of the new file.
    pub fn describe(&self, header: &mut GgufHeader) {
        let counts = MetaValue::u32s(&self.order.hot_counts());
        header.set(&format!("{}.{HOT_NEURON_COUNT}", self.prefix), counts);
        let order = MetaValue::u32s(&self.order.indices());
        header.set(&format!("{}.{NEURON_ORDER}", self.prefix), order);
    }
}

impl Cluster {
    fn total(&self) -> f64 {
        f64::from(self.n_neurons) * self.activity
    }
}

/// The tensor of a network's down projection.
fn down_tensor(config: &ModelConfig, network: &TokenNetwork) -> String {
    let [_, _, down] = network.sites;
    let name = down.tensor(config, network.layer).unwrap_or("ffn_down");
    format!("blk.{}.{name}.weight", network.layer)
}

/// The counts of a network's neurons.
fn counts<'p>(
    profile: &'p ImportanceMatrix,
    tensor: &str,
    n_ff: usize,
) -> Result<&'p Importance, HotError> {
    let error = |why| HotError::Profile {
        profile: profile.file.clone(),
        tensor: tensor.into(),
        why,
    };
    if profile.neuron_order.is_some() {
        return Err(error(
            ": it was collected on a file whose neurons have another order",
        ));
    }
    let counts = profile.weights.get(tensor).ok_or_else(|| error(""))?;
    let is_counted = counts.counts.first().is_some_and(|&n| n > 0.0);
    if counts.active.is_empty() || !is_counted {
        return Err(error(": write it with sluice imatrix, in the gguf format"));
    }
    if counts.active.len() != n_ff {
        return Err(error(": it was made for another model"));
    }
    Ok(counts)
}

/// Indices of neurons, the most active first; among equals, those with the largest squares.
fn by_activity(counts: &Importance) -> Vec<u32> {
    let n = u32::try_from(counts.active.len()).expect("a network has fewer than 2^32 neurons");
    let mut order: Vec<u32> = (0..n).collect();
    let falling = |numbers: &[f32], a: usize, b: usize| numbers[b].total_cmp(&numbers[a]);
    order.sort_by(|&a, &b| {
        let [i, j] = [a, b].map(|index| index as usize);
        let more = falling(&counts.active, i, j).then_with(|| falling(&counts.sums, i, j));
        more.then(a.cmp(&b))
    });
    order
}

/// The clusters of a network.
fn cut<'c>(
    network: usize,
    counts: &'c Importance,
    order: &'c [u32],
) -> impl Iterator<Item = Cluster> + 'c {
    let clusters = order.chunks(CLUSTER_NEURONS).enumerate();
    clusters.map(move |(index, neurons)| {
        let active = neurons.iter().map(|&i| counts.active[i as usize]);
        let active: f64 = active.map(f64::from).sum();
        let n_neurons = u32::try_from(neurons.len()).expect("a cluster is short");
        Cluster {
            network,
            index,
            n_neurons,
            activity: active / f64::from(n_neurons) / f64::from(counts.counts[0]),
        }
    })
}

/// Makes clusters hot, the most active first, until `share` of all neurons are. Returns their active neurons for each
/// row.
fn choose(clusters: &mut [Cluster], share: f64, networks: &mut [NetworkOrder]) -> f64 {
    // Clusters of a network follow each other, so the hot ones come first in it.
    clusters.sort_by(|a, b| match b.activity.total_cmp(&a.activity) {
        Ordering::Equal => (a.index, a.network).cmp(&(b.index, b.network)),
        order => order,
    });
    let all: f64 = clusters.iter().map(|c| f64::from(c.n_neurons)).sum();
    let (mut n_hot, mut activity) = (0.0, 0.0);
    for cluster in clusters {
        if n_hot >= share * all {
            break;
        }
        n_hot += f64::from(cluster.n_neurons);
        activity += cluster.total();
        networks[cluster.network].n_hot += cluster.n_neurons;
    }
    activity
}

/// Adds the tensors that hold the neurons of a network.
fn find_tensors(
    gguf: &Gguf<'_>,
    config: &ModelConfig,
    network: &TokenNetwork,
    order: usize,
    tensors: &mut Vec<OrderedTensor>,
) -> Result<(), HotError> {
    let block = format!("blk.{}.", network.layer);
    let [gate, up, down] = network.sites.map(|site| site.tensor(config, network.layer));
    for tensor in gguf.tensors() {
        let name = tensor.name.strip_prefix(&block);
        let Some((name, end)) = name.and_then(|name| name.split_once('.')) else {
            continue;
        };
        let is = |part: Option<&str>| part == Some(name);
        let is_down = is(down);
        // PowerInfer's files have down by neuron, and predictors of neurons (fc1, fc2).
        let is_by_neuron = is(gate) || is(up) || name == "ffn_down_t" || name == "fc2";
        if !is_down && !is_by_neuron || is_down && end == "bias" {
            continue;
        }
        let shape = || HotError::Shape {
            tensor: tensor.name.into(),
            n_ff: network.n_ff,
        };
        let unit_bytes = match (end, is_down) {
            ("weight", false) if tensor.n_dims == 2 => tensor.row_bytes(),
            ("weight", true) | ("bias", false) => {
                let elements = tensor.ty.row_bytes(1);
                elements.ok_or_else(|| quantized(&tensor))?
            }
            // A factor on the whole product does not depend on the order.
            _ if tensor.n_elements() == 1 => continue,
            _ => return Err(shape()),
        };
        if name != "fc2" && !is_float(tensor.ty) {
            return Err(quantized(&tensor));
        }
        let moved = match is_down {
            true => tensor.dims[0],
            false => tensor.len_bytes / unit_bytes.max(1),
        };
        // Gate and up may be one tensor.
        let n = network.n_ff as u64;
        if moved != n && (is_down || moved != 2 * n) {
            return Err(shape());
        }
        tensors.push(OrderedTensor {
            offset: tensor.offset,
            len_bytes: tensor.len_bytes,
            unit_bytes,
            order,
        });
    }
    Ok(())
}

fn quantized(tensor: &TensorInfo<'_>) -> HotError {
    HotError::Quantized {
        tensor: tensor.name.into(),
        ty: tensor.ty,
    }
}

const fn is_float(ty: GgmlType) -> bool {
    matches!(ty, GgmlType::F32 | GgmlType::F16 | GgmlType::BF16)
}
