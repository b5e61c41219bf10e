//! A trace in memory.

use super::trace::{LineError, TraceReadError, TraceReader, TraceStep};
use core::ops::Range;
use sluice::experts::policy::ExpertProfile;
use sluice::experts::trace::EXPERTS_MAX;
use std::io::BufRead;

/// The steps of a trace, with ids that are dense over all layers: `layer * n_expert + expert`.
#[derive(Debug)]
pub struct Steps {
    /// Maximum number of experts in a layer.
    n_expert: u32,
    /// The layers that have experts, in order.
    layers: Vec<u32>,
    steps: Vec<Stored>,
    /// The experts and predictions of all steps, in order.
    ids: Vec<u32>,
    top_k: usize,
}

#[derive(Debug)]
struct Stored {
    token: u64,
    layer: u32,
    line: u64,
    experts: Range<usize>,
    predicted: Range<usize>,
    /// Number of experts that were in memory, where the trace records it.
    n_hits: Option<u32>,
}

/// One step. Ids are dense.
#[derive(Clone, Copy, Debug)]
pub struct StepRef<'s> {
    /// Number of the token.
    pub token: u64,
    /// The layer.
    pub layer: u32,
    /// The experts that the router chose.
    pub experts: &'s [u32],
    /// The predicted experts, the most likely first.
    pub predicted: &'s [u32],
    /// Number of experts that were in memory, where the trace records it.
    pub n_hits: Option<u32>,
}

impl Steps {
    /// Reads a trace to its end. `n_expert` is the number of experts in a layer; without it, the number is one more
    /// than the largest id, as far as ids tell. Whether ids count on from layer to layer is derived from the ids, too.
    ///
    /// # Errors
    /// [`TraceReadError`]: a line is invalid, or there are no steps.
    pub fn read<R: BufRead>(
        mut reader: TraceReader<R>,
        n_expert: Option<u32>,
    ) -> Result<Self, TraceReadError> {
        let mut found = Self {
            n_expert: 0,
            layers: Vec::new(),
            steps: Vec::new(),
            ids: Vec::new(),
            top_k: 0,
        };
        let mut step = TraceStep::default();
        while reader.read(&mut step)? {
            found.push(&step, reader.line());
        }
        if found.ids.is_empty() {
            return Err(TraceReadError::Empty {
                file: reader.name().to_owned(),
            });
        }
        let settled = found.settle(n_expert);
        settled.map_err(|(line, error)| TraceReadError::Line {
            file: reader.name().to_owned(),
            line,
            error,
        })?;
        Ok(found)
    }

    fn push(&mut self, step: &TraceStep, line: u64) {
        let start = self.ids.len();
        self.ids.extend(&step.experts);
        let middle = self.ids.len();
        self.ids.extend(&step.predicted);
        let hits = step.cache_hit.iter().map(|&hit| u32::from(hit)).sum();
        self.steps.push(Stored {
            token: step.token,
            layer: step.layer,
            line,
            experts: start..middle,
            predicted: middle..self.ids.len(),
            n_hits: (!step.cache_hit.is_empty()).then_some(hits),
        });
        if let Err(at) = self.layers.binary_search(&step.layer) {
            self.layers.insert(at, step.layer);
        }
    }

    /// Makes ids dense.
    ///
    /// # Errors
    /// An id does not belong to its layer; names the line.
    fn settle(&mut self, n_expert: Option<u32>) -> Result<(), (u64, LineError)> {
        let numbering = Numbering::of(self, n_expert);
        if numbering.n_expert > EXPERTS_MAX {
            return Err(self.too_large());
        }
        self.n_expert = numbering.n_expert;
        for step in &self.steps {
            let first = step.layer * numbering.n_expert;
            let lists = [("experts", &step.experts), ("predicted", &step.predicted)];
            for (field, range) in lists {
                for id in &mut self.ids[range.clone()] {
                    // A prediction may be of another layer: it is wrong then, but it is one.
                    let is_of_layer = match numbering.counts_on {
                        true => field == "predicted" || *id / numbering.n_expert == step.layer,
                        false => *id < numbering.n_expert,
                    };
                    if !is_of_layer {
                        let n_expert = numbering.n_expert;
                        let id = *id;
                        let error = LineError::OfAnotherLayer {
                            field,
                            id,
                            n_expert,
                        };
                        return Err((step.line, error));
                    }
                    if !numbering.counts_on {
                        *id += first;
                    }
                }
            }
        }
        self.top_k = self.commonest_width();
        Ok(())
    }

    /// Names an id that no layer has, where ids are a layer's own.
    fn too_large(&self) -> (u64, LineError) {
        let is_large = |id: &&u32| **id >= EXPERTS_MAX;
        let mut found = self.steps.iter().filter_map(|step| {
            let all = &self.ids[step.experts.start..step.predicted.end];
            Some((step.line, *all.iter().find(is_large)?))
        });
        let (line, id) = found.next().unwrap_or_default();
        let error = LineError::OfAnotherLayer {
            field: "experts",
            id,
            n_expert: EXPERTS_MAX,
        };
        (line, error)
    }

    /// The number of experts in most steps; among equally common numbers, the smallest.
    fn commonest_width(&self) -> usize {
        let mut counts = vec![0_usize; EXPERTS_MAX as usize + 1];
        for step in &self.steps {
            counts[step.experts.len()] += 1;
        }
        let widths = 1..counts.len();
        let commonest = widths.rev().max_by_key(|&width| counts[width]);
        commonest.unwrap_or(1)
    }

    /// All steps, as they were recorded.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = StepRef<'_>> {
        (0..self.steps.len()).map(|i| self.get(i))
    }

    /// Step `i`.
    ///
    /// # Panics
    /// If there are not that many steps.
    #[must_use]
    pub fn get(&self, i: usize) -> StepRef<'_> {
        let step = &self.steps[i];
        StepRef {
            token: step.token,
            layer: step.layer,
            experts: &self.ids[step.experts.clone()],
            predicted: &self.ids[step.predicted.clone()],
            n_hits: step.n_hits,
        }
    }

    /// Number of steps.
    #[must_use]
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are no steps: always false, as reading refuses an empty trace.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }

    /// Maximum number of experts in a layer.
    #[must_use]
    pub const fn n_expert(&self) -> u32 {
        self.n_expert
    }

    /// The layers that have experts, in order.
    #[must_use]
    pub fn layers(&self) -> &[u32] {
        &self.layers
    }

    /// The number of experts in most steps.
    #[must_use]
    pub const fn top_k(&self) -> usize {
        self.top_k
    }

    /// Maximum number of experts in a step.
    #[must_use]
    pub fn widest(&self) -> usize {
        let widths = self.steps.iter().map(|step| step.experts.len());
        widths.max().unwrap_or_default()
    }

    /// Number of experts in all layers together, used or not.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.layers.len() * self.n_expert as usize
    }

    /// Dense ids are below this.
    #[must_use]
    pub fn n_ids(&self) -> usize {
        let n_layers = self.layers.last().map_or(0, |last| last + 1);
        n_layers as usize * self.n_expert as usize
    }

    /// Where in [`layers`](Self::layers) a layer of the trace is.
    pub(super) fn layer_index(&self, layer: u32) -> usize {
        let found = self.layers.binary_search(&layer);
        found.expect("all layers of the trace are listed")
    }

    /// How often each expert was used.
    #[must_use]
    pub fn profile(&self) -> ExpertProfile {
        let ids = self.iter().flat_map(|step| step.experts);
        ids.map(|&id| (id, 1)).collect()
    }
}

/// How ids are numbered.
#[derive(Clone, Copy, Debug)]
struct Numbering {
    n_expert: u32,
    /// Ids count on from layer to layer.
    counts_on: bool,
}

impl Numbering {
    /// With `n_expert` experts a layer, ids that are all below it are a layer's own. Without it, ids count on if some
    /// number of experts puts each id into its layer's range. Except in tiny traces this does not happen by chance: a
    /// layer's own ids are sometimes below the number of the layer.
    fn of(steps: &Steps, n_expert: Option<u32>) -> Self {
        let (mut least, mut most, mut end) = (1, u32::MAX, 1);
        for step in &steps.steps {
            for &id in &steps.ids[step.experts.clone()] {
                least = least.max(id / (step.layer + 1) + 1);
                most = most.min(id.checked_div(step.layer).unwrap_or(u32::MAX));
            }
            let all = &steps.ids[step.experts.start..step.predicted.end];
            end = end.max(all.iter().max().map_or(0, |id| id + 1));
        }
        match n_expert {
            Some(n_expert) => Self {
                n_expert,
                counts_on: end > n_expert && (least..=most).contains(&n_expert),
            },
            None if steps.layers.len() > 1 && least <= most => {
                let round = least.next_power_of_two();
                let n_expert = if round <= most { round } else { least };
                Self {
                    n_expert,
                    counts_on: true,
                }
            }
            None => Self {
                n_expert: end,
                counts_on: false,
            },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use core::fmt::Write as _;

    /// A trace of (token, layer, experts).
    pub(crate) fn steps_of(lines: &[(u64, u32, &[u32])], n_expert: u32) -> Steps {
        let mut text = String::new();
        for (token, layer, experts) in lines {
            let _ = writeln!(
                text,
                "{{\"token\":{token},\"layer\":{layer},\"experts\":{experts:?}}}"
            );
        }
        read(&text, Some(n_expert)).unwrap()
    }

    pub(crate) fn read(text: &str, n_expert: Option<u32>) -> Result<Steps, TraceReadError> {
        Steps::read(TraceReader::new("t", text.as_bytes()), n_expert)
    }

    const OWN: &str = "{\"token\":0,\"layer\":1,\"experts\":[7,0]}\n\
        {\"token\":0,\"layer\":3,\"experts\":[2,7],\"predicted\":[8],\"cache_hit\":[true,false]}\n";
    const ON: &str = "{\"token\":0,\"layer\":1,\"experts\":[15,8]}\n\
        {\"token\":0,\"layer\":3,\"experts\":[26,31],\"predicted\":[1]}\n";

    #[test]
    fn both_numberings_are_the_same_steps() {
        let own = read(OWN, None).unwrap();
        assert_eq!((own.n_expert(), own.layers()), (9, &[1, 3][..]));
        assert_eq!(own.get(1).experts, [3 * 9 + 2, 3 * 9 + 7]);
        assert_eq!(own.get(1).predicted, [3 * 9 + 8]);
        assert_eq!((own.get(0).n_hits, own.get(1).n_hits), (None, Some(1)));
        assert_eq!((own.n_experts(), own.n_ids()), (18, 36));
        assert_eq!((own.top_k(), own.widest()), (2, 2));
        for n_expert in [None, Some(8)] {
            let on = read(ON, n_expert).unwrap();
            assert_eq!(on.n_expert(), 8);
            assert_eq!(on.get(0).experts, [8 + 7, 8]);
            assert_eq!(on.get(1).experts, [3 * 8 + 2, 3 * 8 + 7]);
        }
    }

    #[test]
    fn ids_of_other_layers_are_named() {
        let error = read(OWN, Some(6)).unwrap_err().to_string();
        let expected = "trace t, line 1: \"experts\": 7 is out of range: a layer has 6 experts";
        assert_eq!(error, expected);
        let error = read(ON, Some(9)).unwrap_err().to_string();
        assert!(
            error.contains("line 1: \"experts\": 15 is out of range"),
            "{error}"
        );
        let large = "{\"token\":0,\"layer\":511,\"experts\":[1]}\n{\"token\":1,\"layer\":0,\"experts\":[500000]}";
        let error = read(large, None).unwrap_err().to_string();
        assert!(
            error.contains("line 2: \"experts\": 500000 is out"),
            "{error}"
        );
        for empty in ["", "{\"token\":1,\"layer\":0,\"experts\":[]}"] {
            let error = read(empty, None).unwrap_err().to_string();
            assert_eq!(error, "trace t is empty");
        }
    }
}
