//! The two functions of `wasm/sparse.rs` on this machine: WebAssembly has the same bits (`tests/portable.sh`).

use sluice_examples::SparseEngineWasm;

/// The first outputs, also read by `tests/portable.sh`.
const BITS: &str = "3e261c5a bd8f516a be53cca6 be9b63b9";

#[test]
fn the_wasm_functions_have_these_bits_here_too() {
    let mut engine = SparseEngineWasm::new(64, 256, 0.25).expect("numbers in range");
    let input: Vec<f32> = (0..64).map(|i| (i * 37 % 64) as f32 / 32.0 - 1.0).collect();
    let mut out = [0.0; 64];
    engine.infer(&input, &mut out).expect("an input that fits");
    let bits = out[..4].iter().map(|x| format!("{:08x}", x.to_bits()));
    assert_eq!(bits.collect::<Vec<_>>().join(" "), BITS);
    let error = engine
        .infer(&input[..63], &mut out)
        .expect_err("a short input");
    assert_eq!(error.to_string(), "input has 63 elements: expected 64");
    assert!(SparseEngineWasm::new(64, 256, f32::NAN).is_err());
    for (input, hidden, text) in [
        (0, 256, "input_dim is 0: expected at least 1"),
        (
            1 << 40,
            1 << 40,
            "hidden_dim is 1099511627776: expected a size in memory",
        ),
    ] {
        let error = SparseEngineWasm::new(input, hidden, 0.5).expect_err("sizes out of range");
        assert_eq!(error.to_string(), text);
    }
}

/// A rank of half the width, and an input that the first half of the columns does not see.
#[test]
fn the_predictor_finds_neurons_by_all_columns() {
    let mut few = SparseEngineWasm::new(256, 512, 0.3).expect("numbers in range");
    let mut all = SparseEngineWasm::new(256, 512, 1.0).expect("numbers in range");
    let number = |i: usize| {
        if i < 128 {
            0.0
        } else {
            (i * 37 % 64) as f32 / 8.0 - 4.0
        }
    };
    let input: Vec<f32> = (0..256).map(number).collect();
    let (mut some, mut dense) = ([0.0; 256], [0.0; 256]);
    few.infer(&input, &mut some).expect("an input that fits");
    all.infer(&input, &mut dense).expect("an input that fits");
    let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
    let apart: Vec<f32> = some.iter().zip(&dense).map(|(a, b)| a - b).collect();
    let lost = square(&apart) / square(&dense);
    assert!(lost < 0.4, "{lost}");
}
