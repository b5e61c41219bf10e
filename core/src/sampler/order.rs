//! The samplers that a chain runs, and their order: llama.cpp's names and letters.

use core::fmt;

/// A sampler that a chain can run, by the name that llama.cpp gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplerKind {
    /// Penalties for tokens that occurred.
    Penalties,
    /// Penalties for tokens that would continue a repetition.
    Dry,
    /// Keeps tokens within this many standard deviations of the best.
    TopNSigma,
    /// Keeps this many likeliest tokens.
    TopK,
    /// Keeps tokens about as surprising as the distribution is on average.
    TypicalP,
    /// Keeps the likeliest tokens that reach this probability together.
    TopP,
    /// Keeps tokens with at least a share of the best one's probability.
    MinP,
    /// Sometimes leaves out the likeliest tokens.
    Xtc,
    /// Divides the logits.
    Temperature,
}

impl SamplerKind {
    /// All of them, in llama.cpp's default order.
    pub const ALL: [Self; 9] = [
        Self::Penalties,
        Self::Dry,
        Self::TopNSigma,
        Self::TopK,
        Self::TypicalP,
        Self::TopP,
        Self::MinP,
        Self::Xtc,
        Self::Temperature,
    ];

    /// Its name in `--samplers`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.spellings().1[0]
    }

    /// Its letter in `--sampling-seq`.
    #[must_use]
    pub const fn letter(self) -> char {
        self.spellings().0
    }

    /// The sampler of a name: llama.cpp's own or one of its aliases, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        let spells = |kind: &Self| {
            let (_, names) = kind.spellings();
            names.iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        Self::ALL.into_iter().find(spells)
    }

    /// The sampler of a letter.
    #[must_use]
    pub fn from_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.letter() == letter)
    }

    const fn spellings(self) -> (char, &'static [&'static str]) {
        match self {
            Self::Penalties => ('e', &["penalties"]),
            Self::Dry => ('d', &["dry"]),
            Self::TopNSigma => ('s', &["top_n_sigma", "top-n-sigma", "topnsigma"]),
            Self::TopK => ('k', &["top_k", "top-k", "topk"]),
            Self::TypicalP => ('y', &["typ_p", "typ-p", "typp", "typ"]),
            Self::TopP => ('p', &["top_p", "top-p", "topp", "nucleus"]),
            Self::MinP => ('m', &["min_p", "min-p", "minp"]),
            Self::Xtc => ('x', &["xtc"]),
            Self::Temperature => ('t', &["temperature", "temp"]),
        }
    }
}

/// Up to [`SamplerOrder::LEN_MAX`] samplers in the order in which they run; any may be left out
/// or occur twice.
#[derive(Clone, Copy)]
pub struct SamplerOrder {
    kinds: [SamplerKind; Self::LEN_MAX],
    len: usize,
}

impl SamplerOrder {
    /// Maximum number of samplers in a chain.
    pub const LEN_MAX: usize = 16;

    /// llama.cpp's: `penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature`.
    pub const DEFAULT: Self = {
        let mut kinds = [SamplerKind::Penalties; Self::LEN_MAX];
        let mut len = 0;
        while len < SamplerKind::ALL.len() {
            kinds[len] = SamplerKind::ALL[len];
            len += 1;
        }
        Self { kinds, len }
    };

    /// These samplers in this order.
    ///
    /// # Errors
    /// There are more than [`Self::LEN_MAX`].
    pub fn new(
        kinds: impl IntoIterator<Item = SamplerKind>,
    ) -> Result<Self, SamplerOrderError<'static>> {
        Self::collect(kinds.into_iter().map(Ok))
    }

    /// The order given by names separated by semicolons. Without names, no sampler runs.
    ///
    /// # Errors
    /// A name that is not known; more than [`Self::LEN_MAX`] of them.
    pub fn from_names(names: &str) -> Result<Self, SamplerOrderError<'_>> {
        let written = names.split(';').map(str::trim);
        Self::collect(
            written
                .filter(|name| !name.is_empty())
                .map(|name| SamplerKind::from_name(name).ok_or(SamplerOrderError::Unknown(name))),
        )
    }

    /// The order given by a row of letters, such as `edskypmxt`.
    ///
    /// # Errors
    /// A letter that is not known; more than [`Self::LEN_MAX`] of them.
    pub fn from_letters(letters: &str) -> Result<Self, SamplerOrderError<'_>> {
        Self::collect(letters.char_indices().map(|(at, letter)| {
            let written = &letters[at..at + letter.len_utf8()];
            SamplerKind::from_letter(letter).ok_or(SamplerOrderError::Unknown(written))
        }))
    }

    fn collect<'s>(
        kinds: impl Iterator<Item = Result<SamplerKind, SamplerOrderError<'s>>>,
    ) -> Result<Self, SamplerOrderError<'s>> {
        let mut order = Self {
            len: 0,
            ..Self::DEFAULT
        };
        for kind in kinds {
            let kind = kind?;
            let slot = order.kinds.get_mut(order.len);
            *slot.ok_or(SamplerOrderError::TooLong)? = kind;
            order.len += 1;
        }
        Ok(order)
    }

    /// The samplers, first to last.
    #[must_use]
    pub fn as_slice(&self) -> &[SamplerKind] {
        &self.kinds[..self.len]
    }

    /// Whether `kind` is one of them.
    #[must_use]
    pub fn contains(&self, kind: SamplerKind) -> bool {
        self.as_slice().contains(&kind)
    }
}

impl Default for SamplerOrder {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl PartialEq for SamplerOrder {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for SamplerOrder {}

impl fmt::Debug for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// Writes the names as `--samplers` takes them.
impl fmt::Display for SamplerOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, kind) in self.as_slice().iter().enumerate() {
            let separator = if index == 0 { "" } else { ";" };
            write!(f, "{separator}{}", kind.name())?;
        }
        Ok(())
    }
}

/// Why a written order is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SamplerOrderError<'s> {
    /// No sampler has this name or letter.
    Unknown(&'s str),
    /// More than [`SamplerOrder::LEN_MAX`] samplers.
    TooLong,
}

impl fmt::Display for SamplerOrderError<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(name) => write!(f, "unknown sampler \"{name}\"; expected ")?,
            Self::TooLong => return write!(f, "more than {} samplers", SamplerOrder::LEN_MAX),
        }
        for (index, kind) in SamplerKind::ALL.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(f, "{separator}{} ({})", kind.name(), kind.letter())?;
        }
        Ok(())
    }
}

impl core::error::Error for SamplerOrderError<'_> {}
