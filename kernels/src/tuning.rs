//! What is fastest on which CPU: a constant for each maker and generation, and thresholds that all share.
//!
//! No bit of a result depends on a number here. How each was measured is in docs/performance.md, "Kernel
//! tuning".

use crate::args::Prefetch;
use crate::cpu::Maker;
use crate::kv::{KvLayout, KvType};
use crate::panel::{LINE_BYTES, WeightType};

/// The settings that CPUs of one maker and generation are fastest with.
#[derive(Debug)]
pub(crate) struct Tuning {
    /// AVX-512: maximum number of tokens that are multiplied four at a time, with lines unpacked in registers; more are
    /// multiplied in tiles, whose panels are unpacked into memory once.
    pub(crate) few_max: FewMax,
    /// How far ahead products of few tokens prefetch weights.
    pub(crate) weights: Weights,
    /// How far ahead attention prefetches keys and values.
    pub(crate) kv: KvAhead,
    /// AVX-512: whether two dots become a pair of words by a shift and a masked move, or else by one
    /// masked shuffle.
    pub(crate) pairs_by_shifts: bool,
    /// How frames of samples are prefetched.
    pub(crate) scan: Scan,
}

impl Tuning {
    /// The tuning for this CPU.
    #[inline]
    pub(crate) fn detect() -> &'static Self {
        Self::of(Maker::detect())
    }

    /// The tuning for CPUs of `maker`.
    #[inline]
    pub(crate) const fn of(maker: Maker) -> &'static Self {
        match maker {
            Maker::AmdBeforeZen5 => &ZEN_4,
            Maker::Amd => &ZEN_5,
            Maker::Other => &OTHER,
        }
    }
}

/// AMD, Zen 4 and before: 512 bits are multiplied in two halves, and the first-level cache waits for few
/// lines at once, while prefetchers fill the second level.
static ZEN_4: Tuning = Tuning {
    few_max: FewMax {
        lean: usize::MAX,
        q4_k: 64,
        others: 24,
    },
    weights: Weights {
        one: Paces {
            near: to_l1(2 * LINE_BYTES),
            far: to_l2(6144),
        },
        one_wide: Paces::both(to_both(LINE_BYTES, 6144)),
        few: Paces::both(to_l2(6144)),
        few_wide: Paces::both(to_l2(6144)),
    },
    kv: KvAhead::KeysToL2,
    pairs_by_shifts: true,
    scan: AMD_SCAN,
};

/// AMD, Zen 5 and later.
static ZEN_5: Tuning = Tuning {
    few_max: FewMax::all(8),
    weights: Weights {
        one: Paces {
            near: to_l1(6144),
            far: to_both(LINE_BYTES, 4096),
        },
        one_wide: Paces {
            near: to_l1(6144),
            far: to_both(LINE_BYTES, 4096),
        },
        few: Paces {
            near: to_l1(12288),
            far: to_l1(6144),
        },
        few_wide: Paces {
            near: to_both(6144, 12288),
            far: to_both(LINE_BYTES, 4096),
        },
    },
    kv: KV_TO_L1,
    pairs_by_shifts: true,
    scan: AMD_SCAN,
};

/// Other makers; timed on Intel's Emerald Rapids, attention not at all.
static OTHER: Tuning = Tuning {
    few_max: FewMax::all(8),
    weights: Weights {
        one: Paces {
            near: to_l1(4096),
            far: to_both(3072, 12288),
        },
        one_wide: Paces {
            near: to_l1(4096),
            far: to_both(3072, 12288),
        },
        few: Paces::both(to_both(3072, 12288)),
        few_wide: Paces::both(to_both(3072, 12288)),
    },
    kv: KV_TO_L1,
    pairs_by_shifts: false,
    scan: Scan {
        by_frames: true,
        n_frames: 3,
    },
};

const KV_TO_L1: KvAhead = KvAhead::BytesToL1 {
    q8_0: 12288,
    q4_0: 8192,
    others: 6144,
};

const AMD_SCAN: Scan = Scan {
    by_frames: false,
    n_frames: 5,
};

/// Tokens up to which a type is multiplied in parts of few.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FewMax {
    /// Q4_0 and Q8_0, which need next to no unpacking.
    lean: usize,
    q4_k: usize,
    others: usize,
}

impl FewMax {
    const fn all(n: usize) -> Self {
        Self {
            lean: n,
            q4_k: n,
            others: n,
        }
    }

    pub(crate) const fn of(self, ty: WeightType) -> usize {
        match ty {
            WeightType::Q4_0 | WeightType::Q8_0 => self.lean,
            WeightType::Q4_K => self.q4_k,
            _ => self.others,
        }
    }
}

/// Bytes ahead that lines are prefetched into the first-level and into the second-level cache.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distances {
    pub(crate) to_l1: Option<usize>,
    pub(crate) to_l2: Option<usize>,
}

const fn to_l1(bytes: usize) -> Distances {
    Distances {
        to_l1: Some(bytes),
        to_l2: None,
    }
}

const fn to_l2(bytes: usize) -> Distances {
    Distances {
        to_l1: None,
        to_l2: Some(bytes),
    }
}

const fn to_both(l1: usize, l2: usize) -> Distances {
    Distances {
        to_l1: Some(l1),
        to_l2: Some(l2),
    }
}

/// Distances for memory that answers quickly, and slowly.
#[derive(Clone, Copy, Debug)]
struct Paces {
    near: Distances,
    far: Distances,
}

impl Paces {
    /// The same distances for both.
    const fn both(distances: Distances) -> Self {
        Self {
            near: distances,
            far: distances,
        }
    }
}

/// Distances of products with few tokens, by tokens and by the bytes that a step reads.
#[derive(Debug)]
pub(crate) struct Weights {
    /// One token.
    one: Paces,
    /// One token, wide steps.
    one_wide: Paces,
    /// Two to four tokens.
    few: Paces,
    /// Two to four tokens, wide steps.
    few_wide: Paces,
}

impl Weights {
    /// For `n_tokens` tokens and `step_bytes` bytes of weights in a step.
    pub(crate) const fn distances(
        &self,
        n_tokens: usize,
        step_bytes: usize,
        prefetch: Prefetch,
    ) -> Distances {
        /// Steps of more bytes than this are wide: those with Q8_0 weights.
        const STEP_BYTES: usize = 512;
        let paces = match (n_tokens, step_bytes > STEP_BYTES) {
            (1, false) => self.one,
            (1, true) => self.one_wide,
            (_, false) => self.few,
            (_, true) => self.few_wide,
        };
        match prefetch {
            Prefetch::Near => paces.near,
            Prefetch::Far => paces.far,
        }
    }
}

/// How far ahead of where it reads attention prefetches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Distance {
    pub(crate) bytes: usize,
    /// Whether into the second-level cache, rather than the first.
    pub(crate) to_l2: bool,
}

/// How far ahead of where it reads attention prefetches keys and values.
#[derive(Clone, Copy, Debug)]
pub(crate) enum KvAhead {
    /// As many bytes as a block has keys, into the second-level cache.
    KeysToL2,
    /// By the type of the keys, into the first-level cache: types that take longer for a byte want more.
    BytesToL1 {
        q8_0: usize,
        q4_0: usize,
        others: usize,
    },
}

impl KvAhead {
    /// For blocks of a layout.
    pub(crate) const fn distance(self, layout: &KvLayout) -> Distance {
        let (q8_0, q4_0, others) = match self {
            Self::KeysToL2 => {
                return Distance {
                    bytes: layout.k_bytes(),
                    to_l2: true,
                };
            }
            Self::BytesToL1 { q8_0, q4_0, others } => (q8_0, q4_0, others),
        };
        let bytes = match layout.type_k {
            KvType::Q8_0 => q8_0,
            KvType::Q4_0 => q4_0,
            KvType::F32 | KvType::F16 | KvType::BF16 | KvType::FP8 => others,
        };
        Distance {
            bytes,
            to_l2: false,
        }
    }
}

/// How frames of samples are prefetched.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scan {
    /// Whether a scan prefetches whole later frames; otherwise [`SCAN_LINES_AHEAD`].
    pub(crate) by_frames: bool,
    /// Frames to prefetch while features are computed: the number that memory can deliver in that time.
    pub(crate) n_frames: usize,
}

/// Lines ahead that a scan prefetches if it does not prefetch whole frames: into the second-level cache and into the
/// first. The same for all CPUs, so that loops have them in their instructions.
pub(crate) const SCAN_LINES_AHEAD: [usize; 2] = [48, 4];

/// AVX-512: queries in a chunk of attention, and from how many on such a chunk pays, filled or not.
pub(crate) const AVX512_CHUNKS: &[(usize, usize)] = &[(12, 9), (8, 5), (4, 2), (1, 1)];

/// AVX2: as [`AVX512_CHUNKS`].
pub(crate) const AVX2_CHUNKS: &[(usize, usize)] = &[(4, 2), (1, 1)];

/// AVX2: tokens from which splitting codes of 8 bits into halves costs less than it saves.
pub(crate) const AVX2_SPLIT_TOKENS: usize = 16;

/// AVX-512: whether a product with `n_tokens` tokens prefetches half a step at a time, between its loads. True for one
/// token, in types whose steps are many lines.
pub(crate) const fn prefetches_in_halves(ty: WeightType, n_tokens: usize) -> bool {
    use WeightType::{Q4_K, Q5_K, Q6_K, Q8_0};
    n_tokens == 1 && matches!(ty, Q4_K | Q5_K | Q6_K | Q8_0)
}
