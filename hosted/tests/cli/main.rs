//! The program `sluice` from the outside: what it prints, says and returns.

mod inspect;
mod interrupt;
mod quantize;
mod run;
mod support;
