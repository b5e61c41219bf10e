//! Gradients of what is done row by row: norms, rotations, temperatures.

use super::run::Run;
use crate::kernels::KvType;
use crate::kernels::half::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};
use crate::kernels::table::RopeArgs;
use crate::model::{Attention, Norm, QkNorm};

/// How heads of queries or keys become what attention reads.
#[derive(Clone, Copy)]
pub(super) struct Turn<'a> {
    pub(super) shape: &'a Attention,
    pub(super) norm: Option<Norm<'a>>,
    /// Whether they are queries, which a temperature may scale.
    pub(super) is_query: bool,
}

impl Run<'_> {
    /// The norm of a row, or the row.
    pub(super) fn norm(&self, norm: Option<Norm<'_>>, x: &[f32], out: &mut [f32]) {
        match norm {
            Some(norm) => norm.apply(self.table, x, self.eps(), out),
            None => out.copy_from_slice(x),
        }
    }

    /// Adds the gradient of a norm at `x` to `dx`; without a norm, `dy`.
    pub(super) fn norm_back(&self, norm: Option<Norm<'_>>, x: &[f32], dy: &[f32], dx: &mut [f32]) {
        match norm {
            Some(Norm::Rms(weight)) => self.kernels.rms_norm(x, weight, self.eps(), dy, dx),
            Some(Norm::Layer { weight, .. }) => {
                self.kernels.layer_norm(x, weight, self.eps(), dy, dx);
            }
            None => dx.iter_mut().zip(dy).for_each(|(dx, dy)| *dx += dy),
        }
    }

    const fn eps(&self) -> f32 {
        self.model.config().norm_eps
    }

    /// Heads as attention reads them, of a row of products at `position` of a text of `n` tokens.
    pub(super) fn turn(
        &self,
        turn: &Turn<'_>,
        [position, n]: [usize; 2],
        raw: &[f32],
        out: &mut [f32],
    ) {
        let len = turn.piece(raw.len());
        for (piece, (x, out)) in raw
            .chunks_exact(len)
            .zip(out.chunks_exact_mut(len))
            .enumerate()
        {
            let norm = turn.norm.map(|norm| norm.of_piece(piece, len));
            self.norm(norm, x, out);
        }
        self.rotate(turn.shape, [position, n], false, out);
        let heat = turn.heat(position);
        #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
        if heat != 1.0 {
            out.iter_mut().for_each(|x| *x *= heat);
        }
    }

    /// The gradient of [`Self::turn`] at `raw`, in place, with `room` for a row.
    pub(super) fn turn_back(
        &self,
        turn: &Turn<'_>,
        [position, n]: [usize; 2],
        raw: &[f32],
        d: &mut [f32],
        room: &mut [f32],
    ) {
        let heat = turn.heat(position);
        #[expect(clippy::float_cmp, reason = "1 is a setting, not a result")]
        if heat != 1.0 {
            d.iter_mut().for_each(|d| *d *= heat);
        }
        self.rotate(turn.shape, [position, n], true, d);
        let Some(norm) = turn.norm else {
            return;
        };
        let len = turn.piece(raw.len());
        let room = &mut room[..d.len()];
        room.fill(0.0);
        let pieces = raw.chunks_exact(len).zip(d.chunks_exact(len));
        for (piece, ((x, d), out)) in pieces.zip(room.chunks_exact_mut(len)).enumerate() {
            self.norm_back(Some(norm.of_piece(piece, len)), x, d, out);
        }
        d.copy_from_slice(room);
    }

    /// Rotates heads by the angles of a position, or back.
    fn rotate(
        &self,
        shape: &Attention,
        [position, n]: [usize; 2],
        is_back: bool,
        heads: &mut [f32],
    ) {
        let Some(index) = shape.rope else {
            return;
        };
        let rope = self.model.rope(index, self.model.is_long_at(n));
        let config = self.model.config().ropes[index];
        // SAFETY: this rank's own room, whose last use is over.
        let angles = unsafe {
            self.room
                .attention
                .angles
                .of(self.rank)
                .write(0..config.n_rot)
        };
        let (cos, sin) = angles.split_at_mut(config.n_rot / 2);
        let position = i64::try_from(position).unwrap_or(i64::MAX);
        rope.angles(if is_back { -position } else { position }, cos, sin);
        for head in heads.chunks_exact_mut(shape.head_dim_k) {
            self.table.rope(&mut RopeArgs {
                head,
                cos,
                sin,
                pairing: config.pairing,
            });
        }
    }
}

impl Turn<'_> {
    /// Elements that a norm spans.
    const fn piece(&self, row: usize) -> usize {
        match self.shape.qk_norm {
            QkNorm::Row => row,
            QkNorm::Head | QkNorm::EachHead | QkNorm::None => self.shape.head_dim_k,
        }
    }

    fn heat(&self, position: usize) -> f32 {
        let temperature = self.shape.temperature.as_ref().filter(|_| self.is_query);
        temperature.map_or(1.0, |temperature| temperature.factor(position))
    }
}

/// Rounds a row as a KV cache of this type stores it.
pub(super) fn round(ty: KvType, x: &mut [f32]) {
    match ty {
        KvType::F16 => x.iter_mut().for_each(|x| *x = f16_to_f32(f32_to_f16(*x))),
        KvType::BF16 => x.iter_mut().for_each(|x| *x = bf16_to_f32(f32_to_bf16(*x))),
        _ => {}
    }
}
