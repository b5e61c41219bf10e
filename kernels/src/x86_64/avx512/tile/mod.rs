//! Tiles of integer types, in assembly: the products of four tokens and two panels over a group.
//!
//! What stays in registers decides their speed: stores of whole vectors, and the shuffles that
//! compilers make of values they saw stored, take the time of products. Compilers choose
//! differently from version to version and from profile to profile, and none did as well.
//!
//! Two blocks or sub-blocks are multiplied at once, which is sixteen sums: on Intel's CPUs ten have to
//! be under way, because a sum waits for the one before.

mod block;
mod super_block;

pub(super) use block::BlockTile;
pub(super) use super_block::{Corrections, SuperBlockTile, scaling};

/// Tokens of a tile.
pub(super) const TOKENS: usize = 4;
/// Panels of a tile.
pub(super) const PANELS: usize = 2;
/// Panels that are unpacked at once: a tile's tokens are multiplied with all of them while they are
/// in the first-level cache, and so are the panels, at most 21 KiB of it.
pub(super) const STRIP_PANELS: usize = 4;

/// What dots start with: where it is for the first token, how far on for each, and the token's
/// register for either panel.
macro_rules! start {
    ($first_token:literal, $($at:literal $first:literal $second:literal),*) => {
        concat!(
            $("vpbroadcastd zmm", $first, ", dword ptr [", $first_token, " + ", $at, "]\n",
              "vpbroadcastd zmm", $second, ", dword ptr [", $first_token, " + ", $at, "]\n",)*
        )
    };
}

/// Adds a line to dots: where it is, and for each token where its columns are, and its register for
/// either panel.
///
/// A token's columns are loaded once for both panels, because Intel's CPUs multiply as many vectors in a
/// cycle as they load. Changes registers 24 to 26.
macro_rules! dots {
    ($w:literal, $($x:literal $first:literal $second:literal),*) => {
        concat!(
            "vmovdqa64 zmm24, zmmword ptr [", $w, "]\n",
            "vmovdqa64 zmm25, zmmword ptr [", $w, " + {panel}]\n",
            $("vpbroadcastd zmm26, dword ptr [", $x, "]\n",
              "vpdpbusd zmm", $first, ", zmm24, zmm26\n",
              "vpdpbusd zmm", $second, ", zmm25, zmm26\n",)*
        )
    };
}

macro_rules! zero {
    ($($register:literal)*) => {
        concat!($("vpxord zmm", $register, ", zmm", $register, ", zmm", $register, "\n",)*)
    };
}

use {dots, start, zero};
