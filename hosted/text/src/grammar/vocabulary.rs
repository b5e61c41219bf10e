//! A vocabulary as grammars need it.

use super::{GrammarError, compile_error, on_large_stack};
use llguidance::ParserFactory;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{
    ApproximateTokEnv, INVALID_TOKEN, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie,
};
use sluice_core::tokenizer::Tokenizer;
use std::collections::HashMap;
use std::sync::Arc;

/// A vocabulary prepared for grammars. With 150,000 tokens this takes almost a second, so keep it when
/// compiling several grammars for a model; clones share the data.
#[derive(Clone)]
pub struct Vocabulary {
    shared: Arc<Shared>,
}

struct Shared {
    words: Vec<Vec<u8>>,
    /// Tokens that can end a key of a JSON document.
    quoting: Vec<u32>,
    /// Control tokens, and those that end texts, by name.
    special: HashMap<Vec<u8>, u32>,
    /// The names of these tokens.
    names: HashMap<u32, Vec<u8>>,
    factory: ParserFactory,
}

impl core::fmt::Debug for Vocabulary {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Vocabulary").finish_non_exhaustive()
    }
}

impl Vocabulary {
    /// Prepares the vocabulary.
    ///
    /// # Errors
    /// It is too large.
    pub fn new(tokenizer: &Tokenizer<'_>) -> Result<Self, GrammarError> {
        let words = words_of(tokenizer)?;
        let all = 0..tokenizer.n_vocab();
        let is_end = |id: &u32| tokenizer.is_end_of_generation(*id);
        let ends: Vec<u32> = all.clone().filter(is_end).collect();
        let is_special = |id: &u32| tokenizer.is_control(*id) || is_end(id);
        let special = all.clone().filter(is_special);
        let names = special.map(|id| (id, tokenizer.piece(id).to_vec()));
        let names: HashMap<u32, Vec<u8>> = names.collect();
        let is_quoting = |id: &u32| words[*id as usize].contains(&b'"');
        let quoting = all.filter(is_quoting).collect();
        let factory = on_large_stack(|| factory(&words, &ends))?;
        Ok(Self {
            shared: Arc::new(Shared {
                quoting,
                special: names.iter().map(|(id, name)| (name.clone(), *id)).collect(),
                names,
                factory,
                words,
            }),
        })
    }

    /// The bytes of a token, if it is text.
    pub(super) fn word(&self, id: u32) -> Option<&[u8]> {
        self.shared.words.get(id as usize).map(Vec::as_slice)
    }

    /// The bytes of a text token, or the name of any other.
    pub(crate) fn shown(&self, id: u32) -> &[u8] {
        let name = self.shared.names.get(&id);
        name.map_or_else(|| self.word(id).unwrap_or_default(), Vec::as_slice)
    }

    pub(super) fn n_words(&self) -> usize {
        self.shared.words.len()
    }

    pub(super) fn quoting(&self) -> &[u32] {
        &self.shared.quoting
    }

    pub(super) fn special(&self, name: &str) -> Option<u32> {
        self.shared.special.get(name.as_bytes()).copied()
    }

    pub(super) fn factory(&self) -> &ParserFactory {
        &self.shared.factory
    }
}

fn factory(words: &[Vec<u8>], ends: &[u32]) -> Result<ParserFactory, GrammarError> {
    let n_vocab = u32::try_from(words.len()).map_err(|_| GrammarError::Vocabulary)?;
    let end = ends.first().copied().unwrap_or(INVALID_TOKEN);
    let mut trie = TokTrie::from(&TokRxInfo::new(n_vocab, end), words);
    if !ends.is_empty() {
        trie = trie.with_eos_tokens(ends);
    }
    let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
    let slices = SlicedBiasComputer::general_slices();
    let factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices);
    let mut factory = factory.map_err(|error| compile_error(&error))?;
    factory.quiet();
    Ok(factory)
}

/// The bytes of each token as the grammar sees it: empty for tokens that are never text.
fn words_of(tokenizer: &Tokenizer<'_>) -> Result<Vec<Vec<u8>>, GrammarError> {
    let mut piece = vec![0; tokenizer.piece_len_max()];
    let mut total = 0;
    let mut words = Vec::with_capacity(tokenizer.n_vocab() as usize);
    for id in 0..tokenizer.n_vocab() {
        let special = tokenizer.is_control(id) || tokenizer.is_end_of_generation(id);
        let bytes = tokenizer.decode_piece(id, &mut piece).unwrap_or_default();
        let usable = !special && bytes.len() <= TOKEN_BYTES_MAX;
        let word = if usable { bytes.to_vec() } else { Vec::new() };
        total += word.len();
        words.push(word);
    }
    if total > VOCABULARY_BYTES_MAX || words.len() > VOCABULARY_LEN_MAX {
        return Err(GrammarError::Vocabulary);
    }
    Ok(words)
}

/// Longer tokens are not used: the trie's nodes count their ancestors in 10 bits.
const TOKEN_BYTES_MAX: usize = 512;
/// A trie has fewer than 2^22 nodes.
const VOCABULARY_BYTES_MAX: usize = (1 << 22) - 2;
const VOCABULARY_LEN_MAX: usize = 1 << 23;
