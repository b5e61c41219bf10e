//! From the hidden states of a text's tokens to one vector for the text.
#![forbid(unsafe_code)]

use super::config::ModelConfig;
use super::error::{ModelError, Name};
use crate::gguf::{Gguf, optional};

/// How hidden states become an embedding, as llama.cpp names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pooling {
    /// No pooling: every token has its own embedding.
    None,
    /// The mean of all tokens.
    Mean,
    /// The first token.
    Cls,
    /// The last token.
    Last,
}

impl Pooling {
    /// All poolings.
    pub const ALL: [Self; 4] = [Self::None, Self::Mean, Self::Cls, Self::Last];

    /// The name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Mean => "mean",
            Self::Cls => "cls",
            Self::Last => "last",
        }
    }

    /// The pooling called `name`.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|pooling| pooling.name() == name)
    }

    /// The pooling that `ARCH.pooling_type` sets; `None` without such a key.
    ///
    /// # Errors
    /// A key of another type, or a pooling that is not supported (rank, of rerankers).
    pub fn from_gguf(gguf: &Gguf<'_>, config: &ModelConfig) -> Result<Option<Self>, ModelError> {
        let name = config.architecture.name();
        let key = Name::format(format_args!("{name}.pooling_type"));
        let Some(number) = optional(gguf.u32(key.as_str()))? else {
            return Ok(None);
        };
        match number {
            0..=3 => Ok(Some(Self::ALL[number as usize])),
            4 => Err(ModelError::NotImplemented {
                what: "pooling for ranking",
                name: key,
            }),
            _ => Err(ModelError::Setting {
                key,
                value: number.into(),
                expected: "0 to 3",
            }),
        }
    }

    /// Whether token `index` of `n_tokens` counts.
    pub const fn reads(self, index: usize, n_tokens: usize) -> bool {
        match self {
            Self::None | Self::Mean => true,
            Self::Cls => index == 0,
            Self::Last => index + 1 == n_tokens,
        }
    }

    /// The embedding of a text from the hidden states that count, `rows: (n, out.len())`. The mean
    /// is summed in f64, in order; otherwise it is the first row, so do not call this if every token
    /// has its own embedding.
    ///
    /// # Panics
    /// If there are no rows, or an incomplete one.
    pub fn pool(self, rows: &[f32], out: &mut [f32]) {
        let n_embd = out.len();
        assert!(!rows.is_empty());
        assert!(rows.len().is_multiple_of(n_embd));
        if self != Self::Mean {
            out.copy_from_slice(&rows[..n_embd]);
            return;
        }
        #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 tokens")]
        let n = (rows.len() / n_embd) as f64;
        for (column, out) in out.iter_mut().enumerate() {
            let column = rows.iter().skip(column).step_by(n_embd);
            let sum: f64 = column.map(|&x| f64::from(x)).sum();
            #[expect(clippy::cast_possible_truncation, reason = "rounds to the nearest f32")]
            let mean = (sum / n) as f32;
            *out = mean;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolings_of_known_rows() {
        let rows = [1.0, 2.0, 3.0, 6.0];
        let mut out = [0.0; 2];
        Pooling::Mean.pool(&rows, &mut out);
        assert_eq!(out.map(f32::to_bits), [2f32, 4.0].map(f32::to_bits));
        Pooling::Cls.pool(&rows[..2], &mut out);
        assert_eq!(out.map(f32::to_bits), [1f32, 2.0].map(f32::to_bits));
        let read = |pooling: Pooling| [0, 1, 2].map(|i| pooling.reads(i, 3));
        assert_eq!(read(Pooling::Cls), [true, false, false]);
        assert_eq!(read(Pooling::Last), [false, false, true]);
        assert_eq!(read(Pooling::None), [true; 3]);
        for pooling in Pooling::ALL {
            assert_eq!(Pooling::from_name(pooling.name()), Some(pooling));
        }
    }
}
