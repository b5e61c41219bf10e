//! Pre-tokenizers: how a byte-level vocabulary splits text into words before merging.
//!
//! Tokenizer files state these as regular expressions, one or several that split one after the
//! other ([`Words`]). Here each is a scanner written by hand ([`scan`]), in time linear in the
//! text: an expression engine would be the largest part of the crate, and backtracks.
//!
//! Source of names and expressions: llama.cpp, `src/llama-vocab.cpp` and `src/unicode.cpp`, as
//! vendored by llama-cpp-python 0.3.36. Where it departs from a model's own expression, the model's
//! is right: it knows upper from lower case in ASCII only, or not at all
//! ([`PreTokenizer::Tekken`], [`PreTokenizer::Gpt4o`], [`PreTokenizer::GraniteEmbedding`], [`PreTokenizer::Youtu`],
//! [`PreTokenizer::KimiK2`]). Text before a number stays with its first digits, as there ([`PreTokenizer::Afmoe`]).

mod names;
#[cfg(test)]
mod tests;

use super::classes::{self, DEEPSEEK_LETTERS as LETTERS, DEEPSEEK_SIGNS as SIGNS};
use super::decimal;
use super::scan::{self, Contraction, Shape, Tail, Word};
use super::split::{Rule, Words, groups, isolate, runs};

/// A family of pre-tokenizers that split alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PreTokenizer {
    /// llama.cpp's own for files that name none: punctuation apart, then as GPT-2, digits in
    /// groups of three.
    Default,
    /// GPT-2's, of most early byte-level vocabularies.
    Gpt2,
    /// Llama 3's: digits in groups of three, punctuation includes the line ends after it.
    Llama3,
    /// Qwen2's: as Llama 3's, but every digit alone.
    Qwen2,
    /// Qwen3.5's: as Qwen2's, with marks among the letters.
    Qwen35,
    /// Jais 2's: as Llama 3's, with white space in runs of powers of two.
    Jais2,
    /// DeepSeek LLM's: cased scripts, punctuation, Chinese and numbers apart.
    DeepSeekLlm,
    /// DeepSeek Coder's: letters, punctuation, Chinese and single digits apart.
    DeepSeekCoder,
    /// DeepSeek V3's: groups of three digits and Chinese apart.
    DeepSeekV3,
    /// Spark 2.5's: as DeepSeek V3's, every line end alone.
    Spark,
    /// Youtu's: East Asian scripts apart, contractions stay with their words.
    Youtu,
    /// Falcon's: punctuation apart, then as GPT-2, ASCII digits in groups of three.
    Falcon,
    /// StarCoder's: every digit apart, then as GPT-2.
    StarCoder,
    /// BLOOM's: the text between spaces and sentence marks.
    Bloom,
    /// Viking's: as BLOOM's, and every digit apart.
    Viking,
    /// Tekken, of Mistral: words end before an upper-case letter.
    Tekken,
    /// GPT-4o's: as Tekken, digits in groups of three, contractions stay with their words.
    Gpt4o,
    /// Granite's multilingual embeddings': as GPT-4o's, with marks among the letters.
    GraniteEmbedding,
    /// Chameleon's: image tokens, indents, digits and punctuation apart, then as GPT-2.
    Chameleon,
    /// Tiny Aya's: numbers in groups of three from their end, then as GPT-4o's.
    TinyAya,
    /// Kimi K2's: Han apart, contractions stay with their words.
    KimiK2,
    /// SuperBPE's: numbers in groups of three from the end; all else together.
    SuperBpe,
    /// Seed-Coder's: as Qwen2's, but punctuation does not include line ends.
    SeedCoder,
    /// Ufakzeka's: as Qwen2's without contractions.
    Ufakzeka,
    /// AFMoE's: digits in groups of three from the end, Asian scripts, then as DeepSeek V3's.
    Afmoe,
    /// Laguna's: line ends apart, then as Qwen2's.
    Laguna,
    /// EXAONE MoE's: words with single spaces between them stay together.
    ExaoneMoe,
    /// MiniCPM5's: groups of three digits apart, then as Llama 3's.
    MiniCpm5,
    /// Gemma 4's: runs of line ends, each one token if there is one for it, and lines; U+2581
    /// for spaces, characters in place of bytes.
    Gemma4,
    /// Sarvam MoE's: as Gemma 4's, without the rule about line ends.
    Sarvam,
    /// The text between white space; characters in place of bytes.
    Whitespace,
}

/// The symbols that merges begin with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Alphabet {
    /// GPT-2's, one symbol a byte.
    Bytes,
    /// Characters, and `<0x0A>` for the bytes of one that is not a piece.
    Characters {
        /// U+2581 stands for a space.
        escapes: bool,
    },
}

/// Settings that a name in `tokenizer.ggml.pre` implies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokenizerTraits {
    pub(super) family: PreTokenizer,
    /// A word that is in the vocabulary is one token, even if merges would make several of it.
    pub(super) ignore_merges: bool,
    /// BOS is prepended unless `tokenizer.ggml.add_bos_token` is false.
    pub(super) add_bos: bool,
    /// Two texts are separated by a separator unless `tokenizer.ggml.add_sep_token` is false.
    pub(super) add_sep: bool,
    /// BOS is always prepended, even if the metadata disable it.
    pub(super) forces_bos: bool,
    /// There is a beginning-of-sequence token without metadata naming it.
    pub(super) has_default_bos: bool,
    /// There is an end-of-sequence token without metadata naming it.
    pub(super) has_default_eos: bool,
    /// Whether a file must have merges.
    pub(super) needs_merges: bool,
    /// Texts are converted to NFC, as by the tokenizers of the models that made the name known.
    pub(super) composes: bool,
}

impl PreTokenizerTraits {
    /// The meaning of `name` in llama.cpp.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        let plain = |family| Self {
            family,
            ignore_merges: false,
            add_bos: false,
            add_sep: matches!(name, b"jina-v1-en" | b"jina-v2-code" | b"roberta-bpe"),
            forces_bos: false,
            has_default_bos: true,
            has_default_eos: true,
            needs_merges: true,
            composes: matches!(
                name,
                b"qwen2" | b"qwen35" | b"deepseek-r1-qwen" | b"olmo" | b"command-r"
            ),
        };
        let ignoring = |family| Self {
            ignore_merges: true,
            ..plain(family)
        };
        Some(match name {
            b"llama3" | b"llama-v3" | b"llama-bpe" | b"falcon3" | b"falcon-h1" | b"pixtral"
            | b"midm-2.0" | b"lfm2" | b"jina-v5-nano" => Self {
                add_bos: true,
                ..ignoring(PreTokenizer::Llama3)
            },
            b"tekken" => Self {
                add_bos: true,
                ..ignoring(PreTokenizer::Tekken)
            },
            b"chameleon" => Self {
                add_bos: true,
                ..plain(PreTokenizer::Chameleon)
            },
            b"chatglm-bpe" => Self {
                has_default_bos: false,
                ..plain(PreTokenizer::Llama3)
            },
            b"glm4" | b"glm5" => Self {
                has_default_bos: false,
                ..ignoring(PreTokenizer::Llama3)
            },
            b"minicpm5" => ignoring(PreTokenizer::MiniCpm5),
            b"youtu" => ignoring(PreTokenizer::Youtu),
            b"granite-embed-multi-97m" => ignoring(PreTokenizer::GraniteEmbedding),
            b"kimi-k2" => Self {
                needs_merges: false,
                ..plain(PreTokenizer::KimiK2)
            },
            b"gemma4" | b"granite-embed-multi-311m" => Self {
                forces_bos: true,
                ..plain(PreTokenizer::Gemma4)
            },
            _ => plain(PreTokenizer::named(name)?),
        })
    }

    /// The settings of the model `gemma4`, even if its file names another pre-tokenizer.
    pub(super) fn gemma4() -> Self {
        Self {
            family: PreTokenizer::Gemma4,
            ignore_merges: false,
            add_bos: true,
            add_sep: false,
            forces_bos: true,
            has_default_bos: false,
            has_default_eos: false,
            needs_merges: true,
            composes: false,
        }
    }
}

impl PreTokenizer {
    /// The family of a name that implies no further settings.
    fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"default" => Self::Default,
            b"gpt-2" | b"phi-2" | b"jina-es" | b"jina-de" | b"gigachat" | b"a.x-4.0"
            | b"mellum" | b"modern-bert" | b"jina-v2-es" | b"jina-v2-de" | b"jina-v2-code"
            | b"exaone4" | b"mpt" | b"olmo" | b"jais" | b"trillion" | b"granite-docling"
            | b"jina-v1-en" | b"roberta-bpe" => Self::Gpt2,
            b"dbrx" | b"smaug-bpe" => Self::Llama3,
            b"qwen2" | b"deepseek-r1-qwen" | b"kormo" | b"f2llmv2" | b"megrez" | b"stablelm2"
            | b"hunyuan" | b"solar-open" | b"grok-2" | b"bailingmoe" | b"bailingmoe2"
            | b"llada-moe" => Self::Qwen2,
            b"qwen35" => Self::Qwen35,
            b"jais-2" => Self::Jais2,
            b"deepseek-llm" => Self::DeepSeekLlm,
            b"deepseek-coder" => Self::DeepSeekCoder,
            b"deepseek-v3" | b"hunyuan-dense" | b"joyai-llm" | b"hy_v4" => Self::DeepSeekV3,
            b"spark2_5" => Self::Spark,
            b"falcon" => Self::Falcon,
            b"starcoder" | b"refact" | b"command-r" | b"smollm" | b"codeshell" | b"exaone"
            | b"minerva-7b" | b"mellum2" => Self::StarCoder,
            b"poro-chat" | b"bloom" | b"gpt3-finnish" => Self::Bloom,
            b"viking" => Self::Viking,
            b"gpt-4o" | b"llama4" | b"kanana2" | b"talkie" | b"minimax-m2" => Self::Gpt4o,
            b"tiny_aya" | b"cohere2moe" => Self::TinyAya,
            b"superbpe" => Self::SuperBpe,
            b"seed-coder" => Self::SeedCoder,
            b"ufakzeka" => Self::Ufakzeka,
            b"afmoe" => Self::Afmoe,
            b"laguna" => Self::Laguna,
            b"exaone-moe" => Self::ExaoneMoe,
            b"sarvam-moe" => Self::Sarvam,
            b"whitespace" => Self::Whitespace,
            _ => return None,
        })
    }

    /// The symbols that the words of this family consist of.
    pub(super) fn alphabet(self) -> Alphabet {
        match self {
            Self::Gemma4 | Self::Sarvam => Alphabet::Characters { escapes: true },
            Self::Whitespace => Alphabet::Characters { escapes: false },
            _ => Alphabet::Bytes,
        }
    }

    /// The words of `text`, in order and without gaps.
    pub fn words(self, text: &str) -> impl Iterator<Item = &str> {
        Words::new(self.rules(), text)
    }

    /// The expressions that split, one after the other.
    fn rules(self) -> &'static [Rule] {
        match self {
            Self::Default => &[DEFAULT_SIGNS, scan::gpt2, NUMBERS, THREE_DIGITS],
            Self::Gpt2 => &[scan::gpt2],
            Self::Llama3 => &[LLAMA3],
            Self::Qwen2 => &[QWEN2],
            Self::Qwen35 => &[QWEN35],
            Self::Jais2 => &[LLAMA3, scan::halving_spaces],
            Self::DeepSeekLlm => &[
                LINE_ENDS,
                |text| scan::after_space(text, classes::is_space, |c| classes::is_in(&LETTERS, c)),
                |text| scan::after_space(text, classes::is_space, |c| classes::is_in(&SIGNS, c)),
                scan::trailing_space,
                |text| runs(text, classes::is_deepseek_cjk),
                NUMBERS,
            ],
            Self::DeepSeekCoder => &[
                LINE_ENDS,
                |text| scan::after_space(text, classes::is_space, classes::is_letter),
                |text| scan::after_space(text, classes::is_space, classes::is_punctuation),
                |text| runs(text, classes::is_deepseek_cjk),
                DIGITS,
            ],
            Self::DeepSeekV3 => &[THREE_NUMBERS, CJK, scan::deepseek_v3],
            Self::Spark => &[THREE_NUMBERS, CJK, scan::spark, DIGITS],
            Self::Youtu => &[scan::east_asian_runs, YOUTU],
            Self::Falcon => &[FALCON_SIGNS, scan::gpt2, THREE_DIGITS],
            Self::StarCoder => &[DIGITS, scan::gpt2],
            Self::Bloom => &[BLOOM],
            Self::Viking => &[BLOOM, DIGITS],
            Self::Tekken => &[TEKKEN],
            Self::Gpt4o => &[GPT4O],
            Self::GraniteEmbedding => &[GPT4O],
            Self::Chameleon => &[
                scan::sentinels,
                scan::image_tokens,
                scan::indents,
                DIGITS,
                |text| {
                    groups(text, 1, |c| {
                        classes::is_punctuation(c) || c.is_ascii_punctuation()
                    })
                },
                scan::gpt2,
            ],
            Self::TinyAya => &[decimal::heads, decimal::groups, GPT4O],
            Self::KimiK2 => &[|text| scan::kimi_k2(text, &KIMI_K2_SHAPE)],
            Self::SuperBpe => &[NUMBERS, scan::digit_heads, scan::digit_groups],
            Self::SeedCoder => &[SEED_CODER],
            Self::Ufakzeka => &[UFAKZEKA],
            Self::Afmoe => &[
                scan::number_heads,
                scan::number_groups,
                |text| runs(text, |c| classes::is_in(&classes::AFMOE_ASIAN, c)),
                scan::deepseek_v3,
            ],
            Self::Laguna => &[LINES, QWEN2],
            Self::ExaoneMoe => &[EXAONE_MOE],
            Self::MiniCpm5 => &[THREE_NUMBERS, MINICPM5],
            Self::Gemma4 | Self::Sarvam => &[LINES],
            Self::Whitespace => &[|text| runs(text, |c| !classes::is_space(c))],
        }
    }
}

// Expressions that several families share, or that are long. Expressions of one shape come first:
// `\s*[\r\n]` and `\s*[\r\n]+` match the same, as the former's `\s*` takes line ends too.

const LLAMA3_SHAPE: Shape = Shape {
    contraction: Contraction::Alone,
    word: Word::Plain(scan::letters),
    digits_max: 3,
    other: classes::is_other,
    tail: Tail::LineEnds,
};
const LLAMA3: Rule = |text| LLAMA3_SHAPE.split(text);

const QWEN2_SHAPE: Shape = Shape {
    digits_max: 1,
    ..LLAMA3_SHAPE
};
const QWEN2: Rule = |text| QWEN2_SHAPE.split(text);

const QWEN35: Rule = |text| {
    const SHAPE: Shape = Shape {
        word: Word::Plain(scan::letters_and_marks),
        other: classes::is_other_but_mark,
        ..QWEN2_SHAPE
    };
    SHAPE.split(text)
};

const SEED_CODER: Rule = |text| {
    const SHAPE: Shape = Shape {
        tail: Tail::None,
        ..QWEN2_SHAPE
    };
    SHAPE.split(text)
};

const UFAKZEKA: Rule = |text| {
    const SHAPE: Shape = Shape {
        contraction: Contraction::None,
        ..QWEN2_SHAPE
    };
    SHAPE.split(text)
};

const EXAONE_MOE: Rule = |text| {
    const SHAPE: Shape = Shape {
        word: Word::Plain(scan::phrase),
        tail: Tail::LineEndOrSlash,
        ..QWEN2_SHAPE
    };
    SHAPE.split(text)
};

const MINICPM5: Rule = |text| {
    const SHAPE: Shape = Shape {
        digits_max: usize::MAX,
        ..LLAMA3_SHAPE
    };
    SHAPE.split(text)
};

const GPT4O_SHAPE: Shape = Shape {
    contraction: Contraction::OfWord,
    word: Word::Cased(classes::is_letter_or_mark),
    tail: Tail::LineEndsAndSlashes,
    ..LLAMA3_SHAPE
};
const GPT4O: Rule = |text| GPT4O_SHAPE.split(text);

const YOUTU: Rule = |text| {
    const SHAPE: Shape = Shape {
        digits_max: 1,
        ..GPT4O_SHAPE
    };
    SHAPE.split(text)
};

const TEKKEN: Rule = |text| {
    const SHAPE: Shape = Shape {
        contraction: Contraction::None,
        digits_max: 1,
        ..GPT4O_SHAPE
    };
    SHAPE.split(text)
};

const KIMI_K2_SHAPE: Shape = Shape {
    word: Word::Cased(classes::is_letter_or_mark_but_han),
    tail: Tail::LineEnds,
    ..GPT4O_SHAPE
};

/// ``[\p{P}$+<=>^~|]+``
const DEFAULT_SIGNS: Rule = |text| {
    runs(text, |c| {
        classes::is_punctuation(c) || "$+<=>^~|".contains(c)
    })
};

/// As [`DEFAULT_SIGNS`], with the grave accent.
const FALCON_SIGNS: Rule = |text| {
    runs(text, |c| {
        classes::is_punctuation(c) || "$+<=>^~|`".contains(c)
    })
};

/// ` ?[^(\s|.,!?…。，、।۔،)]+`
const BLOOM: Rule = |text| scan::after_space(text, |c| c == ' ', classes::is_in_bloom_word);

/// `[一-龥぀-ゟ゠-ヿ]+`
const CJK: Rule = |text| runs(text, |c| classes::is_in(&classes::CJK, c));

/// `[^\n]+|[\n]+`
const LINES: Rule = |text| runs(text, |c| c == '\n');

/// `[\r\n]`
const LINE_ENDS: Rule = |text| groups(text, 1, classes::is_line_end);

/// `\p{N}+`
const NUMBERS: Rule = |text| runs(text, classes::is_number);

/// `\p{N}`
const DIGITS: Rule = |text| groups(text, 1, classes::is_number);

/// `\p{N}{1,3}`
const THREE_NUMBERS: Rule = |text| groups(text, 3, classes::is_number);

/// `[0-9][0-9][0-9]`
const THREE_DIGITS: Rule = |text| {
    isolate(text, |text| match text.as_bytes() {
        [b'0'..=b'9', b'0'..=b'9', b'0'..=b'9', ..] => 3,
        _ => 0,
    })
};
