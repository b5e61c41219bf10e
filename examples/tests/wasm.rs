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

/// Scores are the network's own where the rank is the width, so that the kept neurons are the ones of the largest products.
#[test]
fn the_predictor_finds_the_neurons_with_the_largest_products() {
    let mut few = SparseEngineWasm::new(32, 512, 0.3).expect("numbers in range");
    let mut all = SparseEngineWasm::new(32, 512, 1.0).expect("numbers in range");
    let input: Vec<f32> = (0..32).map(|i| (i * 37 % 64) as f32 / 8.0 - 4.0).collect();
    let (mut some, mut dense) = ([0.0; 32], [0.0; 32]);
    few.infer(&input, &mut some).expect("an input that fits");
    all.infer(&input, &mut dense).expect("an input that fits");
    let square = |x: &[f32]| x.iter().map(|x| x * x).sum::<f32>();
    let apart: Vec<f32> = some.iter().zip(&dense).map(|(a, b)| a - b).collect();
    assert!(
        square(&apart) < 0.05 * square(&dense),
        "{} of {}",
        square(&apart),
        square(&dense)
    );
}
