//! Whole tensors and parts of modules: compared with the model's own, or read for a merge.

use super::super::config::{AdapterConfig, MERGE_ONLY};
use super::super::copies::first_difference;
use super::super::edits::{Edit, TensorEdit};
use super::super::keys::Part;
use super::super::merge_config::{AdapterStart, MergeSettings};
use super::super::turn::{Pair, has_all_rows, rearranged};
use super::super::whole::WholeTensor;
use super::places::Places;
use super::weights::{Module, PartEntry, Weights, WholeEntry};
use crate::family::{Change, Map, Wanted};
use crate::safetensors::SafetensorsEntry;
use sluice::adapter::{AdapterLoadError, PairOrder};
use sluice::file::ModelFile;

const EMBEDDING: &str = "token_embd.weight";
const OUTPUT: &str = "output.weight";

impl Weights {
    /// Compares the tensors of the model that PEFT has saved, such as adapted embeddings, with the model's own.
    ///
    /// # Errors
    /// One is not the model's own: a running model cannot replace it for one adapter.
    pub(super) fn check_wholes(
        &self,
        places: &Places<'_>,
        model: Option<&ModelFile>,
        warnings: &mut Vec<String>,
    ) -> Result<(), AdapterLoadError> {
        let gguf = model.map(ModelFile::parse).transpose()?;
        for WholeEntry { tensor, entry } in &self.wholes {
            let error = |what| Err(AdapterLoadError::tensor(&self.path, &*entry.name, what));
            let Some(name) = places.base.plain_name(tensor) else {
                continue;
            };
            let (Some(gguf), Some(model)) = (&gguf, model) else {
                let module = tensor.rsplit_once('.').map_or("", |(module, _)| module);
                if !self.modules.iter().any(|other| other.name == module) {
                    return error(format!("is a whole tensor, {MERGE_ONLY}"));
                }
                warnings.push(format!(
                    "{}: {} is assumed to be the model's own: give the model's GGUF file to compare them",
                    self.path.display(),
                    entry.name
                ));
                continue;
            };
            for order in self.places_of(places, entry, &name)? {
                let wanted = &places.wanted[order.tensor];
                let whole = self.whole(entry, wanted)?;
                let found = gguf.tensor(&wanted.name);
                let found =
                    found.or_else(|| gguf.tensor(EMBEDDING).filter(|_| wanted.name == OUTPUT));
                let own = found
                    .filter(|own| own.n_elements() == (whole.n_rows() * whole.n_cols()) as u64);
                let Some(own) = own else {
                    let what = format!(
                        "is a whole tensor, and {} has no {}",
                        model.name(),
                        wanted.name
                    );
                    return error(format!("{what} to compare it with"));
                };
                if let Some(row) = first_difference(&whole, model, &own)? {
                    return error(format!(
                        "is a whole tensor and differs from the model's own {}, in row {row} first, {MERGE_ONLY}",
                        own.name
                    ));
                }
            }
        }
        Ok(())
    }

    /// Everything that a merge applies besides products.
    pub(super) fn edits(
        &self,
        config: &AdapterConfig,
        merge: &MergeSettings,
        places: &Places<'_>,
        is_tied: bool,
    ) -> Result<Vec<TensorEdit>, AdapterLoadError> {
        let mut edits = Vec::new();
        for WholeEntry { tensor, entry } in &self.wholes {
            let Some(name) = places.base.plain_name(tensor) else {
                continue;
            };
            // What is not trained apart is the parameter itself, which tied matrices share.
            let is_apart =
                merge.saves(tensor.rsplit_once('.').map_or(tensor, |(module, _)| module));
            for order in self.places_of(places, entry, &name)? {
                let wanted = &places.wanted[order.tensor];
                let edit = Edit::Replace(self.whole(entry, wanted)?);
                let is_one = is_tied && (config.is_tying || !is_apart);
                let edit = edit_of(edit, wanted, order.part, is_one);
                // PEFT saves a shared parameter under both of its names.
                edits.retain(|other: &TensorEdit| !(edit.is_tied && other.is_tied));
                edits.push(edit);
            }
        }
        for part in &self.parts {
            let Some(name) = places.base.plain_name(&format!("{}.weight", part.module)) else {
                continue;
            };
            match part.part {
                Part::Rows => edits.extend(self.rows(config, merge, places, part, &name, is_tied)?),
                Part::Magnitude => edits.extend(self.lengths(merge, places, part, &name)?),
                Part::Bias => edits.extend(self.bias(config, places, part, &name)?),
            }
        }
        self.check_lengths(merge)?;
        if let Some(start) = merge.start {
            for module in self.modules.iter().filter(|module| !module.is_embedding) {
                let Some(name) = places.base.plain_name(&module.weight()) else {
                    continue;
                };
                let order = self.whole_place(places, module, &name)?;
                if start == AdapterStart::Olora {
                    self.check_columns(module, &places.wanted[order.tensor])?;
                }
                let Pair { rank, scale, .. } = self.pair(config, module)?;
                let scale = match start {
                    AdapterStart::Pissa => 1.0,
                    AdapterStart::Olora => scale,
                };
                let edit = Edit::TakeOut { start, rank, scale };
                edits.push(edit_of(
                    edit,
                    &places.wanted[order.tensor],
                    order.part,
                    false,
                ));
            }
        }
        Ok(edits)
    }

    /// The tensors made from a tensor of the model, whose shape the entry must have.
    fn places_of<'p>(
        &self,
        places: &'p Places<'_>,
        entry: &SafetensorsEntry,
        name: &str,
    ) -> Result<&'p [PairOrder], AdapterLoadError> {
        let error = |what| Err(AdapterLoadError::tensor(&self.path, &*entry.name, what));
        let Some(found) = places.of(name) else {
            let architecture = places.base.architecture();
            return error(format!(
                "is a whole tensor, but not one of a model of architecture {architecture}"
            ));
        };
        for order in found {
            let source = &places.wanted[order.tensor].source;
            if *source != entry.shape {
                return error(format!(
                    "has shape {:?}, but the model's is {source:?}: resizing the vocabulary is not supported",
                    entry.shape
                ));
            }
        }
        Ok(found)
    }

    fn whole(
        &self,
        entry: &SafetensorsEntry,
        wanted: &Wanted,
    ) -> Result<WholeTensor, AdapterLoadError> {
        WholeTensor::new(&self.file, entry, wanted)
    }

    /// Trained rows of an embedding or a head.
    fn rows(
        &self,
        config: &AdapterConfig,
        merge: &MergeSettings,
        places: &Places<'_>,
        part: &PartEntry,
        name: &str,
        is_tied: bool,
    ) -> Result<Vec<TensorEdit>, AdapterLoadError> {
        let error = |what| AdapterLoadError::tensor(&self.path, &*part.entry.name, what);
        let found = places.of(name).unwrap_or_default();
        let wanted = found.first().map(|order| &places.wanted[order.tensor]);
        let wanted = wanted.filter(|own| {
            own.change == Change::None && own.map == Map::Same && own.source.len() == 2
        });
        let wanted = wanted.ok_or_else(|| error("has trained rows of an unknown matrix".into()))?;
        let is_embedding = wanted.name == EMBEDDING;
        let rows = merge.rows(&part.module, is_embedding);
        let rows = rows.ok_or_else(|| error("is not named in trainable_token_indices".into()))?;
        let n_rows = wanted.source[0];
        if let Some(row) = rows.iter().find(|row| **row >= n_rows) {
            return Err(error(format!("has row {row}, but the model has {n_rows}")));
        }
        let expected = [rows.len() as u64, wanted.source[1]];
        if part.entry.shape != expected {
            let shape = &part.entry.shape;
            return Err(error(format!(
                "has shape {shape:?}, but trainable_token_indices asks for {expected:?}"
            )));
        }
        let edit = Edit::ReplaceRows {
            rows: rows.to_vec(),
            numbers: self.numbers(&part.entry)?,
        };
        let is_one = is_tied && is_embedding && (config.is_tying || merge.has_equal_rows());
        Ok(vec![edit_of(edit, wanted, 0, is_one)])
    }

    /// DoRA's lengths of a module's rows.
    fn lengths(
        &self,
        merge: &MergeSettings,
        places: &Places<'_>,
        part: &PartEntry,
        name: &str,
    ) -> Result<Vec<TensorEdit>, AdapterLoadError> {
        let error = |what: &str| AdapterLoadError::tensor(&self.path, &*part.entry.name, what);
        if !merge.uses_dora {
            return Err(error("is a magnitude of DoRA, but use_dora is not set"));
        }
        let numbers = self.numbers(&part.entry)?;
        let mut edits = Vec::new();
        for order in places.of(name).unwrap_or_default() {
            let wanted = &places.wanted[order.tensor];
            if wanted.name == EMBEDDING {
                return Err(error(
                    "is a magnitude of columns of the embedding, which is not supported",
                ));
            }
            if wanted.source.first() != Some(&(numbers.len() as u64)) || wanted.shape.len() != 2 {
                return Err(error(
                    "is a magnitude whose length is not the number of rows",
                ));
            }
            // Columns that move within a row do not change its length.
            let by_rows = Wanted {
                source: vec![wanted.source[0]],
                ..wanted.clone()
            };
            let moved = match (&wanted.change, has_all_rows(wanted)) {
                (Change::Columns(_), true) => Some(numbers.clone()),
                (Change::Columns(_), false) => None,
                _ => rearranged(numbers.clone(), &by_rows),
            };
            let told =
                "is a magnitude of rows that GGUF files do not keep whole, which is not supported";
            let lengths = Edit::Lengths(moved.ok_or_else(|| error(told))?);
            edits.push(edit_of(lengths, wanted, order.part, false));
        }
        Ok(edits)
    }

    /// With DoRA, each module has a magnitude.
    fn check_lengths(&self, merge: &MergeSettings) -> Result<(), AdapterLoadError> {
        let has_one = |module: &&Module| {
            let mut parts = self.parts.iter().filter(|own| own.part == Part::Magnitude);
            parts.any(|own| own.module == module.name)
        };
        match self.modules.iter().find(|module| !has_one(module)) {
            Some(module) if merge.uses_dora => {
                let what = "has no magnitude, but use_dora is true";
                Err(AdapterLoadError::tensor(&self.path, &*module.name, what))
            }
            _ => Ok(()),
        }
    }

    /// The bias of B, which is added to the bias of the model.
    fn bias(
        &self,
        config: &AdapterConfig,
        places: &Places<'_>,
        part: &PartEntry,
        name: &str,
    ) -> Result<Vec<TensorEdit>, AdapterLoadError> {
        let error = |what: &str| AdapterLoadError::tensor(&self.path, &*part.entry.name, what);
        let bias = name
            .strip_suffix(".weight")
            .map(|module| format!("{module}.bias"));
        let found = bias.and_then(|bias| places.of(&bias)).unwrap_or_default();
        let scale = config.scale(&part.module);
        let mut numbers = self.numbers(&part.entry)?;
        numbers.iter_mut().for_each(|x| *x *= scale);
        let of_one = |order: &PairOrder| {
            let wanted = &places.wanted[order.tensor];
            if wanted.source[..] != part.entry.shape[..] || wanted.map != Map::Same {
                return Err(error("is a bias of another length than the model's"));
            }
            let moved = rearranged(numbers.clone(), wanted);
            let moved = moved.ok_or_else(|| error("is a bias that GGUF files transpose"))?;
            Ok(edit_of(Edit::Add(moved), wanted, order.part, false))
        };
        match found {
            [] => Err(error(
                "is a bias of a matrix that has none in the model, so it cannot be merged",
            )),
            found => found.iter().map(of_one).collect(),
        }
    }

    /// The only tensor made from a module, which has all of its rows.
    fn whole_place(
        &self,
        places: &Places<'_>,
        module: &Module,
        name: &str,
    ) -> Result<PairOrder, AdapterLoadError> {
        match places.of(name) {
            Some([order]) if has_all_rows(&places.wanted[order.tensor]) => Ok(*order),
            _ => {
                let what = "is not one matrix in GGUF files, so what training began with cannot be taken out";
                Err(AdapterLoadError::tensor(&self.path, &*module.name, what))
            }
        }
    }

    /// OLoRA begins with the first columns, which GGUF may have elsewhere.
    fn check_columns(&self, module: &Module, wanted: &Wanted) -> Result<(), AdapterLoadError> {
        match wanted.change {
            Change::Columns(_) => {
                let what = "has its columns in another order in GGUF files, so what OLoRA began with cannot be taken out";
                Err(AdapterLoadError::tensor(&self.path, &*module.name, what))
            }
            _ => Ok(()),
        }
    }
}

/// The edit of a tensor; `is_one` if embedding and output matrix change together.
fn edit_of(edit: Edit, wanted: &Wanted, part: usize, is_one: bool) -> TensorEdit {
    let is_tied = is_one && [EMBEDDING, OUTPUT].contains(&&*wanted.name);
    TensorEdit {
        tensor: if is_tied { EMBEDDING } else { &wanted.name }.into(),
        part: u32::try_from(part)
            .ok()
            .filter(|_| wanted.is_stack_of_parts()),
        edit,
        is_tied,
    }
}
