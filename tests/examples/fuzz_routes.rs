//! Sends changed bodies to every route of a server: `fuzz_routes [N [SEED]]`, 200,000 by default, with
//! `cargo run --release -p sluice-tests --example`. A panic, a status 500 or an error that names no field fails it.
#![expect(clippy::print_stdout, reason = "a program of the tests")]

use core::error::Error;
use sluice_tests::routes::fuzz_routes;
use std::path::Path;
use std::time::Instant;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let n = arguments.next().transpose()?.unwrap_or(200_000);
    let seed = arguments.next().transpose()?.unwrap_or(1);
    let model = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../hosted/models/tale-5.8m-Q4_K_M.gguf"
    );
    let begun = Instant::now();
    let tally = fuzz_routes(Path::new(model), n, seed)?;
    for fault in &tally.faults {
        println!("{fault}");
    }
    let (seconds, routes) = (begun.elapsed().as_secs_f64(), tally.n_routes);
    println!(
        "{n} bodies to {routes} routes in {seconds:.0} s, seed {seed}; by status: {:?}",
        tally.by_status
    );
    match tally.n_faults {
        0 => Ok(()),
        n => Err(format!("{n} faults").into()),
    }
}
