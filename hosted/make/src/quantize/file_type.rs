//! The target types of a whole file, by llama.cpp's names.

use core::fmt;
use core::str::FromStr;
use sluice_core::kernels::GgmlType;

/// A type of file: the type of most of its tensors, or a mix of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileType {
    /// The name, such as `Q4_K_M`.
    pub name: &'static str,
    /// The value of `general.file_type` (`llama_ftype` in llama.cpp's `llama.h`, or the type's number in a `.slc` file).
    pub number: u32,
    /// The type of most tensors.
    pub base: GgmlType,
    /// Short description of the bits per weight, or of the mix.
    pub description: &'static str,
}

macro_rules! file_types {
    ($($name:literal = $number:literal, $base:ident, $description:literal;)*) => {
        /// All file types, smallest first; then the types of `.slc` files alone.
        pub const FILE_TYPES: &[FileType] = &[$(FileType {
            name: $name,
            number: $number,
            base: GgmlType::$base,
            description: $description,
        }),*];
    };
}

file_types! {
    "IQ1_S" = 24, IQ1_S, "1.56 bits";
    "TQ1_0" = 36, TQ1_0, "1.69 bits, three values";
    "IQ1_M" = 31, IQ1_M, "1.75 bits";
    "IQ2_XXS" = 19, IQ2_XXS, "2.06 bits";
    "TQ2_0" = 37, TQ2_0, "2.06 bits, three values";
    "IQ2_XS" = 20, IQ2_XS, "2.31 bits";
    "IQ2_S" = 28, IQ2_XS, "2.5 bits, mix";
    "IQ2_M" = 29, IQ2_S, "2.7 bits, mix";
    "Q2_K_S" = 21, Q2_K, "2.63 bits, requires an importance matrix";
    "Q2_K" = 10, Q2_K, "2.63 bits, mix with Q3_K and Q4_K";
    "IQ3_XXS" = 23, IQ3_XXS, "3.06 bits, mix";
    "IQ3_XS" = 22, IQ3_S, "3.3 bits, mix";
    "IQ3_S" = 26, IQ3_S, "3.44 bits";
    "IQ3_M" = 27, IQ3_S, "3.66 bits, mix";
    "Q3_K_S" = 11, Q3_K, "3.44 bits";
    "Q3_K_M" = 12, Q3_K, "3.44 bits, mix with Q4_K and Q5_K";
    "Q3_K_L" = 13, Q3_K, "3.44 bits, mix with Q5_K";
    "IQ4_XS" = 30, IQ4_XS, "4.25 bits, uneven steps";
    "MXFP4_MOE" = 38, MXFP4, "4.25 bits in experts, Q8_0 elsewhere";
    "IQ4_NL" = 25, IQ4_NL, "4.5 bits, uneven steps";
    "Q4_0" = 2, Q4_0, "4.5 bits";
    "Q4_K_S" = 14, Q4_K, "4.5 bits, a little Q5_K";
    "Q4_K_M" = 15, Q4_K, "4.5 bits, mix with Q6_K";
    "Q4_1" = 3, Q4_1, "5 bits";
    "Q5_0" = 8, Q5_0, "5.5 bits";
    "Q5_K_S" = 16, Q5_K, "5.5 bits";
    "Q5_K_M" = 17, Q5_K, "5.5 bits, mix with Q6_K";
    "Q5_1" = 9, Q5_1, "6 bits";
    "Q6_K" = 18, Q6_K, "6.56 bits";
    "Q8_0" = 7, Q8_0, "8.5 bits";
    "BF16" = 32, BF16, "16 bits, 8 of them exponent";
    "F16" = 1, F16, "16 bits";
    "F32" = 0, F32, "32 bits";
    "LANE3" = 0x534c_0003, LANE3, "3.5 bits, in .slc files only";
    "LANE5" = 0x534c_0005, LANE5, "5.5 bits, in .slc files only";
    "LANE7" = 0x534c_0007, LANE7, "7.5 bits, in .slc files only";
}

/// Aliases, and the names they stand for.
const ALIASES: [(&str, &str); 3] = [("Q3_K", "Q3_K_M"), ("Q4_K", "Q4_K_M"), ("Q5_K", "Q5_K_M")];

impl FileType {
    /// Whether the type has one of these names.
    pub(super) fn is(self, names: &[&str]) -> bool {
        names.contains(&self.name)
    }
}

/// Parses a name in any case, an alias, or a number.
impl FromStr for FileType {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let same = |name: &str| name.eq_ignore_ascii_case(text);
        let alias = ALIASES.iter().find(|(short, _)| same(short));
        let by_name = |file_type: &&Self| match alias {
            Some((_, name)) => file_type.name == *name,
            None => same(file_type.name) || text.parse() == Ok(file_type.number),
        };
        FILE_TYPES.iter().find(by_name).copied().ok_or_else(|| {
            let names: Vec<_> = FILE_TYPES.iter().map(|known| known.name).collect();
            format!("unknown type; expected {}", names.join(" "))
        })
    }
}

impl fmt::Display for FileType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_aliases_and_numbers() {
        let name = |text: &str| FileType::from_str(text).map(|found| found.name);
        assert_eq!(name("q4_k_m"), Ok("Q4_K_M"));
        assert_eq!(name("Q4_K"), Ok("Q4_K_M"));
        assert_eq!(name("15"), Ok("Q4_K_M"));
        assert_eq!(name("0"), Ok("F32"));
        assert!(name("Q4").unwrap_err().contains("Q4_0"));
        for (i, file_type) in FILE_TYPES.iter().enumerate() {
            let number = |other: &FileType| other.number == file_type.number;
            assert!(!FILE_TYPES[..i].iter().any(number), "{file_type}");
        }
    }
}
