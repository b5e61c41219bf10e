//! The two functions of `wasm/sparse.rs` on this machine: WebAssembly has the same bits (`tests/portable.sh`).

use sluice_examples::SparseEngineWasm;

/// The first outputs, also read by `tests/portable.sh`.
const BITS: &str = "3e261c5a bd8f516a be53cca6 be9b63b9";

#[test]
fn the_wasm_functions_have_these_bits_here_too() {
    let engine = SparseEngineWasm::new(64, 256, 0.25).expect("numbers in range");
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
}
