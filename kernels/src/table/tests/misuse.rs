//! What safe code can get wrong panics before a kernel runs.

use crate::activation::{ACTIVATION_ALIGN, ActivationKinds, ActivationLayout};
use crate::contract::GROUP;
use crate::table::{
    Activations, AttentionArgs, AttentionRow, AttentionState, Matmul, Prefetch, Quantize, RopeArgs,
    RopePairing, Store, TileRange,
};
use crate::tests::{Aligned, Matrix, Noise, quantized, scalar, tables, tiles_granted};
use crate::{CpuFeatures, KernelTable, KvLayout, KvType, WeightType};
extern crate std;
use core::panic::AssertUnwindSafe;
use std::panic::catch_unwind;
use std::vec::Vec;

/// Whether `call` panics.
fn panics(call: impl FnOnce()) -> bool {
    catch_unwind(AssertUnwindSafe(call)).is_err()
}

#[test]
fn features_that_the_cpu_lacks_hand_out_no_table() {
    let names = |cpu| -> Vec<_> { KernelTable::available(cpu).map(KernelTable::name).collect() };
    assert_eq!(
        names(CpuFeatures::all() - CpuFeatures::TILES),
        names(CpuFeatures::detect())
    );
    assert_eq!(names(CpuFeatures::empty()), ["scalar"]);
    // Nor tiles without the system's permission, which `tiles_granted` asks for.
    let all = names(CpuFeatures::all());
    assert_eq!(all, names(CpuFeatures::detect_permitted()));
    if !tiles_granted() {
        assert_eq!(all, names(CpuFeatures::detect()));
    }
}

#[test]
fn types_are_numbered_as_tables_are_ordered() {
    for (i, ty) in WeightType::ALL.into_iter().enumerate() {
        assert_eq!(ty as usize, i);
    }
    for (i, ty) in KvType::ALL.into_iter().enumerate() {
        assert_eq!(ty as usize, i);
    }
}

#[test]
fn tiles_outside_their_operands_are_refused() {
    const TOKENS: usize = 3;
    let mut noise = Noise(21);
    let matrix = Matrix::random(WeightType::Q8_0, 40, 64, &mut noise);
    let layout = matrix.activation_layout();
    let rows = quantized(scalar(), &layout, &noise.values(TOKENS * 64));
    let mut out = std::vec![0f32; TOKENS * 40];
    let good = Matmul {
        layout: matrix.layout,
        panels: matrix.panels.bytes(),
        rows: (16..33).into(),
        activations: Activations {
            layout,
            bytes: rows.bytes(),
        },
        tokens: (1..TOKENS).into(),
        out: out.as_mut_ptr(),
        out_stride: 40,
        store: Store::Set,
        prefetch: Prefetch::Near,
        beside: &[],
    };
    let refused = |args: Matmul<'_>| {
        // SAFETY: `out` has room for every tile below that is not refused.
        let by = |table: &KernelTable| panics(|| unsafe { table.matmul(&args) });
        let all: Vec<bool> = tables().into_iter().map(by).collect();
        assert!(all.iter().all(|refused| *refused == all[0]), "{all:?}");
        all[0]
    };
    assert!(!refused(good));
    let rows = |start, end| Matmul {
        rows: TileRange { start, end },
        ..good
    };
    assert!(refused(rows(1, 17)));
    assert!(refused(rows(16, 41)));
    assert!(refused(rows(16, usize::MAX)));
    // Ranges that end before they start, within panels, in the tail, and from one to the other.
    for (start, end) in [(16, 0), (32, 16), (32, 31), (48, 40), (usize::MAX - 15, 16)] {
        assert!(refused(rows(start, end)), "rows {start}..{end}");
    }
    for (start, end) in [(16, 16), (32, 32)] {
        assert!(!refused(rows(start, end)), "rows {start}..{end}");
    }
    let tokens = |start, end| Matmul {
        tokens: TileRange { start, end },
        ..good
    };
    assert!(refused(tokens(0, TOKENS + 1)));
    for (start, end) in [(1, 0), (2, 1), (TOKENS + 1, TOKENS), (usize::MAX, 0)] {
        assert!(refused(tokens(start, end)), "tokens {start}..{end}");
    }
    assert!(!refused(tokens(TOKENS, TOKENS)));
    // A product with the size of a row that overflows to something small.
    let wrapping = usize::MAX / layout.row_bytes() + 2;
    assert!(refused(tokens(wrapping - 1, wrapping)));
    let activations = |layout, bytes| Matmul {
        activations: Activations { layout, bytes },
        ..good
    };
    let bytes = good.activations.bytes;
    assert!(refused(activations(layout, &bytes[..bytes.len() - 1])));
    assert!(refused(activations(layout, &bytes[4..])));
    let other_kind = ActivationLayout::new(64, ActivationKinds::F32);
    assert!(refused(activations(other_kind, bytes)));
    let other_width = ActivationLayout::new(32, ActivationKinds::INT8_256);
    assert!(refused(activations(other_width, bytes)));
    let panels = &good.panels[..good.panels.len() - 1];
    assert!(refused(Matmul { panels, ..good }));
}

#[test]
fn columns_outside_their_row_are_refused() {
    let layout = ActivationLayout::new(2 * GROUP, ActivationKinds::all());
    let mut row = Aligned::new(layout.row_bytes() + ACTIVATION_ALIGN);
    let x = [1.0; 3 * GROUP];
    let good = Quantize {
        x: &x[..GROUP],
        first_col: GROUP,
        layout: &layout,
        row: row.bytes_mut().as_mut_ptr(),
    };
    // SAFETY: the row has room for every call below that is not refused.
    let refused = |args: Quantize<'_>| panics(|| unsafe { scalar().quantize(&args) });
    assert!(!refused(good));
    let columns = |first_col, n| Quantize {
        x: &x[..n],
        first_col,
        ..good
    };
    assert!(refused(columns(GROUP, GROUP + 1)));
    assert!(refused(columns(2 * GROUP, 1)));
    assert!(refused(columns(16, GROUP)));
    assert!(refused(columns(0, 16)));
    assert!(refused(columns(usize::MAX - GROUP + 1, GROUP)));
    let misaligned = good.row.wrapping_add(4);
    assert!(refused(Quantize {
        row: misaligned,
        ..good
    }));
    assert!(panics(|| {
        ActivationLayout::new(usize::MAX / 4, ActivationKinds::all());
    }));
}

#[test]
fn attention_shapes_that_do_not_fit_are_refused() {
    let layout = KvLayout {
        type_k: KvType::F16,
        type_v: KvType::F16,
        head_dim_k: 8,
        head_dim_v: 4,
    };
    let block = Aligned::new(layout.block_bytes() + 64);
    let (block, longer) = (&block.bytes()[..layout.block_bytes()], block.bytes());
    let row = |n: usize, start, end| AttentionRow {
        queries: &[0.0; 32][..n],
        keys: TileRange { start, end },
        position: 0,
    };
    let refused = |layout: KvLayout, blocks: &[&[u8]], row: AttentionRow<'_>, n_sum, n_out| {
        let (mut max, mut sum, mut out) = ([0.0; 2], [0.0; 3], [0.0; 16]);
        let mut state = AttentionState {
            max: &mut max,
            sum: &mut sum[..n_sum],
            out: &mut out[..n_out],
        };
        state.reset();
        let args = AttentionArgs {
            next: core::ptr::null(),
            layout,
            blocks,
            n_group: 2,
            rows: &[row],
            scale: 1.0,
            soft_cap: 0.0,
            slopes: &[],
        };
        panics(|| scalar().attention(&args, &mut state))
    };
    let good = row(16, 0, 64);
    assert!(!refused(layout, &[block], good, 2, 8));
    // An empty range is a no-op, whatever its bounds.
    for (start, end) in [(64, 64), (5, 3), (usize::MAX, 0)] {
        assert!(!refused(layout, &[block], row(16, start, end), 2, 8));
    }
    assert!(!refused(layout, &[], row(16, 0, 0), 2, 8));
    assert!(refused(layout, &[block], good, 3, 8));
    assert!(refused(layout, &[block], good, 2, 9));
    for end in [65, usize::MAX] {
        assert!(refused(layout, &[block], row(16, 0, end), 2, 8));
    }
    assert!(!refused(layout, &[block; 8], row(16, 500, 512), 2, 8));
    assert!(refused(layout, &[block; 9], good, 2, 8));
    for block in [&block[64..], longer, &longer[4..][..block.len()]] {
        assert!(refused(layout, &[block], good, 2, 8));
    }
    for n in [15, 17] {
        assert!(refused(layout, &[block], row(n, 0, 64), 2, 8));
    }
    // Half of 2^64: two queries of it would be none.
    for head_dim_k in [0, 1025, usize::MAX / 2 + 1] {
        let layout = KvLayout {
            head_dim_k,
            ..layout
        };
        assert!(refused(layout, &[], row(0, 0, 0), 2, 8));
    }
    assert!(panics(|| {
        KvLayout::uniform(KvType::F16, usize::MAX / 2 + 1).block_bytes();
    }));
}

#[test]
fn no_queries_and_no_columns_are_nothing_to_do() {
    let nothing = || AttentionState {
        max: &mut [],
        sum: &mut [],
        out: &mut [],
    };
    scalar().attention_merge(&nothing(), &mut nothing());
    nothing().finish();
    scalar().rms_norm(&[], &[], 1e-5, &mut []);
    let rope = |head: &mut [f32], cos: &[f32], sin: &[f32]| {
        scalar().rope(&mut RopeArgs {
            head,
            cos,
            sin,
            pairing: RopePairing::Halves,
        });
    };
    rope(&mut [1.0], &[], &[]);
    assert!(panics(|| rope(&mut [1.0], &[1.0], &[0.0])));
    assert!(panics(|| rope(&mut [1.0; 4], &[1.0; 2], &[0.0])));
}
