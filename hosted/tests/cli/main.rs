//! The program `sluice` from the outside: what it prints, says and returns.

mod convert;
mod import;
mod inspect;
mod interrupt;
mod perplexity;
mod quantize;
mod run;
mod slc;
mod support;
