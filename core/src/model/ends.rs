//! The parts of a model outside of its layers: norms, output layer, embeddings.

use super::config::ModelConfig;
use super::error::ModelError;
use super::norm::Norm;
use super::refs::{Embedding, RowsRef};
use super::weight::Weight;
use super::weights::ModelWeights;
use crate::kernels::contract::{Portable, soft_cap};
use crate::kernels::panel::dequantize_gguf_row;

impl<'w> ModelWeights<'w> {
    pub(crate) fn output(&self) -> Weight<'w> {
        self.ends.output.weight(self.output_memory)
    }

    pub(crate) fn output_norm(&self) -> Option<Norm<'w>> {
        self.ends.output_norm.get(self.memory)
    }

    /// The norm of the embeddings before the first layer, if there is one.
    pub(crate) fn embedding_norm(&self) -> Option<Norm<'w>> {
        self.ends.embedding_norm.get(self.memory)
    }

    /// The number of positions that have an embedding, in models with learned positions.
    pub(crate) fn n_positions(&self) -> Option<usize> {
        self.ends.positions.map(|rows| rows.n_rows)
    }

    /// Adds the embeddings of the token type and of `position`, if the model has them, to a token's
    /// embedding; `room` has the same length (n_embd).
    pub(crate) fn embed_place(&self, position: usize, out: &mut [f32], room: &mut [f32]) {
        let mut add = |fill: &dyn Fn(&mut [f32])| {
            fill(room);
            out.iter_mut().zip(&*room).for_each(|(out, x)| *out += *x);
        };
        if let Some(types) = &self.ends.types {
            let types = self.weight(types);
            add(&|room| types.layout.dequantize_row(0, types.panels, room));
        }
        if let Some(rows) = &self.ends.positions {
            add(&|room| embedding_row(self.rows_memory, rows, position, room));
        }
    }

    /// The projection of the model's embedding to the per-layer embeddings, and the norm of each layer's part, in
    /// models with per-layer embeddings.
    pub(crate) fn layer_input(&self) -> Option<(Weight<'w>, Norm<'w>)> {
        let input = self.ends.layer_input.as_ref()?;
        Some((self.weight(&input.proj), input.norm.get(self.memory)?))
    }

    /// The per-layer embeddings of `token`, (n_layer * n_embd_layer), if the model has them.
    pub(crate) fn embed_layers(&self, token: u32, out: &mut [f32]) {
        if let Some(input) = &self.ends.layer_input {
            embedding_row(self.rows_memory, &input.rows, token as usize, out);
        }
    }

    /// The embedding of `token` (n_embd).
    ///
    /// # Panics
    /// If the token is not in the vocabulary.
    pub fn embed(&self, token: u32, out: &mut [f32]) {
        let token = token as usize;
        match &self.ends.embedding {
            Embedding::Panels(matrix) => {
                let table = matrix.weight(self.embedding_memory);
                table.layout.dequantize_row(token, table.panels, out);
            }
            Embedding::Rows(rows) => embedding_row(self.rows_memory, rows, token, out),
        }
    }

    /// The logit of `token` from the final hidden state `hidden`, (n_embd), with `row` (n_embd) as scratch. Plain f32:
    /// close to the result of a step, which quantises the state first, but not bit-identical.
    ///
    /// # Panics
    /// If the token is not in the vocabulary, or a slice is of another length.
    pub fn logit(&self, token: u32, hidden: &[f32], row: &mut [f32]) -> f32 {
        let (output, token) = (self.output(), token as usize);
        output
            .layout
            .dequantize_row(output.first_row + token, output.panels, row);
        assert_eq!(hidden.len(), row.len());
        let dot: f32 = hidden.iter().zip(&*row).map(|(a, b)| a * b).sum();
        let bias = output.bias.map_or(0.0, |bias| bias[token]);
        let (scale, cap) = (self.config.logit_scale, self.config.logit_soft_cap);
        let logit = (dot * output.factor.unwrap_or(1.0) + bias) * scale;
        if cap > 0.0 {
            soft_cap::<Portable>(logit, cap, 1.0 / cap)
        } else {
            logit
        }
    }

    /// The inputs of the stream of a head that predicts one more token: the projection, (n_embd, 2 * n_embd), and
    /// the norms of the embedding and of the preceding hidden state.
    pub(crate) fn next_token(&self) -> Option<(Weight<'w>, [Norm<'w>; 2])> {
        let input = self.ends.next_token.as_ref()?;
        let embedding = input.embedding_norm.get(self.memory)?;
        let hidden = input.hidden_norm.get(self.memory)?;
        Some((self.weight(&input.proj), [embedding, hidden]))
    }

    /// The model as a head after `trunk`, with what they share: the trunk's embedding and output layer,
    /// unless the head has its own.
    pub(super) fn behind(mut self, trunk: &Self) -> Result<Self, ModelError> {
        let (own, other) = (&self.config, &trunk.config);
        let shape = |c: &ModelConfig| (c.architecture, c.n_embd, c.n_vocab);
        let Some(head) = own.next_token.filter(|_| other.next_token.is_none()) else {
            return Err(ModelError::OtherTrunk);
        };
        if shape(own) != shape(other) {
            return Err(ModelError::OtherTrunk);
        }
        if !head.has_output {
            (self.ends.output, self.output_memory) = (trunk.ends.output, trunk.output_memory);
        }
        if !head.has_embedding {
            self.ends.embedding = trunk.ends.embedding;
            self.embedding_memory = trunk.embedding_memory;
            self.rows_memory = trunk.rows_memory;
        }
        Ok(self)
    }
}

fn embedding_row(memory: &[u8], rows: &RowsRef, row: usize, out: &mut [f32]) {
    assert!(row < rows.n_rows);
    let bytes = &memory[rows.offset + row * rows.row_bytes..][..rows.row_bytes];
    dequantize_gguf_row(rows.ty, bytes, out);
}
