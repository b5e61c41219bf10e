//! The native half of the Python wheel `sluice`.
//!
//! `Service` is the server without connections: Python gets bit-identical answers. `Context` is one
//! text, evaluated and sampled step by step. Purely Pythonic APIs (the classes of llama-cpp-python and
//! vLLM, the peers' modules) are written in Python, in `python/sluice`.
//!
//! Everything that computes or waits lets other Python threads run, and reacts to Ctrl-C.

mod answers;
mod arguments;
mod asked;
mod callback;
mod config;
mod context;
mod fork;
mod gate;
mod logits;
mod making;
mod model;
mod requests;
mod service;
mod tokenizer;
mod values;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;
use std::ffi::OsString;

/// Runs a command line of the program `sluice`, which starts with the program's name; returns the exit code.
///
/// Call it in a process of its own: it writes to stdout and stderr, and handles signals as the program does.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| sluice_cli::main(arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    service::register(module)?;
    answers::register(module)?;
    requests::register(module)?;
    model::register(module)?;
    context::register(module)?;
    tokenizer::register(module)?;
    gate::register(module)
}
