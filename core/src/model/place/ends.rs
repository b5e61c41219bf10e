//! The tensors outside of layers.

use super::{Placed, Placer};
use crate::model::arch::{
    Beside, EndNorm, LAYER_MODEL_PROJ, LAYER_PROJ_NORM, LAYER_TOKEN_EMBD, NextTokenName, OUTPUT,
    POSITION_EMBD, TOKEN_EMBD, TOKEN_TYPES,
};
use crate::model::config::{ModelConfig, NextToken};
use crate::model::error::{ModelError, Name};
use crate::model::refs::{Embedding, Ends, LayerInput, MatrixRef, NextTokenInput, NormRef};

impl<'a> Placer<'_, 'a> {
    /// The tensors outside of the layers: output norm, output layer, embeddings.
    pub(in crate::model) fn ends(
        &mut self,
        c: &ModelConfig,
        placed: Placed<'_, 'a>,
    ) -> Result<Ends, ModelError> {
        if let Some(head) = c.next_token {
            return self.ends_of_head(c, head, placed);
        }
        let family = c.architecture.family();
        let output_norm = match family.output_norm_of_layer() {
            Some(part) => {
                let stem = Name::format(format_args!("blk.{}.{part}", c.n_layer() - 1));
                self.layer_norm(&stem, [1, c.n_embd], placed)?
            }
            None => self.end_norm(family.output_norm, c.n_embd, placed)?,
        };
        let shape = [c.n_vocab, c.n_embd];
        let (output, embedding) = if c.tied_output {
            let output = self.matrix(&"token_embd".into(), shape, placed)?;
            (output, Embedding::Panels(output))
        } else {
            debug_assert_eq!(OUTPUT, "output.weight");
            let output = self.matrix(&"output".into(), shape, placed)?;
            (
                output,
                Embedding::Rows(self.rows(TOKEN_EMBD.into(), shape, placed)?),
            )
        };
        let embedding_norm = match family.embedding_norm {
            Some(norm) => self.end_norm(norm, c.n_embd, placed)?,
            None => NormRef::EMPTY,
        };
        let (mut positions, mut types) = (None, None);
        if family.beside == Beside::TypesAndPositions {
            let shape = [c.n_ctx_train, c.n_embd];
            positions = Some(self.rows(POSITION_EMBD.into(), shape, placed)?);
        }
        if family.beside != Beside::Nothing {
            let types_name = Name::format(format_args!("{TOKEN_TYPES}.weight"));
            if let Some(tensor) = self.gguf.tensor(types_name.as_str()) {
                let n_types = usize::try_from(tensor.dims[1]).unwrap_or(usize::MAX);
                types = Some(self.matrix(&TOKEN_TYPES.into(), [n_types, c.n_embd], placed)?);
            }
        }
        let layer_input = match c.n_embd_layer {
            0 => None,
            n => Some(self.layer_input(c, n * c.n_layer(), placed)?),
        };
        Ok(Ends {
            output_norm,
            embedding_norm,
            output,
            embedding,
            positions,
            types,
            layer_input,
            next_token: None,
        })
    }

    /// The tensors that a head has of its own. It shares its trunk's others ([`ModelWeights::behind`]).
    ///
    /// [`ModelWeights::behind`]: crate::model::ModelWeights::behind
    fn ends_of_head(
        &mut self,
        c: &ModelConfig,
        head: NextToken,
        placed: Placed<'_, 'a>,
    ) -> Result<Ends, ModelError> {
        let (block, n_embd) = (head.block, c.n_embd);
        let table = [c.n_vocab, n_embd];
        let output = match head.has_output {
            true => self.matrix(&NextTokenName::Output.stem(block), table, placed)?,
            false => MatrixRef::EMPTY,
        };
        // In panels, as packed files have every matrix but `token_embd`.
        let embedding = match head.has_embedding {
            true => self.matrix(&NextTokenName::Embedding.stem(block), table, placed)?,
            false => MatrixRef::EMPTY,
        };
        let output_norm = match head.has_output_norm {
            true => self.rms_norm(NextTokenName::OutputNorm.weight(block), n_embd, placed)?,
            false => self.end_norm(c.architecture.family().output_norm, n_embd, placed)?,
        };
        let proj = NextTokenName::Proj.stem(block);
        let mut norm = |name: NextTokenName| self.rms_norm(name.weight(block), n_embd, placed);
        let input = NextTokenInput {
            embedding_norm: norm(NextTokenName::EmbeddingNorm)?,
            hidden_norm: norm(NextTokenName::HiddenNorm)?,
            proj: self.matrix(&proj, [n_embd, 2 * n_embd], placed)?,
        };
        Ok(Ends {
            output_norm,
            embedding_norm: NormRef::EMPTY,
            output,
            embedding: Embedding::Panels(embedding),
            positions: None,
            types: None,
            layer_input: None,
            next_token: Some(input),
        })
    }

    fn end_norm(
        &mut self,
        norm: EndNorm,
        len: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<NormRef, ModelError> {
        match norm {
            EndNorm::Rms(stem) => {
                let name = Name::format(format_args!("{stem}.weight"));
                self.rms_norm(name, len, placed)
            }
            EndNorm::Layer(stem) => self.layer_norm(&stem.into(), [1, len], placed),
        }
    }

    /// The per-layer embeddings, `n` values of a token in all.
    fn layer_input(
        &mut self,
        c: &ModelConfig,
        n: usize,
        placed: Placed<'_, 'a>,
    ) -> Result<LayerInput, ModelError> {
        let stem = LAYER_MODEL_PROJ.strip_suffix(".weight");
        let stem = stem.unwrap_or(LAYER_MODEL_PROJ);
        Ok(LayerInput {
            rows: self.rows(LAYER_TOKEN_EMBD.into(), [c.n_vocab, n], placed)?,
            proj: self.matrix(&stem.into(), [n, c.n_embd], placed)?,
            norm: self.rms_norm(LAYER_PROJ_NORM.into(), c.n_embd_layer, placed)?,
        })
    }
}
