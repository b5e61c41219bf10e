//! The native half of the Python wheel `sluice`.
//!
//! `Service` is the server without connections: whatever it answers, Python answers with the same
//! bits. `Context` is one text, evaluated and sampled step by step. What has a Python shape alone
//! (classes of llama-cpp-python and vLLM, the peers' modules) is Python, in `python/sluice`.
//!
//! All that computes or waits lets other threads of Python run, and answers Ctrl-C.

mod callback;
mod context;
mod fork;
mod gate;
mod logits;
mod making;
mod model;
mod service;
mod tokenizer;

use pyo3::prelude::*;
use pyo3::wrap_pyfunction;
use std::ffi::OsString;

/// Does what a command line of the program `sluice` asks for, its name first; returns the exit code.
///
/// It is for a process of its own: it writes to stdout and stderr, and handles signals as the program does.
#[pyfunction]
fn main(py: Python<'_>, arguments: Vec<OsString>) -> u8 {
    py.detach(|| sluice_cli::main(arguments))
}

#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(main, module)?)?;
    service::register(module)?;
    model::register(module)?;
    context::register(module)?;
    tokenizer::register(module)?;
    gate::register(module)
}
