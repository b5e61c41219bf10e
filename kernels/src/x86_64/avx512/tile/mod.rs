//! Tiles of integer types, in assembly: the products of four tokens and two panels over a group.
//!
//! What stays in registers decides their speed: stores of whole vectors, and the shuffles that
//! compilers make of values they saw stored, take the time of products. Compilers choose
//! differently from version to version and from profile to profile, and none did as well.
//!
//! On Zen 4 two units do all of the multiplying, so a tile takes a cycle for each multiplication of
//! 512 bits; shifts, blends, conversions and additions run beside them. Broadcasts are loads.

mod block;
mod super_block;

pub(super) use block::BlockTile;
pub(super) use super_block::{Corrections, SuperBlockTile};

/// Tokens of a tile.
pub(super) const TOKENS: usize = 4;
/// Panels of a tile.
pub(super) const PANELS: usize = 2;
/// Panels that are unpacked at once: a tile's tokens are multiplied with all of them while they are
/// in the first-level cache, and so are the panels, at most 21 KiB of it.
pub(super) const STRIP_PANELS: usize = 4;

/// Dots of `$n` lines: for each token what they start with, where its columns are, and its register
/// for either panel. Moves on by as many lines and columns.
macro_rules! dots {
    ($n:literal, $($start:literal $x:literal $first:literal $second:literal),*) => {
        concat!(
            $("vpbroadcastd zmm", $first, ", dword ptr [", $start, "]\n",
              "vpbroadcastd zmm", $second, ", dword ptr [", $start, "]\n",)*
            "mov {n}, ", $n, "\n",
            "3:\n",
            "vmovdqa64 zmm24, zmmword ptr [{w}]\n",
            "vmovdqa64 zmm25, zmmword ptr [{w} + {panel}]\n",
            $("vpdpbusd zmm", $first, ", zmm24, dword ptr [", $x, "]{{1to16}}\n",
              "vpdpbusd zmm", $second, ", zmm25, dword ptr [", $x, "]{{1to16}}\n",)*
            "add {w}, 64\n",
            "add {x}, 4\n",
            "add {x3}, 4\n",
            "dec {n}\n",
            "jnz 3b\n",
        )
    };
}

macro_rules! zero {
    ($($register:literal)*) => {
        concat!($("vpxord zmm", $register, ", zmm", $register, ", zmm", $register, "\n",)*)
    };
}

use {dots, zero};
