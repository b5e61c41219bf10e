//! Divergence of modes from the whole model.

use super::SparsifyError;
use sluice::Session;
use sluice::evaluate::log_softmax;
use sluice::session::StepHooks;
use sluice_core::engine::Sparse;

/// Chunks, and what the whole model says of the second half of each.
pub(super) struct Reference<'c> {
    chunks: Vec<&'c [u32]>,
    /// The logits of each chunk, where they are kept.
    whole: Vec<Vec<f32>>,
}

impl<'c> Reference<'c> {
    /// Of chunks whose logits are computed each time: they take too much memory.
    pub(super) const fn of_many(chunks: Vec<&'c [u32]>) -> Self {
        Self {
            chunks,
            whole: Vec::new(),
        }
    }

    /// Of a few chunks whose logits are kept.
    pub(super) fn of_few(
        session: &mut Session,
        chunks: Vec<&'c [u32]>,
    ) -> Result<Self, SparsifyError> {
        let whole = chunks.iter().map(|chunk| logits(session, chunk));
        let whole = whole.collect::<Result<_, _>>()?;
        Ok(Self { chunks, whole })
    }

    /// The divergence of a mode from the whole model, in nats per token.
    pub(super) fn divergence(
        &self,
        session: &mut Session,
        sparse: &Sparse<'_>,
    ) -> Result<f64, SparsifyError> {
        let n_vocab = session.model().config().n_vocab;
        let (mut sum, mut n) = (0.0, 0u32);
        let (mut p, mut q) = (Vec::new(), Vec::new());
        for (i, chunk) in self.chunks.iter().enumerate() {
            let computed = match self.whole.get(i) {
                Some(_) => Vec::new(),
                None => logits(session, chunk)?,
            };
            let whole = self.whole.get(i).unwrap_or(&computed);
            let first = skipped(chunk, n_vocab);
            read(session, chunk, sparse, |at, logits| {
                log_softmax(&whole[(at - first) * n_vocab..][..n_vocab], &mut p);
                log_softmax(logits, &mut q);
                sum += p
                    .iter()
                    .zip(&q)
                    .map(|(p, q)| p.exp() * (p - q))
                    .sum::<f64>();
                n += 1;
            })?;
        }
        Ok(sum / f64::from(n.max(1)))
    }
}

/// Some of the chunks, evenly spaced.
pub(super) fn some<'c>(chunks: &[&'c [u32]], n: usize) -> Vec<&'c [u32]> {
    (0..n).map(|i| chunks[i * chunks.len() / n]).collect()
}

/// The logits of the whole model.
fn logits(session: &mut Session, chunk: &[u32]) -> Result<Vec<f32>, SparsifyError> {
    let mut whole = Vec::new();
    let each = |_, logits: &[f32]| whole.extend_from_slice(logits);
    read(session, chunk, &Sparse::Exact, each)?;
    Ok(whole)
}

fn read(
    session: &mut Session,
    chunk: &[u32],
    sparse: &Sparse<'_>,
    mut each: impl FnMut(usize, &[f32]),
) -> Result<(), SparsifyError> {
    let hooks = StepHooks {
        sparse: Some(*sparse),
        ..StepHooks::default()
    };
    let skipped = skipped(chunk, session.model().config().n_vocab);
    session.read_with(&[chunk], skipped, &hooks, |_, at, logits| each(at, logits))?;
    Ok(())
}

/// Tokens of a chunk before those that are compared.
fn skipped(chunk: &[u32], n_vocab: usize) -> usize {
    (chunk.len() / 2).max(chunk.len().saturating_sub(FLOATS_MAX / n_vocab))
}

/// Maximum floats of the logits of a chunk: 256 MiB.
const FLOATS_MAX: usize = 1 << 26;
