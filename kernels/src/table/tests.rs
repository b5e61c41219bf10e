//! Every table computes the scalar table's bits; the scalar table computes what the formats say.

mod attention;
mod bf16;
mod lora;
mod misuse;
mod pinned;
mod products;
mod quantize;
mod recurrent;
mod rows;
