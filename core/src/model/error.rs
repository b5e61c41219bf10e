//! Why a file cannot be run as a model.

use super::architecture::Architecture;
use crate::gguf::GgufError;
use crate::gguf::source::SourceError;
use crate::kernels::GgmlType;
use crate::kernels::panel::PanelError;
use crate::memory::MemoryError;
use core::fmt::{self, Write as _};

/// A short name kept by value (a tensor, an architecture), cut at 63 bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name {
    bytes: [u8; 63],
    len: u8,
}

impl Name {
    /// The name that `arguments` format to.
    pub fn format(arguments: fmt::Arguments<'_>) -> Self {
        let mut name = Self {
            bytes: [0; 63],
            len: 0,
        };
        // Names that are too long are cut: they serve messages and look-ups of short names.
        let _cut = name.write_fmt(arguments);
        name
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.len)]).unwrap_or("")
    }
}

impl From<&str> for Name {
    fn from(text: &str) -> Self {
        Self::format(format_args!("{text}"))
    }
}

impl fmt::Write for Name {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            let at = usize::from(self.len);
            let room = self
                .bytes
                .get_mut(at..at + c.len_utf8())
                .ok_or(fmt::Error)?;
            c.encode_utf8(room);
            #[expect(
                clippy::cast_possible_truncation,
                reason = "a character has 1 to 4 bytes"
            )]
            {
                self.len += c.len_utf8() as u8;
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Escaped: it comes from a file and is printed to a terminal.
        write!(f, "{}", self.as_str().escape_debug())
    }
}

/// Why a GGUF file cannot be run as a model.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
#[expect(missing_docs, reason = "the fields are described with their variants")]
pub enum ModelError {
    /// The header is broken, or a key is missing or of another type.
    Gguf(GgufError),
    /// The value of `general.architecture` is not supported.
    UnknownArchitecture { name: Name },
    /// The file has no tensors: it is only a vocabulary.
    NoTensors,
    /// A setting is outside the supported range.
    Setting {
        key: Name,
        value: f64,
        expected: &'static str,
    },
    /// A feature of the file that is not implemented.
    NotImplemented { what: &'static str, name: Name },
    /// Far more layers times tensors than any model has: looking them up would take too long.
    TooManyTensors { n_layer: usize, n_tensors: u64 },
    /// A required tensor is missing.
    MissingTensor { name: Name },
    /// A tensor's shape differs from the one that the metadata implies; both as (rows, columns).
    TensorShape {
        name: Name,
        expected: [u64; 2],
        found: [u64; 2],
    },
    /// The shape of the experts' matrices differs from the one that the metadata implies; both as (experts, rows,
    /// columns).
    ExpertShape {
        name: Name,
        expected: [u64; 3],
        found: [u64; 3],
    },
    /// A tensor has more than two dimensions.
    TensorDimensions { name: Name, found: usize },
    /// A tensor that must be of type F32 is not.
    TensorType {
        name: Name,
        expected: GgmlType,
        found: GgmlType,
    },
    /// A tensor cannot be laid out in panels.
    Panel { name: Name, error: PanelError },
    /// Parts of a tensor do not begin at whole panels of 16 rows.
    PartNotAligned { name: Name, first_row: usize },
    /// The plan was made for another file, or for other weights.
    OtherPlan,
    /// Another activation cannot stand in the place of the model's own.
    ActivationFixed {
        /// The model's architecture.
        architecture: &'static str,
        /// The name of the activation that it has.
        current: &'static str,
    },
    /// A head that predicts one more token, without the model whose file it is part of: see
    /// [`super::Loader::finish_head`].
    NeedsTrunk,
    /// A model that is not a head, or the trunk of another head.
    OtherTrunk,
    /// A weight is NaN or infinite where the format holds it as a float.
    WeightNotFinite { name: Name },
    /// A tensor of a `.slc` file is laid out differently from what the model reads.
    NotInPlace {
        name: Name,
        expected: &'static str,
        found: &'static str,
    },
    /// The caller's memory does not fit the plan.
    Memory(MemoryError),
    /// A tensor could not be read.
    Source { name: Name, error: SourceError },
    /// [`super::Loader::finish`] before all work was done.
    NotLoaded,
}

impl fmt::Display for ModelError {
    #[expect(clippy::too_many_lines, reason = "one arm a variant")]
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gguf(error) => error.fmt(f),
            Self::UnknownArchitecture { name } => {
                write!(f, "architecture \"{name}\" is not supported yet (")?;
                let names = Architecture::all().map(Architecture::name);
                for (i, name) in names.clone().enumerate() {
                    // Two sites may share a name.
                    if names.clone().take(i).any(|earlier| earlier == name) {
                        continue;
                    }
                    let comma = if i > 0 { ", " } else { "" };
                    write!(f, "{comma}{name}")?;
                }
                f.write_str(" are)")
            }
            Self::NoTensors => f.write_str("the file has a vocabulary but no tensors"),
            Self::Setting {
                key,
                value,
                expected,
            } => {
                write!(f, "{key} is {}, expected {expected}", Decimal(*value))
            }
            Self::NotImplemented { what, name } => {
                write!(f, "{what} ({name}) is not implemented yet")
            }
            Self::TooManyTensors { n_layer, n_tensors } => {
                write!(f, "{n_layer} layers in {n_tensors} tensors are too many")
            }
            Self::MissingTensor { name } => write!(f, "tensor {name} is missing"),
            Self::TensorShape {
                name,
                expected: [er, ec],
                found: [r, c],
            } => {
                write!(
                    f,
                    "tensor {name} has {r} rows of {c}, expected {er} rows of {ec}"
                )
            }
            Self::ExpertShape {
                name,
                expected: [ee, er, ec],
                found: [e, r, c],
            } => write!(
                f,
                "tensor {name} has {e} experts of {r} rows of {c}, expected {ee} of {er} rows of {ec}"
            ),
            Self::TensorDimensions { name, found } => {
                write!(
                    f,
                    "tensor {name} has {found} dimensions, expected 2 at most"
                )
            }
            Self::TensorType {
                name,
                expected,
                found,
            } => {
                write!(f, "tensor {name} is of type {found}, expected {expected}")
            }
            Self::Panel { name, error } => write!(f, "tensor {name}: {error}"),
            Self::PartNotAligned { name, first_row } => write!(
                f,
                "tensor {name} has a part that begins at row {first_row}, expected a multiple of 16"
            ),
            Self::NeedsTrunk => f.write_str("a head that predicts a token further needs its model"),
            Self::OtherTrunk => f.write_str("the model is not the one that the head belongs to"),
            Self::OtherPlan => f.write_str("the plan is one of another model"),
            Self::ActivationFixed {
                architecture,
                current,
            } => write!(
                f,
                "the activation of {architecture} ({current}) cannot be replaced: only gates of decoders with attention, \
                 which have SiLU or ReLU, can take another"
            ),
            Self::WeightNotFinite { name } => {
                write!(f, "tensor {name} holds a value that is not a finite number")
            }
            Self::NotInPlace {
                name,
                expected,
                found,
            } => write!(
                f,
                "tensor {name} is packed as {found}, expected {expected}: pack the file again"
            ),
            Self::Memory(error) => error.fmt(f),
            Self::Source { name, error } => write!(f, "tensor {name}: {error}"),
            Self::NotLoaded => f.write_str("not all tensors were loaded"),
        }
    }
}

impl core::error::Error for ModelError {}

impl From<GgufError> for ModelError {
    fn from(error: GgufError) -> Self {
        Self::Gguf(error)
    }
}

impl From<MemoryError> for ModelError {
    fn from(error: MemoryError) -> Self {
        Self::Memory(error)
    }
}

/// A number in a message, rounded to six places, with a power of ten if it is very large or small. The
/// library's formatting of `f64` is exact, and takes 18 KB of code.
struct Decimal(f64);

impl fmt::Display for Decimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.0 < 0.0 { "-" } else { "" };
        let mut digits = self.0.abs();
        if !digits.is_finite() {
            let name = if digits.is_nan() { "NaN" } else { "inf" };
            return write!(f, "{sign}{name}");
        }
        let mut exponent = 0;
        if digits > 0.0 && !(1e-3..1e12).contains(&digits) {
            while digits >= 10.0 {
                (digits, exponent) = (digits / 10.0, exponent + 1);
            }
            while digits < 1.0 {
                (digits, exponent) = (digits * 10.0, exponent - 1);
            }
        }
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "at most 10^18, and positive"
        )]
        let mut millionths = (digits * 1e6 + 0.5) as u64;
        if exponent != 0 && millionths == 10_000_000 {
            (millionths, exponent) = (1_000_000, exponent + 1);
        }
        let (mut places, mut n_places) = (millionths % 1_000_000, 6);
        write!(f, "{sign}{}", millionths / 1_000_000)?;
        if places > 0 {
            while places % 10 == 0 {
                (places, n_places) = (places / 10, n_places - 1);
            }
            write!(f, ".{places:0n_places$}")?;
        }
        match exponent {
            0 => Ok(()),
            exponent => write!(f, "e{exponent}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString;

    #[test]
    fn numbers_are_readable() {
        for (value, text) in [
            (0.0, "0"),
            (-32.0, "-32"),
            (0.1_f32.into(), "0.1"),
            (1.05, "1.05"),
            (4_294_967_296.0, "4294967296"),
            (1e300, "1e300"),
            (9_999_999_999_999.0, "1e13"),
            (-1.5e-7, "-1.5e-7"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(Decimal(value).to_string(), text);
        }
    }
}
