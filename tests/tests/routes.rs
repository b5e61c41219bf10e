//! Changed bodies for every route, few of them: `tests/examples/fuzz_routes.rs` sends more.

use sluice_tests::routes::fuzz_routes;
use std::path::Path;

#[test]
fn no_body_is_answered_by_a_server_error() {
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
    );
    let tally = fuzz_routes(Path::new(model), 2000, 7).unwrap();
    assert_eq!(tally.n_faults, 0, "{}", tally.faults.join("\n"));
    // Some are answered, and most are refused.
    let n = |status: u16| tally.by_status.get(&status).copied().unwrap_or(0);
    assert!(n(200) > 50 && n(400) > 500, "{:?}", tally.by_status);
}
