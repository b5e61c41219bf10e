//! Which neurons of a row are kept in modes that change results ([`Approximation`](super::Approximation)).

use super::activate::activate;
use super::pass::Pass;
use super::sites::{NeuronRule, NeuronSignal, Sparse};
use crate::kernels::activation::{ActivationKinds, ActivationLayout};
use crate::kernels::contract::GROUP;
use crate::kernels::panel::WeightType;
use crate::memory::Shared;
use crate::model::Activation;
use core::ops::Range;

/// A network of a layer.
#[derive(Clone, Copy)]
pub(super) struct Network {
    pub(super) layer: usize,
    pub(super) activation: Activation,
    /// Its first neuron among the layer's.
    pub(super) first: usize,
    pub(super) n_ff: usize,
}

/// How a network's neurons are chosen.
#[derive(Clone, Copy)]
pub(super) struct Keeping<'a> {
    signal: NeuronSignal,
    activation: Activation,
    layer: usize,
    /// What the weights of down multiply.
    kind: ActivationKinds,
    /// (n_ff), of the signal that needs them.
    norms: &'a [f32],
    cuts: Cuts<'a>,
}

/// Where a row's neurons are divided into those that are kept and the others.
#[derive(Clone, Copy)]
enum Cuts<'a> {
    /// For all rows.
    Known(Cut),
    /// For each row.
    Each(&'a [u64]),
    /// Found from the whole row.
    Sought(Sought),
}

/// What divides a row.
#[derive(Clone, Copy)]
enum Sought {
    /// Number of neurons that are kept.
    Count(usize),
    /// Share of the root of the sum of squares that is left out.
    Budget(f32),
}

/// The place of a neuron in the order of signals, and of indices where signals are equal: it and those before are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Cut(u64);

impl Cut {
    const ALL: Self = Self(0);
    const NONE: Self = Self(u64::MAX);

    /// The place of a neuron: larger ones come first. Signals are not negative; one that is not a number is the first.
    fn at(index: usize, signal: f32) -> Self {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "rows are shorter than 2^32"
        )]
        let index = !(index as u32);
        Self(u64::from(signal.to_bits()) << 32 | u64::from(index))
    }

    fn above(threshold: f32) -> Self {
        match threshold < 0.0 {
            true => Self::ALL,
            false => Self(u64::from(threshold.abs().to_bits() + 1) << 32),
        }
    }
}

impl<'a> Keeping<'a> {
    /// What the step's options ask for, if they leave out neurons that matter.
    pub(super) fn new(pass: &Pass<'a>, network: Network, down: WeightType) -> Option<Self> {
        let Sparse::Approximate(asked) = pass.options.sparse else {
            return None;
        };
        let Network { layer, n_ff, .. } = network;
        let cuts = match asked.rule {
            NeuronRule::Threshold(values) => Cuts::Known(Cut::above(values[layer])),
            NeuronRule::Share(values) => Cuts::Sought(Sought::Count(share(values[layer], n_ff))),
            NeuronRule::Count(n) => Cuts::Sought(Sought::Count(n.min(n_ff))),
            NeuronRule::Budget(share) => Cuts::Sought(Sought::Budget(share)),
        };
        let start = layer * pass.config().neurons_max() + network.first;
        Some(Self {
            signal: asked.signal,
            activation: network.activation,
            layer,
            kind: ActivationKinds::for_weights(down),
            norms: match asked.signal {
                NeuronSignal::Contribution => &asked.norms[start..start + n_ff],
                _ => &[],
            },
            cuts,
        })
    }

    /// Whether gates tell which neurons are kept.
    pub(super) fn is_by_gate(&self) -> bool {
        self.signal == NeuronSignal::Gate
    }

    /// Whether rows are compared by their gates, before up is computed.
    pub(super) fn ranks_gates(&self) -> bool {
        self.is_by_gate() && matches!(self.cuts, Cuts::Sought(_))
    }

    /// Finds the cut of a row by its gates, (n_ff).
    pub(super) fn cut_of_gates(&self, pass: &Pass<'_>, gates: &[f32]) -> u64 {
        let signals = |g: usize, out: &mut [f32; GROUP]| {
            let end = gates.len().min((g + 1) * GROUP);
            self.of_gates(pass, &gates[g * GROUP..end], out);
        };
        self.find(gates.len(), &signals).0
    }

    /// The same with the cuts of rows.
    pub(super) const fn with_cuts(self, cuts: &'a [u64]) -> Self {
        Self {
            cuts: Cuts::Each(cuts),
            ..self
        }
    }

    /// Which neurons of a group row `row` keeps by their gates. `first` is the first one's index.
    pub(super) fn keep_by_gate(
        &self,
        pass: &Pass<'_>,
        row: usize,
        first: usize,
        gate: &[f32],
    ) -> [bool; GROUP] {
        let mut signals = [0f32; GROUP];
        self.of_gates(pass, gate, &mut signals);
        let cut = match self.cuts {
            Cuts::Known(cut) => cut,
            Cuts::Each(cuts) => Cut(cuts[row]),
            Cuts::Sought(_) => Cut::ALL,
        };
        keep(cut, first, &signals)
    }

    /// Counts a group of a row of which `keeps` were kept, and shows its signals to an observer.
    pub(super) fn count_by_gate(&self, pass: &Pass<'_>, gate: &[f32], keeps: &[bool; GROUP]) {
        self.count(pass, gate.len(), keeps);
        if let Some(observer) = pass.options.observer {
            let mut signals = [0f32; GROUP];
            self.of_gates(pass, gate, &mut signals);
            observer.sees_signals(self.layer, &signals[..gate.len()]);
        }
    }

    /// Leaves out neurons of columns `cols` of a quantised row, whole groups, by their values, if that needs no other
    /// columns.
    ///
    /// # Safety
    /// - The columns were written, and no other worker accesses them in the current phase.
    pub(super) unsafe fn leave_out_known(
        &self,
        pass: &Pass<'_>,
        layout: &ActivationLayout,
        row: *mut u8,
        cols: Range<usize>,
    ) {
        if self.is_by_gate() {
            return;
        }
        if let Some(observer) = pass.options.observer {
            let mut signals = [0f32; GROUP];
            for start in cols.clone().step_by(GROUP) {
                // SAFETY: by the caller.
                unsafe { self.of_values(layout, row, start / GROUP, &mut signals) };
                observer.sees_signals(self.layer, &signals[..GROUP.min(cols.end - start)]);
            }
        }
        if let Cuts::Known(cut) = self.cuts {
            // SAFETY: by the caller.
            unsafe { self.leave_out(pass, layout, row, cols, cut) };
        }
    }

    /// Leaves out neurons of rows by their values, where whole rows are compared.
    ///
    /// # Safety
    /// - The rows were written before the last barrier, and no other worker accesses them in the current phase.
    pub(super) unsafe fn leave_out_sought(
        &self,
        pass: &Pass<'_>,
        layout: &ActivationLayout,
        rows: &Shared<'_, u8>,
        places: Range<usize>,
    ) {
        for i in places {
            let row = rows.pointer(i * layout.row_bytes());
            let signals = |g: usize, out: &mut [f32; GROUP]| {
                // SAFETY: by the caller.
                unsafe { self.of_values(layout, row, g, out) };
            };
            let cut = self.find(layout.n_cols(), &signals);
            // SAFETY: as above.
            unsafe { self.leave_out(pass, layout, row, 0..layout.n_cols(), cut) };
        }
    }

    /// Whether rows are compared by their values, once they are written.
    pub(super) fn ranks_values(&self) -> bool {
        !self.is_by_gate() && matches!(self.cuts, Cuts::Sought(_))
    }

    /// # Safety
    /// - As [`Self::leave_out_known`].
    unsafe fn leave_out(
        &self,
        pass: &Pass<'_>,
        layout: &ActivationLayout,
        row: *mut u8,
        cols: Range<usize>,
        cut: Cut,
    ) {
        let mut signals = [0f32; GROUP];
        for start in cols.clone().step_by(GROUP) {
            let g = start / GROUP;
            // SAFETY: by the caller.
            unsafe { self.of_values(layout, row, g, &mut signals) };
            let keeps = keep(cut, start, &signals);
            self.count(pass, GROUP.min(cols.end - start), &keeps);
            // SAFETY: by the caller.
            unsafe { layout.leave_out(row, g, &keeps) };
        }
    }

    fn count(&self, pass: &Pass<'_>, n: usize, keeps: &[bool; GROUP]) {
        let n_kept = keeps[..n].iter().filter(|keeps| **keeps).count();
        pass.neurons.add(self.layer, n, n - n_kept);
    }

    /// The signals of a group of gates.
    fn of_gates(&self, pass: &Pass<'_>, gate: &[f32], out: &mut [f32; GROUP]) {
        let n = gate.len();
        let mut copy = [0f32; GROUP];
        copy[..n].copy_from_slice(gate);
        // Where up is shifted by 1, it is 0 for a factor of 1.
        let is_shifted = matches!(self.activation, Activation::SwigluClamped { .. });
        let mut up = [if is_shifted { 0f32 } else { 1.0 }; GROUP];
        let out = &mut out[..n];
        activate(
            pass.table,
            self.activation,
            &mut copy[..n],
            &mut up[..n],
            out,
        );
        out.iter_mut().for_each(|x| *x = x.abs());
    }

    /// The signals of a group of a quantised row.
    ///
    /// # Safety
    /// - The group was written, and nothing writes it meanwhile.
    unsafe fn of_values(
        &self,
        layout: &ActivationLayout,
        row: *const u8,
        g: usize,
        out: &mut [f32; GROUP],
    ) {
        // SAFETY: by the caller.
        unsafe { layout.magnitudes(row, self.kind, g, out) };
        if self.signal == NeuronSignal::Contribution {
            let norms = self.norms[g * GROUP..].iter();
            out.iter_mut().zip(norms).for_each(|(x, norm)| *x *= norm);
        }
    }

    /// Finds the cut of a row of `n` neurons, a byte of the signals at a time from the highest on. A row with a signal that
    /// is not finite is kept whole.
    fn find(&self, n: usize, signals: &dyn Fn(usize, &mut [f32; GROUP])) -> Cut {
        let Cuts::Sought(sought) = self.cuts else {
            return Cut::ALL;
        };
        let each = |visit: &mut dyn FnMut(usize, f32)| {
            let mut room = [0f32; GROUP];
            for start in (0..n).step_by(GROUP) {
                signals(start / GROUP, &mut room);
                (start..n).zip(&room).for_each(|(i, x)| visit(i, *x));
            }
        };
        let (mut out, mut bits) = (Out::default(), 0u32);
        let mut allowed = Allowed::new(sought, n);
        for shift in [24u32, 16, 8, 0] {
            let mut bins = [Out::default(); 256];
            let (mut is_finite, mut squares) = (true, 0f64);
            each(&mut |_, x| {
                is_finite &= x.is_finite();
                squares += f64::from(x) * f64::from(x);
                let is_here = u64::from(x.to_bits() ^ bits) >> shift >> 8 == 0;
                bins[(x.to_bits() >> shift & 0xff) as usize].add(x, u32::from(is_here));
            });
            if !is_finite {
                return Cut::ALL;
            }
            allowed.square_max = allowed.share * allowed.share * squares;
            let mut bins = (0u32..).zip(&bins);
            let Some(byte) = bins.find(|(_, bin)| !out.takes(bin, &allowed)) else {
                return Cut::NONE;
            };
            bits |= byte.0 << shift;
        }
        // How many neurons of this signal are kept: the first ones.
        let (signal, mut n_kept) = (f32::from_bits(bits), 0);
        each(&mut |_, x| n_kept += usize::from(x.to_bits() == bits));
        let mut one = Out::default();
        one.add(signal, 1);
        while n_kept > 1 && out.takes(&one, &allowed) {
            n_kept -= 1;
        }
        let mut cut = Cut::NONE;
        each(&mut |i, x| {
            if x.to_bits() == bits && n_kept > 0 {
                n_kept -= 1;
                cut = Cut::at(i, x);
            }
        });
        cut
    }
}

/// Some neurons that are left out: how many, and what they add at most.
#[derive(Clone, Copy, Default)]
struct Out {
    n: u32,
    sum: f64,
}

/// How much may be left out of a row.
struct Allowed {
    n: usize,
    /// Share of the root of the sum of squares that the sum may be.
    share: f64,
    square_max: f64,
}

impl Allowed {
    fn new(sought: Sought, n: usize) -> Self {
        let (n, share) = match sought {
            Sought::Count(n_kept) => (n - n_kept, f64::INFINITY),
            // Less the roundings of signals and of both sums.
            Sought::Budget(share) => (n, f64::from(share) * (1.0 - 1.0 / 524_288.0)),
        };
        let square_max = 0.0;
        Self {
            n,
            share,
            square_max,
        }
    }
}

impl Out {
    fn add(&mut self, signal: f32, n: u32) {
        self.n += n;
        // Products below the smallest number were rounded.
        self.sum += f64::from(n) * (f64::from(signal) + f64::from(f32::from_bits(1)));
    }

    /// Takes more, if that is allowed.
    fn takes(&mut self, more: &Self, allowed: &Allowed) -> bool {
        let (n, sum) = (self.n + more.n, self.sum + more.sum);
        // Counts allow any sum.
        let is_too_much = sum * sum > allowed.square_max;
        let fits = more.n == 0 || n as usize <= allowed.n && !is_too_much;
        if fits {
            (self.n, self.sum) = (n, sum);
        }
        fits
    }
}

/// Which neurons of a group from index `first` on are kept.
fn keep(cut: Cut, first: usize, signals: &[f32; GROUP]) -> [bool; GROUP] {
    let mut keeps = [false; GROUP];
    for ((i, keeps), signal) in (first..).zip(&mut keeps).zip(signals) {
        *keeps = Cut::at(i, *signal) >= cut;
    }
    keeps
}

/// A share of `n` neurons, rounded.
fn share(share: f32, n: usize) -> usize {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "between 0 and `n`, which is below 2^24"
    )]
    let n_kept = (share.clamp(0.0, 1.0) * n as f32 + 0.5) as usize;
    n_kept.min(n)
}
