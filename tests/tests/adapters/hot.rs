//! Files whose neurons are ordered by activity compute what their source does, with and without adapters.

use super::{Wide, all_factors, can_be_adapted, files, outputs, relative};
use sluice::adapter::{
    AdapterBlend, AdapterFile, AdapterOrigin, Packing, PairSink as _, Precision,
};
use sluice::file::{GgufHeader, LoadMode, MetaValue, ModelFile};
use sluice::neurons::{CLUSTER_NEURONS, HOT_NEURON_COUNT, NEURON_ORDER, NeuronOrder, TokenNetwork};
use sluice_core::gguf::Gguf;
use sluice_core::gguf::source::{SliceSource, TensorSource as _};
use sluice_core::kernels::GgmlType;
use sluice_core::model::{ModelConfig, Site};
use sluice_hf::adapter::MergeAdapter;
use sluice_make::lora::MergePlan;
use sluice_make::quantize::{Hot, HotError, Importance, ImportanceMatrix};
use sluice_tests::build::Random;
use std::collections::HashSet;

fn gguf(bytes: &[u8]) -> Gguf<'_> {
    Gguf::parse(bytes, bytes.len() as u64).unwrap()
}

fn tensor(config: &ModelConfig, network: &TokenNetwork, site: Site) -> Option<String> {
    let name = site.tensor(config, network.layer)?;
    Some(format!("blk.{}.{name}.weight", network.layer))
}

/// A profile of 100 rows in which later layers are more active.
fn profile(config: &ModelConfig) -> ImportanceMatrix {
    let mut random = Random(11);
    let mut profile = ImportanceMatrix::default();
    for network in TokenNetwork::all(config) {
        let down = tensor(config, &network, network.sites[2]).unwrap();
        let mut numbers = |scale: f32| -> Vec<f32> {
            let number = |_| (scale * random.signed().abs()).round();
            (0..network.n_ff).map(number).collect()
        };
        let layer = f32::from(u16::try_from(network.layer).unwrap());
        let weight = Importance {
            sums: numbers(1000.0),
            counts: vec![100.0],
            active: numbers((20.0 + 10.0 * layer).min(100.0)),
        };
        profile.weights.insert(down, weight);
    }
    profile
}

/// The file with its neurons in the order of `hot`.
fn reordered(wide: &Wide, hot: &Hot) -> Vec<u8> {
    let base = wide.bytes();
    let mut header = wide.header.clone();
    hot.describe(&mut header);
    let mut bytes = header.bytes();
    let mut data = vec![0; base.len() - wide.header.bytes().len()];
    let source = SliceSource(&base);
    let source = hot.source(&source);
    // In pieces that begin and end anywhere.
    let mut at = (base.len() - data.len()) as u64;
    for piece in data.chunks_mut(1009) {
        source.read(at, piece).unwrap();
        at += piece.len() as u64;
    }
    bytes.extend(data);
    bytes
}

/// Every row and column is where the file says.
fn check_places(
    name: &str,
    before: &Wide,
    after: &Wide,
    config: &ModelConfig,
    order: &NeuronOrder,
) {
    let find = |wide: &Wide, tensor: &str| {
        let found = wide.tensors.iter().find(|(name, ..)| name == tensor);
        found.map(|(_, dims, values)| (usize::try_from(dims[0]).unwrap(), values.clone()))
    };
    let mut moved = HashSet::new();
    for of_network in order.networks() {
        let (network, order) = (of_network.network, &of_network.order);
        let n_ff = network.n_ff;
        let names = network.sites.map(|site| tensor(config, &network, site));
        for (i, tensor) in names.into_iter().enumerate() {
            let Some(tensor) = tensor else { continue };
            let turned = tensor.replace("ffn_down.", "ffn_down_t.");
            let (tensor, is_down) = match find(before, &tensor) {
                Some(_) => (tensor, i == 2),
                None => (turned, false),
            };
            let (Some((width, old)), Some((_, new))) =
                (find(before, &tensor), find(after, &tensor))
            else {
                panic!("{name}: no {tensor}");
            };
            moved.insert(tensor.clone());
            let bias = tensor.replace(".weight", ".bias");
            for (index, from) in order.iter().map(|from| *from as usize).enumerate() {
                if is_down {
                    let rows = new.chunks(width).zip(old.chunks(width));
                    assert!(
                        rows.clone()
                            .all(|(new, old)| new[index].to_bits() == old[from].to_bits()),
                        "{name}: {tensor}"
                    );
                    continue;
                }
                for half in 0..old.len() / width / n_ff {
                    let [new, old] = [(&new, index), (&old, from)]
                        .map(|(rows, i)| &rows[(half * n_ff + i) * width..][..width]);
                    assert_eq!(new, old, "{name}: {tensor}");
                }
                if let (Some((_, old)), Some((_, new))) = (find(before, &bias), find(after, &bias))
                {
                    moved.insert(bias.clone());
                    assert_eq!(new[index].to_bits(), old[from].to_bits(), "{name}: {bias}");
                }
            }
        }
    }
    for (tensor, _, values) in &before.tensors {
        if !moved.contains(tensor) {
            let (_, new) = find(after, tensor).unwrap();
            assert_eq!(&new, values, "{name}: {tensor}");
        }
    }
}

fn blend(config: &ModelConfig, file: &AdapterFile, order: Option<NeuronOrder>) -> AdapterBlend {
    let mut packing = Packing::new(config, "test", Precision::Exact).ordered(order);
    packing.begin(AdapterOrigin::default()).unwrap();
    for factors in &file.factors {
        packing.add(factors).unwrap();
    }
    packing.finish().unwrap().into()
}

#[test]
fn every_family_computes_the_same_with_its_neurons_ordered() {
    let (mut n_models, mut n_fused, mut n_shared, mut n_biases) = (0, 0, 0, 0);
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let Some(wide) = Wide::of(&bytes) else {
            continue;
        };
        let base = wide.bytes();
        let Ok(config) = ModelConfig::from_gguf(&gguf(&base)) else {
            continue;
        };
        let hot = Hot::new(&gguf(&base), &profile(&config), 0.3);
        if TokenNetwork::all(&config).next().is_none() {
            assert!(matches!(hot, Err(HotError::NoNetwork)), "{name}");
            continue;
        }
        let hot = hot.unwrap_or_else(|error| panic!("{name}: {error}"));
        let ordered = reordered(&wide, &hot);
        let order = NeuronOrder::of(&gguf(&ordered), &config).unwrap().unwrap();
        assert_eq!(&order, hot.order(), "{name}");
        check_places(&name, &wide, &Wide::of(&ordered).unwrap(), &config, &order);
        let first = &order.networks()[0];
        let n_moved = (0..).zip(&first.order).filter(|(i, from)| i != *from);
        assert!(2 * n_moved.count() > first.order.len(), "{name}");

        let n_vocab = u32::try_from(config.n_vocab).unwrap();
        let ids: Vec<u32> = (0..20).map(|i| (i * 37 + 11) % n_vocab).collect();
        let [before, after] = [&base, &ordered].map(|bytes| outputs(bytes, (2, 20), None, &ids));
        let distance = relative(&after, &before);
        assert!(distance < 1e-4, "{name}: {distance}");

        let mut factors = all_factors(&wide, 3, &mut Random(5));
        factors.retain(|pair| can_be_adapted(&name, &config, pair));
        let file = AdapterFile {
            factors,
            ..AdapterFile::default()
        };
        let plain = blend(&config, &file, None);
        let turned = blend(&config, &file, Some(order));
        let adapted = outputs(&base, (2, 20), Some(&plain), &ids);
        let of_ordered = outputs(&ordered, (2, 20), Some(&turned), &ids);
        let unturned = outputs(&ordered, (2, 20), Some(&plain), &ids);
        let distance = relative(&of_ordered, &adapted);
        assert!(distance < 1e-4, "{name}: {distance}");
        let wrong = relative(&unturned, &adapted);
        assert!(wrong > 20.0 * distance.max(1e-7), "{name}: {wrong}");
        n_models += 1;
        n_fused += usize::from(config.fused.gate_up);
        n_shared += usize::from(
            wide.tensors
                .iter()
                .any(|(name, ..)| name.contains("_shexp")),
        );
        n_biases += usize::from(
            wide.tensors
                .iter()
                .any(|(name, ..)| name.contains("ffn_up.bias")),
        );
    }
    println!("{n_models} models, {n_fused} fused, {n_shared} shared experts, {n_biases} biases");
    assert!(n_models > 40, "{n_models}");
    assert!(n_fused > 0);
    assert!(n_shared > 0);
    assert!(n_biases > 0);
}

/// A small llama.
fn small() -> (Wide, ModelConfig) {
    let path = files();
    let path = path.iter().find(|path| path.ends_with("llama-F32.gguf"));
    let wide = Wide::of(&std::fs::read(path.unwrap()).unwrap()).unwrap();
    let config = ModelConfig::from_gguf(&gguf(&wide.bytes())).unwrap();
    (wide, config)
}

/// A file of this header and zeros.
fn empty(header: &GgufHeader) -> Vec<u8> {
    let mut bytes = header.bytes();
    bytes.resize(usize::try_from(header.file_bytes()).unwrap(), 0);
    bytes
}

#[test]
fn hot_clusters_are_those_that_were_active_most() {
    let (wide, config) = small();
    let base = wide.bytes();
    let profile = profile(&config);
    for share in [0.01, 0.3, 0.5, 0.99] {
        let hot = Hot::new(&gguf(&base), &profile, share).unwrap();
        let (n, n_hot) = hot.order().n_neurons();
        let target = f64::from(u32::try_from(n).unwrap()) * share;
        let n_hot = f64::from(u32::try_from(n_hot).unwrap());
        assert!(n_hot >= target, "{share}: {n_hot}");
        assert!(n_hot < target + 64.0, "{share}: {n_hot}");
        let (mut coldest, mut hottest, mut all, mut of_hot) = (f32::MAX, 0f32, 0.0, 0.0);
        for of_network in hot.order().networks() {
            let n_hot = of_network.n_hot as usize;
            assert!(n_hot.is_multiple_of(CLUSTER_NEURONS) || n_hot == of_network.order.len());
            let down = tensor(&config, &of_network.network, Site::FfnDown).unwrap();
            let active = &profile.weights[&down].active;
            let sorted: Vec<f32> = of_network
                .order
                .iter()
                .map(|i| active[*i as usize])
                .collect();
            assert!(sorted.is_sorted_by(|a, b| a >= b), "{sorted:?}");
            let mean = |cluster: &[f32]| cluster.iter().sum::<f32>() / cluster.len() as f32;
            let [hot, cold] = [&sorted[..n_hot], &sorted[n_hot..]];
            let means = hot.chunks(CLUSTER_NEURONS).map(mean);
            coldest = means.fold(coldest, f32::min);
            let means = cold.chunks(CLUSTER_NEURONS).map(mean);
            hottest = means.fold(hottest, f32::max);
            all += sorted.iter().map(|x| f64::from(*x)).sum::<f64>();
            of_hot += hot.iter().map(|x| f64::from(*x)).sum::<f64>();
        }
        assert!(coldest >= hottest, "{share}: {coldest} {hottest}");
        let activity = hot.hot_activity();
        assert!(
            (activity - of_hot / all).abs() < 1e-9,
            "{share}: {activity}"
        );
        assert!(activity > share, "{share}: {activity}");
    }
}

#[test]
fn importance_follows_its_columns() {
    let (wide, config) = small();
    let base = wide.bytes();
    let before = profile(&config);
    let hot = Hot::new(&gguf(&base), &before, 0.3).unwrap();
    let mut after = before.clone();
    hot.reorder(&mut after);
    for of_network in hot.order().networks() {
        let down = tensor(&config, &of_network.network, Site::FfnDown).unwrap();
        let [before, after] = [&before, &after].map(|matrix| &matrix.weights[&down]);
        for (i, from) in of_network.order.iter().enumerate() {
            let from = *from as usize;
            assert_eq!(after.sums[i].to_bits(), before.sums[from].to_bits());
            assert_eq!(after.active[i].to_bits(), before.active[from].to_bits());
        }
    }
}

#[test]
fn files_and_profiles_that_do_not_fit_are_named() {
    let (wide, config) = small();
    let base = wide.bytes();
    let good = profile(&config);
    let said = |bytes: &[u8], profile: &ImportanceMatrix| {
        Hot::new(&gguf(bytes), profile, 0.3)
            .unwrap_err()
            .to_string()
    };
    // A second order on top of the first.
    let hot = Hot::new(&gguf(&base), &good, 0.3).unwrap();
    assert!(said(&reordered(&wide, &hot), &good).contains("llama.neuron_order"));
    // Profiles of other models, of llama-imatrix, of another order.
    let down = "blk.0.ffn_down.weight";
    let changed = |change: &dyn Fn(&mut Importance)| {
        let mut profile = good.clone();
        change(profile.weights.get_mut(down).unwrap());
        said(&base, &profile)
    };
    assert!(changed(&|weight| weight.active.clear()).contains("sluice imatrix"));
    assert!(changed(&|weight| weight.active.push(1.0)).contains("another model"));
    assert!(changed(&|weight| weight.counts[0] = 0.0).contains(down));
    let mut other = good.clone();
    other.neuron_order = Some(7);
    assert!(said(&base, &other).contains("another order"));
    other.neuron_order = None;
    other.weights.remove(down);
    assert!(said(&base, &other).contains(down));
    // A quantised source, in any of the three matrices.
    for part in ["gate", "up", "down"] {
        let mut header = GgufHeader::with_metadata_of(&gguf(&base));
        for (name, dims, _) in &wide.tensors {
            let is_it = *name == format!("blk.0.ffn_{part}.weight");
            let ty = if is_it { GgmlType::Q8_0 } else { GgmlType::F32 };
            header.add_tensor(name, dims, ty);
        }
        let bytes = empty(&header);
        let why = said(&bytes, &good);
        assert!(
            why.contains(&format!("blk.0.ffn_{part}.weight is Q8_0")),
            "{why}"
        );
    }
}

#[test]
fn orders_that_are_not_permutations_are_refused() {
    let (wide, config) = small();
    let base = wide.bytes();
    let hot = Hot::new(&gguf(&base), &profile(&config), 0.3).unwrap();
    let (counts, order) = (hot.order().hot_counts(), hot.order().indices());
    let said = |counts: &[u32], order: &[u32]| {
        let mut header = wide.header.clone();
        header.set(
            &format!("llama.{HOT_NEURON_COUNT}"),
            MetaValue::u32s(counts),
        );
        header.set(&format!("llama.{NEURON_ORDER}"), MetaValue::u32s(order));
        let bytes = empty(&header);
        NeuronOrder::of(&gguf(&bytes), &config).map_err(|error| error.to_string())
    };
    assert_eq!(said(&counts, &order).unwrap().as_ref(), Some(hot.order()));
    assert!(said(&counts[1..], &order).is_err());
    assert!(said(&counts, &order[1..]).is_err());
    for wrong in [order[1], u32::MAX] {
        let mut twice = order.clone();
        twice[0] = wrong;
        assert!(said(&counts, &twice).unwrap_err().contains("neuron_order"));
    }
    let mut many = counts.clone();
    many[0] = u32::MAX;
    assert!(
        said(&many, &order)
            .unwrap_err()
            .contains("hot_neuron_count")
    );
}

#[test]
fn an_adapter_of_neurons_is_not_merged_into_an_ordered_file() {
    let (wide, config) = small();
    let base = wide.bytes();
    let hot = Hot::new(&gguf(&base), &profile(&config), 0.3).unwrap();
    let name = format!("sluice-hot-{}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, reordered(&wide, &hot)).unwrap();
    let model = ModelFile::open(&path, LoadMode::Read).unwrap();
    let parsed = model.parse().unwrap();
    for (part, is_refused) in [("ffn_up", true), ("ffn_down", true), ("attn_q", false)] {
        let mut factors = all_factors(&wide, 3, &mut Random(5));
        factors.retain(|pair| pair.tensor == format!("blk.0.{part}.weight"));
        let adapter = MergeAdapter {
            file: AdapterFile {
                factors,
                ..AdapterFile::default()
            },
            edits: Vec::new(),
            is_tying: false,
        };
        let adapters = [(adapter, 1.0)];
        match MergePlan::new(&model, &parsed, &adapters, None) {
            Ok(_) => assert!(!is_refused, "{part}"),
            Err(error) => {
                let error = error.to_string();
                assert!(is_refused && error.contains(part), "{error}");
                assert!(error.contains("made from"), "{error}");
            }
        }
    }
    std::fs::remove_file(path).unwrap();
}
