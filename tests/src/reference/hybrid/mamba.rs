//! Mamba 2, one token after the other.
//!
//! Source: Transformers are SSMs (Dao and Gu, 2024). A head's state S fades by exp(dt a) and takes dt x B^T at each
//! token; the head gives S C + d x. Heads of a group share B and C. The outputs of all heads are gated, normalised by
//! groups and multiplied by a matrix.

use super::super::Unreadable;
use super::super::source::{Matrix, Source, dot, rms_norm};
use super::keys::Keys;
use super::{convolved, silu, softplus};

#[derive(Clone, Copy, Debug)]
pub(super) struct MambaHeads {
    n_embd: usize,
    n_head: usize,
    /// Elements of a head.
    len: usize,
    n_group: usize,
    n_state: usize,
    /// Taps of the convolution.
    n_tap: usize,
    eps: f64,
}

impl MambaHeads {
    pub(super) fn load(keys: &mut Keys<'_>, n_embd: usize, eps: f64) -> Result<Self, Unreadable> {
        let n_head = keys.length("ssm.time_step_rank")?;
        Ok(Self {
            n_embd,
            n_head,
            len: keys.length("ssm.inner_size")? / n_head,
            n_group: keys.length("ssm.group_count")?,
            n_state: keys.length("ssm.state_size")?,
            n_tap: keys.length("ssm.conv_kernel")?,
            eps,
        })
    }
}

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct Mamba {
    heads: MambaHeads,
    /// What gates the output (inner); x (inner), B and C (`n_group` * `n_state`); a time step a head.
    input: Matrix,
    /// (channels of x, B and C, `n_tap`), with a bias; the last tap on the token itself.
    taps: Matrix,
    /// (`n_head`)
    dt: Vec<f64>,
    /// (`n_head`, 1)
    a: Matrix,
    d: Matrix,
    /// (`n_group`, inner / `n_group`)
    norm: Matrix,
    /// (`n_embd`, inner)
    out: Matrix,
}

impl Mamba {
    pub(super) fn load(
        source: &mut Source<'_>,
        layer: usize,
        heads: MambaHeads,
    ) -> Result<Self, Unreadable> {
        let MambaHeads {
            n_embd,
            n_head,
            len,
            n_group,
            n_state,
            n_tap,
            ..
        } = heads;
        let name = |tensor: &str| format!("blk.{layer}.{tensor}");
        let inner = n_head * len;
        let channels = inner + 2 * n_group * n_state;
        let rows = inner + channels + n_head;
        Ok(Self {
            heads,
            input: source.matrix(&name("ssm_in.weight"), rows, n_embd)?,
            taps: source.matrix(&name("ssm_conv1d.weight"), channels, n_tap)?,
            dt: source.vector(&name("ssm_dt.bias"), n_head)?,
            a: source.matrix(&name("ssm_a"), n_head, 1)?,
            d: source.matrix(&name("ssm_d"), n_head, 1)?,
            norm: source.matrix(&name("ssm_norm.weight"), n_group, inner / n_group)?,
            out: source.matrix(&name("ssm_out.weight"), n_embd, inner)?,
        })
    }

    /// What it makes of the tokens `normed`, from a state of zeros.
    pub(super) fn of(&self, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let MambaHeads {
            n_head,
            len,
            n_group,
            n_state,
            eps,
            ..
        } = self.heads;
        let inner = n_head * len;
        let projected: Vec<Vec<f64>> = normed.iter().map(|x| self.input.times(x)).collect();
        let channels = inner..projected.first().map_or(inner, Vec::len) - n_head;
        let mixing: Vec<&[f64]> = projected.iter().map(|x| &x[channels.clone()]).collect();
        let mixed = convolved(&self.taps, &mixing).into_iter();
        // Of each element of x, which all heads have one after the other.
        let mut states = vec![vec![0.0; n_state]; inner];
        let outputs = mixed.zip(&projected).map(|(mixed, projected)| {
            let (x, bc) = mixed.split_at(inner);
            let (b, c) = bc.split_at(n_group * n_state);
            let steps = &projected[channels.end..];
            let mut y = Vec::new();
            for (element, state) in states.iter_mut().enumerate() {
                let head = element / len;
                let group = head / (n_head / n_group) * n_state;
                let (b, c) = (&b[group..][..n_state], &c[group..][..n_state]);
                let dt = softplus(steps[head] + self.dt[head]);
                let kept = (dt * self.a.row(head)[0]).exp();
                for (state, b) in state.iter_mut().zip(b) {
                    *state = *state * kept + dt * x[element] * b;
                }
                y.push(dot(state, c) + self.d.row(head)[0] * x[element]);
            }
            let gated = y.iter().zip(projected).map(|(y, z)| y * silu(*z));
            let gated: Vec<f64> = gated.collect();
            let groups = gated.chunks_exact(inner / n_group).enumerate();
            let normed = groups.flat_map(|(group, x)| rms_norm(x, self.norm.row(group), eps));
            self.out.times(&normed.collect::<Vec<_>>())
        });
        outputs.collect()
    }
}
