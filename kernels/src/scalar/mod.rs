//! The reference kernels: plain loops, the specification that every table equals.
//!
//! They are generic over how a fused multiply-add is computed ([`crate::contract::Arith`]), and
//! `inline(always)`, so that a table may compile the same loops with more instructions enabled.

pub(crate) mod attention;
pub(crate) mod elementwise;
pub(crate) mod lora;
pub(crate) mod matmul;
pub(crate) mod normalize;
pub(crate) mod recurrent;
