//! LFM2's gated convolution over the last few tokens.

use super::super::Unreadable;
use super::super::source::{Matrix, Source};
use super::config::Config;

/// Shapes are (rows, columns); every row is one output.
#[derive(Debug)]
pub(super) struct ShortConv {
    /// (3 * `n_embd`, `n_embd`): what gates the input, what gates the output, the input.
    in_proj: Matrix,
    /// (`n_embd`, `conv_len`): a channel's taps, the last of them on the token itself.
    taps: Matrix,
    /// (`n_embd`, `n_embd`)
    out_proj: Matrix,
}

impl ShortConv {
    pub(super) fn load(
        source: &mut Source<'_>,
        config: &Config,
        index: usize,
    ) -> Result<Self, Unreadable> {
        let n_embd = config.n_embd;
        let name = |tensor: &str| format!("blk.{index}.shortconv.{tensor}.weight");
        Ok(Self {
            in_proj: source.matrix(&name("in_proj"), 3 * n_embd, n_embd)?,
            taps: source.matrix(&name("conv"), n_embd, config.conv_len)?,
            out_proj: source.matrix(&name("out_proj"), n_embd, n_embd)?,
        })
    }

    /// What it makes of the tokens `normed`; before the first there are zeros.
    pub(super) fn of(&self, config: &Config, normed: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (n_embd, conv_len) = (config.n_embd, config.conv_len);
        let mut gated: Vec<Vec<f64>> = vec![vec![0.0; n_embd]; conv_len - 1];
        let outputs = normed.iter().map(|x| {
            let bcx = self.in_proj.times(x);
            let (b, cx) = bcx.split_at(n_embd);
            let (c, x) = cx.split_at(n_embd);
            gated.push(b.iter().zip(x).map(|(b, x)| b * x).collect());
            let recent = &gated[gated.len() - conv_len..];
            let channel = |(channel, c): (usize, &f64)| {
                let taps = self.taps.row(channel).iter();
                let sum: f64 = taps.zip(recent).map(|(tap, x)| tap * x[channel]).sum();
                c * sum
            };
            let mixed: Vec<f64> = c.iter().enumerate().map(channel).collect();
            self.out_proj.times(&mixed)
        });
        outputs.collect()
    }
}
