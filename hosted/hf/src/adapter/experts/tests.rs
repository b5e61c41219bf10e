//! Splitting the pairs of experts that are one parameter.

use super::*;
use crate::family::Map;

const N_EXPERT: usize = 3;
const RANK: usize = 2;

/// A stack of three experts' matrices, each with its own source.
fn apart(part: &str, projection: &str, dims: [u64; 2]) -> Wanted {
    let experts = 0..N_EXPERT;
    Wanted {
        name: format!("blk.0.ffn_{part}_exps.weight"),
        parts: experts
            .map(|expert| format!("layers.0.mlp.experts.{expert}.{projection}.weight"))
            .collect(),
        source: dims.into(),
        shape: dims.into(),
        change: Change::None,
        map: Map::Same,
        is_optional: false,
        is_ignored: false,
    }
}

/// A stack with a single source.
fn stored(part: &str, source: &str, dims: [[u64; 2]; 2], change: Change) -> Wanted {
    let [shape, source_dims] = dims.map(|[rows, columns]| vec![N_EXPERT as u64, rows, columns]);
    Wanted {
        parts: vec![source.into()],
        shape,
        source: source_dims,
        change,
        ..apart(part, "", [1, 1])
    }
}

/// Gates and ups of `n_ff` rows and `n_embd` columns, and downs.
fn gated(n_ff: u64, n_embd: u64) -> Vec<Wanted> {
    vec![
        apart("down", "w2", [n_embd, n_ff]),
        apart("gate", "w1", [n_ff, n_embd]),
        apart("up", "w3", [n_ff, n_embd]),
    ]
}

fn names(stacks: &[Stack]) -> Vec<&str> {
    stacks.iter().map(|stack| &*stack.name).collect()
}

/// Numbers that are all different; they and their products are exact.
fn numbers(n: usize, first: f32) -> Vec<f32> {
    let places = (0_u16..).take(n);
    places.map(|i| first + f32::from(i)).collect()
}

/// The product as PEFT computes it: (experts, b's rows, a's columns).
fn product(all: &Pair, e: usize) -> Vec<Vec<f32>> {
    let n = N_EXPERT * RANK;
    let (n_cols, rows) = (all.a.len() / n, all.b.chunks_exact(n));
    let number = |row: &[f32], column: usize| {
        let ranks =
            (0..RANK).map(|r| row[r * N_EXPERT + e] * all.a[(e * RANK + r) * n_cols + column]);
        ranks.sum()
    };
    rows.map(|row| (0..n_cols).map(|column| number(row, column)).collect())
        .collect()
}

fn product_of(factors: &Factors) -> Vec<Vec<f32>> {
    let n_cols = factors.n_cols();
    let number = |row: &[f32], column: usize| {
        let ranks = row.iter().zip(factors.a.chunks_exact(n_cols));
        ranks.map(|(b, a)| b * a[column]).sum()
    };
    let rows = factors.b.chunks_exact(factors.rank);
    rows.map(|row| (0..n_cols).map(|column| number(row, column)).collect())
        .collect()
}

fn turned(x: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let column = |i| x.iter().map(|row| row[i]).collect();
    (0..x[0].len()).map(column).collect()
}

/// Compares the factors of a pair for the stack `name` with what PEFT adds to it; each tensor takes these rows of an
/// expert's outputs.
fn check(wanted: &[Wanted], module: &str, name: &str, tensors: &[(&str, &[usize])]) {
    let stacks = Stacks::new(wanted);
    let stack = stacks.0[module].iter().find(|stack| stack.name == name);
    let stack = stack.expect("the module has it");
    for a_takes_inputs in [true, false] {
        let n = N_EXPERT * RANK;
        let [inputs, outputs] = [stack.columns, stack.rows].map(fits);
        let [a, b] = match a_takes_inputs {
            true => [inputs, outputs],
            false => [outputs, inputs],
        };
        let all = Pair {
            rank: RANK,
            a: numbers(n * a, 1.0),
            b: numbers(b * n, -7.0),
            scale: 0.5,
        };
        let found = stack.factors(&all, a_takes_inputs, wanted);
        assert_eq!(found.len(), N_EXPERT * tensors.len());
        for (expert, own) in found.chunks_exact(tensors.len()).enumerate() {
            let whole = product(&all, expert);
            let whole = if a_takes_inputs {
                whole
            } else {
                turned(&whole)
            };
            for ((order, own), (name, rows)) in own.iter().zip(tensors) {
                assert_eq!(own.tensor, format!("blk.0.ffn_{name}_exps.weight"));
                assert_eq!(
                    (&wanted[order.tensor].name, order.part),
                    (&own.tensor, expert)
                );
                assert_eq!(own.part, Some(narrow(expert as u64)));
                let expected: Vec<_> = rows.iter().map(|&row| whole[row].clone()).collect();
                assert_eq!(
                    product_of(own),
                    expected,
                    "{name} {expert} {a_takes_inputs}"
                );
            }
        }
    }
}

#[test]
fn rows_and_columns_are_found_by_expert() {
    let wanted = gated(2, 3);
    let (module, gate_up) = ("layers.0.mlp.experts", "gate_up_proj");
    assert_eq!(
        names(&Stacks::new(&wanted).0[module]),
        [gate_up, "down_proj"]
    );
    check(
        &wanted,
        module,
        gate_up,
        &[("gate", &[0, 1]), ("up", &[2, 3])],
    );
    check(&wanted, module, "down_proj", &[("down", &[0, 1, 2])]);
}

#[test]
fn experts_without_gates_have_ups() {
    let wanted = [
        apart("down", "down_proj", [3, 2]),
        apart("up", "up_proj", [2, 3]),
    ];
    let module = "layers.0.mlp.experts";
    assert_eq!(
        names(&Stacks::new(&wanted).0[module]),
        ["up_proj", "down_proj"]
    );
    check(&wanted, module, "up_proj", &[("up", &[0, 1])]);
}

#[test]
fn gates_and_ups_may_take_turns_in_columns() {
    let turns = |start, step| Change::Turned { start, step, of: 3 };
    let (source, dims) = ("layers.0.mlp.experts.gate_up_proj", [[2, 3], [3, 4]]);
    let down = Change::Turned {
        start: 0,
        step: 1,
        of: 2,
    };
    let wanted = [
        stored(
            "down",
            "layers.0.mlp.experts.down_proj",
            [[3, 2], [2, 3]],
            down,
        ),
        stored("gate", source, dims, turns(0, 2)),
        stored("up", source, dims, turns(1, 2)),
    ];
    let module = "layers.0.mlp.experts";
    assert_eq!(
        names(&Stacks::new(&wanted).0[module]),
        ["gate_up_proj", "down_proj"]
    );
    check(
        &wanted,
        module,
        "gate_up_proj",
        &[("gate", &[0, 2]), ("up", &[1, 3])],
    );
    check(&wanted, module, "down_proj", &[("down", &[0, 1, 2])]);
}

#[test]
fn gates_and_ups_may_be_one_tensor_or_have_other_names() {
    let source = "layers.0.experts.gate_up_proj";
    let wanted = [stored("gate_up", source, [[4, 3]; 2], Change::None)];
    check(
        &wanted,
        "layers.0.experts",
        "gate_up_proj",
        &[("gate_up", &[0, 1, 2, 3])],
    );

    let source = "layers.0.moe.input_linear.weight";
    let rows = |start| {
        Change::Rows(vec![Slice {
            start,
            len: 2,
            of: 4,
            n: 6,
        }])
    };
    let wanted = [
        stored("gate", source, [[2, 3], [4, 3]], rows(0)),
        stored("up", source, [[2, 3], [4, 3]], rows(2)),
    ];
    let tensors: [(&str, &[usize]); 2] = [("gate", &[0, 1]), ("up", &[2, 3])];
    check(&wanted, "layers.0.moe.input_linear", "weight", &tensors);
    check(&wanted, "layers.0.moe.experts", "gate_up_proj", &tensors);
}

/// Sizes of the pair for a parameter with these numbers of outputs and inputs, if A takes the inputs.
fn sizes(rank: u64, [rows, columns]: [u64; 2]) -> Sizes {
    let of_all = rank * N_EXPERT as u64;
    let (a, b) = ([of_all, columns], [rows, of_all]);
    Sizes { a, b }
}

fn exchanged(Sizes { a, b }: Sizes) -> Sizes {
    let (a, b) = ([a[0], b[0]], [a[1], b[1]]);
    Sizes { a, b }
}

/// The assignment of pairs to the parameters of `wanted` with these ranks.
fn assigned(
    wanted: &[Wanted],
    pairs: &[Sizes],
    ranks: &[(&str, u32)],
    is_known: bool,
) -> Result<(Vec<usize>, bool), String> {
    let stacks = Stacks::new(wanted);
    let stacks = &stacks.0["layers.0.mlp.experts"];
    let adapted = ranks.iter().map(|(name, rank)| {
        let stack = stacks.iter().find(|stack| stack.name == *name);
        (stack.expect("the module has it"), *rank)
    });
    let adapted: Vec<_> = adapted.collect();
    assign(Path::new("a"), "m", pairs, &adapted, is_known).map_err(|error| error.to_string())
}

#[test]
fn sizes_say_which_pair_is_whose() {
    let ranks = [("gate_up_proj", 8), ("down_proj", 4)];
    let (wanted, gate_up, down) = (gated(6, 10), sizes(8, [12, 10]), sizes(4, [10, 6]));
    for is_known in [true, false] {
        let find = |pairs: &[Sizes]| assigned(&wanted, pairs, &ranks, is_known);
        assert_eq!(find(&[gate_up, down]), Ok((vec![0, 1], true)));
        assert_eq!(find(&[down, gate_up]), Ok((vec![1, 0], true)));
        let older = [gate_up, down].map(exchanged);
        assert_eq!(find(&older), Ok((vec![0, 1], false)));
    }
}

#[test]
fn a_square_parameter_goes_by_the_other_or_by_the_version() {
    let (wanted, gate_up, down) = (gated(10, 10), sizes(4, [20, 10]), sizes(4, [10, 10]));
    let ranks = [("gate_up_proj", 4), ("down_proj", 4)];
    let both = [gate_up, down];
    assert_eq!(
        assigned(&wanted, &both, &ranks, false),
        Ok((vec![0, 1], true))
    );
    let older = both.map(exchanged);
    assert_eq!(
        assigned(&wanted, &older, &ranks, false),
        Ok((vec![0, 1], false))
    );
    let alone = |is_known| assigned(&wanted, &[down], &ranks[1..], is_known);
    assert_eq!(alone(true), Ok((vec![0], true)));
    let error = alone(false).expect_err("the sizes fit both ways");
    assert!(
        error.contains("m has matrices (down_proj) whose sizes and peft_version"),
        "{error}"
    );
}

#[test]
fn ups_and_downs_of_the_same_sizes_go_by_the_version() {
    let wanted = [
        apart("down", "down_proj", [10, 6]),
        apart("up", "up_proj", [6, 10]),
    ];
    let (ranks, pairs) = ([("up_proj", 4), ("down_proj", 4)], [[6, 10], [10, 6]]);
    let find = |is_known| assigned(&wanted, &pairs.map(|dims| sizes(4, dims)), &ranks, is_known);
    assert_eq!(find(true), Ok((vec![0, 1], true)));
    find(false).expect_err("with A for outputs the order would be another");
}

#[test]
fn other_sizes_are_refused_by_name() {
    let (wanted, ranks) = (gated(6, 10), [("gate_up_proj", 4)]);
    for (pair, expected) in [
        (
            sizes(4, [12, 8]),
            "m.gate_up_proj was made for 12 x 8, but the model has 12 x 10",
        ),
        (
            sizes(2, [12, 10]),
            "has 6 rows of A and 6 columns of B, but 3 experts of rank 4 have 12",
        ),
    ] {
        let error = assigned(&wanted, &[pair], &ranks, true).expect_err(expected);
        assert!(error.contains(expected), "{error}");
    }
    let (ranks, mixed) = (
        [("gate_up_proj", 4), ("down_proj", 4)],
        [sizes(4, [12, 10]), exchanged(sizes(4, [10, 6]))],
    );
    assigned(&wanted, &mixed, &ranks, true).expect_err("PEFT does not mix them");
}
