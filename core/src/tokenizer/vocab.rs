//! The vocabulary's tables: where each piece is, which id a piece has, which pair merges.
//!
//! Pieces stay in the file; the tables are words of 32 bits in the caller's memory. Both hash
//! tables use open addressing with linear probing at a load of a third to two thirds, and give
//! up with an error where a file makes them probe for long.

use super::error::TokenizerError;

/// The pieces of `tokenizer.ggml.tokens`, in place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces<'a> {
    /// The array as in the file: for each piece its length in 8 bytes, then its bytes.
    data: &'a [u8],
    /// Start of each piece's bytes in `data`, and one more where a further piece would start.
    starts: &'a [u32],
}

impl<'a> Pieces<'a> {
    /// `strings` are the strings that `data` holds; `starts` is one longer than their number.
    pub(super) fn new<'s>(
        data: &'a [u8],
        strings: impl Iterator<Item = &'s [u8]>,
        starts: &'a mut [u32],
    ) -> Self {
        let mut at = LENGTH_BYTES;
        let (last, firsts) = starts.split_last_mut().expect("one more than the pieces");
        for (start, piece) in firsts.iter_mut().zip(strings) {
            *start = position(at);
            at += piece.len() + LENGTH_BYTES;
        }
        *last = position(at);
        Self { data, starts }
    }

    pub(super) fn len(self) -> u32 {
        // The array's length fitted in a u32 before this was built.
        position(self.starts.len() - 1)
    }

    /// The bytes of piece `id` as in the file; none for an id outside the vocabulary.
    pub(super) fn get(self, id: u32) -> &'a [u8] {
        match self
            .starts
            .get(id as usize..)
            .and_then(<[u32]>::first_chunk)
        {
            Some(&[start, next]) => &self.data[start as usize..next as usize - LENGTH_BYTES],
            None => &[],
        }
    }
}

/// Finds the id of a piece by its bytes.
///
/// A slot is 0 when empty, otherwise `tag << id_bits | (id + 1)`: the tag is of the bits of the
/// hash that did not choose the slot, and spares nearly every comparison with another piece.
#[derive(Clone, Copy, Debug)]
pub(super) struct PieceIndex<'a> {
    slots: &'a [u32],
    id_bits: u32,
}

impl<'a> PieceIndex<'a> {
    /// `slots` has the length that [`slots_for`] gave for the pieces. An empty piece cannot be
    /// found; of equal pieces the last is, as in llama.cpp.
    pub(super) fn new(pieces: Pieces<'_>, slots: &'a mut [u32]) -> Result<Self, TokenizerError> {
        let id_bits = u32::BITS - pieces.len().leading_zeros();
        slots.fill(0);
        for id in 0..pieces.len() {
            let piece = pieces.get(id);
            if piece.is_empty() {
                continue;
            }
            let hash = piece.iter().copied().fold(FNV_START, fnv);
            let (start, tag) = place(hash, slots.len(), id_bits);
            let slot = (0..PROBES_MAX)
                .map(|probe| (start + probe) & (slots.len() - 1))
                .find(|&at| {
                    let slot = slots[at];
                    slot == 0
                        || slot >> id_bits == tag
                            && pieces.get((slot & ((1 << id_bits) - 1)) - 1) == piece
                })
                .ok_or(TokenizerError::TooManyCollisions)?;
            slots[slot] = tag << id_bits | (id + 1);
        }
        Ok(Self { slots, id_bits })
    }

    /// The longest piece that `bytes` begin with and that is accepted: its id and length.
    pub(super) fn find_longest(
        self,
        pieces: Pieces<'_>,
        bytes: &[u8],
        accepts: impl Fn(u32) -> bool,
    ) -> Option<(u32, usize)> {
        let mut longest = None;
        let mut hash = FNV_START;
        for (before, &byte) in bytes.iter().enumerate() {
            hash = fnv(hash, byte);
            let prefix = &bytes[..=before];
            let found = self.find_hashed(pieces, hash, prefix.len(), prefix.iter().copied());
            let found = found.filter(|&id| accepts(id));
            longest = found.map(|id| (id, prefix.len())).or(longest);
        }
        longest
    }

    /// The id of the piece that consists of `bytes`.
    pub(super) fn find(
        self,
        pieces: Pieces<'_>,
        bytes: impl Iterator<Item = u8> + Clone,
    ) -> Option<u32> {
        let mut len = 0;
        let hash = bytes.clone().inspect(|_| len += 1).fold(FNV_START, fnv);
        self.find_hashed(pieces, hash, len, bytes)
    }

    /// The same for bytes whose hash is known.
    pub(super) fn find_hashed(
        self,
        pieces: Pieces<'_>,
        hash: u64,
        len: usize,
        bytes: impl Iterator<Item = u8> + Clone,
    ) -> Option<u32> {
        let (start, tag) = place(hash, self.slots.len(), self.id_bits);
        for probe in 0..PROBES_MAX {
            let slot = self.slots[(start + probe) & (self.slots.len() - 1)];
            if slot == 0 {
                return None;
            }
            if slot >> self.id_bits == tag {
                let id = (slot & ((1 << self.id_bits) - 1)) - 1;
                let piece = pieces.get(id);
                if piece.len() == len && piece.iter().copied().eq(bytes.clone()) {
                    return Some(id);
                }
            }
        }
        None
    }
}

/// The prefixes that some piece continues: certainly not, or probably.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prefixes<'a>(
    /// A bit for each hash of a prefix: a power of two of them.
    &'a [u32],
);

impl<'a> Prefixes<'a> {
    /// `words` has the length that [`slots_for`] gave for the pieces: 48 to 96 bits a piece.
    pub(super) fn new<'p>(pieces: impl Iterator<Item = &'p [u8]>, words: &'a mut [u32]) -> Self {
        words.fill(0);
        for piece in pieces {
            let (_, before) = piece.split_last().unwrap_or((&0, &[]));
            let mut hash = FNV_START;
            for &byte in before {
                hash = fnv(hash, byte);
                let (word, bit) = bit_place(hash, words.len());
                words[word] |= 1 << bit;
            }
        }
        Self(words)
    }

    /// False where no piece is longer than bytes of this hash and begins with them.
    #[inline]
    pub(super) fn may_have(self, hash: u64) -> bool {
        let (word, bit) = bit_place(hash, self.0.len());
        self.0[word] >> bit & 1 != 0
    }
}

/// A word of a power of two, and a bit of it.
fn bit_place(hash: u64, words: usize) -> (usize, u32) {
    place(hash, words, u32::BITS - 5)
}

/// The merges of a BPE vocabulary: two tokens side by side, their rank and the token
/// that takes their place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Merges<'a> {
    /// Left, right and merged id of each merge; three [`NONE`] for one that cannot apply.
    merges: &'a [[u32; 3]],
    /// 0 when empty, otherwise `tag << rank_bits | (rank + 1)`, as in [`PieceIndex`]: a pair
    /// that does not merge is recognised without a look at another.
    slots: &'a [u32],
    rank_bits: u32,
}

impl<'a> Merges<'a> {
    /// `lines` are `left right`, best first; `merges` has three words and `slots` the length
    /// that [`slots_for`] gave, for as many.
    ///
    /// A line whose parts or whole are not pieces never applies, and of equal lines only the
    /// first does.
    pub(super) fn new<'s>(
        lines: impl Iterator<Item = &'s [u8]>,
        pieces: Pieces<'_>,
        index: PieceIndex<'_>,
        merges: &'a mut [u32],
        slots: &'a mut [u32],
    ) -> Result<Self, TokenizerError> {
        let (merges, _) = merges.as_chunks_mut::<3>();
        let rank_bits = u32::BITS - position(merges.len()).leading_zeros();
        slots.fill(0);
        merges.fill([NONE; 3]);
        for (rank, line) in lines.enumerate().take(merges.len()) {
            let Some(merge) = parse_merge(line, pieces, index) else {
                continue;
            };
            let (start, tag) = pair_place(merge[0], merge[1], slots.len(), rank_bits);
            let at = (0..PROBES_MAX)
                .map(|probe| (start + probe) & (slots.len() - 1))
                .find(|&at| {
                    let slot = slots[at];
                    let other = (slot & ((1 << rank_bits) - 1)).wrapping_sub(1) as usize;
                    slot == 0 || slot >> rank_bits == tag && merges[other][..2] == merge[..2]
                })
                .ok_or(TokenizerError::TooManyCollisions)?;
            if slots[at] == 0 {
                slots[at] = tag << rank_bits | (position(rank) + 1);
                merges[rank] = merge;
            }
        }
        Ok(Self {
            merges,
            slots,
            rank_bits,
        })
    }

    /// The rank of the merge of `left` and `right`; lower is better.
    #[inline]
    pub(super) fn rank(self, left: u32, right: u32) -> Option<u32> {
        let (start, tag) = pair_place(left, right, self.slots.len(), self.rank_bits);
        for probe in 0..PROBES_MAX {
            let slot = self.slots[(start + probe) & (self.slots.len() - 1)];
            if slot == 0 {
                return None;
            }
            if slot >> self.rank_bits == tag {
                let rank = (slot & ((1 << self.rank_bits) - 1)) - 1;
                if self.merges[rank as usize][..2] == [left, right] {
                    return Some(rank);
                }
            }
        }
        None
    }

    /// The token that the merge of `rank` makes.
    pub(super) fn merged(self, rank: u32) -> u32 {
        self.merges[rank as usize][2]
    }
}

/// Flags of every token, a byte each.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attributes<'a>(&'a [u32]);

impl Attributes<'_> {
    /// The flags of token `id`; none for an id outside the vocabulary.
    pub(super) fn get(self, id: u32) -> u8 {
        let word = self.0.get(id as usize / 4).copied().unwrap_or(0);
        word.to_le_bytes()[id as usize % 4]
    }
}

/// [`Attributes`] being built.
#[derive(Debug)]
pub(super) struct AttributesMut<'a>(&'a mut [u32]);

impl<'a> AttributesMut<'a> {
    /// No token has flags yet, nor have the ids beyond them in the last word.
    pub(super) fn new(words: &'a mut [u32]) -> Self {
        words.fill(0);
        Self(words)
    }

    pub(super) fn get(&self, id: u32) -> u8 {
        Attributes(self.0).get(id)
    }

    /// Replaces the flags of token `id`, which is in the vocabulary.
    pub(super) fn set(&mut self, id: u32, flags: u8) {
        let word = &mut self.0[id as usize / 4];
        let mut bytes = word.to_le_bytes();
        bytes[id as usize % 4] = flags;
        *word = u32::from_le_bytes(bytes);
    }

    pub(super) fn freeze(self) -> Attributes<'a> {
        Attributes(self.0)
    }
}

/// The flags in [`Attributes`]; the first six are llama.cpp's of the same names.
pub(super) mod attribute {
    pub(in super::super) const UNKNOWN: u8 = 1;
    pub(in super::super) const UNUSED: u8 = 1 << 1;
    pub(in super::super) const NORMAL: u8 = 1 << 2;
    pub(in super::super) const CONTROL: u8 = 1 << 3;
    pub(in super::super) const USER_DEFINED: u8 = 1 << 4;
    pub(in super::super) const BYTE: u8 = 1 << 5;
    /// The token ends generation.
    pub(in super::super) const END: u8 = 1 << 6;
    /// White space after the token, where it is matched in a text, belongs to it.
    pub(in super::super) const STRIPS_RIGHT: u8 = 1 << 7;
}

/// Slots of a hash table for `count` entries: a power of two, a third to two thirds full.
pub(super) fn slots_for(count: usize) -> usize {
    (count + count / 2 + 1).next_power_of_two()
}

/// Left, right and merged id of a line of the merges.
///
/// The separator is the first space that is not the line's first byte: a piece is never empty,
/// and in the byte-level alphabet never holds a space.
fn parse_merge(line: &[u8], pieces: Pieces<'_>, index: PieceIndex<'_>) -> Option<[u32; 3]> {
    let space = line.iter().skip(1).position(|&byte| byte == b' ')? + 1;
    let (left, right) = (&line[..space], &line[space + 1..]);
    let find = |bytes: &[u8]| index.find(pieces, bytes.iter().copied());
    let merged = left.iter().chain(right).copied();
    Some([find(left)?, find(right)?, index.find(pieces, merged)?])
}

/// One step of FNV-1a.
#[inline]
pub(super) fn fnv(hash: u64, byte: u8) -> u64 {
    (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
}

pub(super) const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;

/// First slot and tag for a piece by its hash, whose upper bits are folded down.
fn place(hash: u64, slots: usize, id_bits: u32) -> (usize, u32) {
    let hash = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let tag = (hash >> 40) & ((1 << (u32::BITS - id_bits)) - 1);
    (slot_of(hash, slots), low_word(tag))
}

/// First slot and tag for a pair.
#[inline]
fn pair_place(left: u32, right: u32, slots: usize, rank_bits: u32) -> (usize, u32) {
    let pair = u64::from(left) << 32 | u64::from(right);
    let hash = pair.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = (hash ^ hash >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let hash = hash ^ hash >> 32;
    let tag = (hash >> 32) & ((1 << (u32::BITS - rank_bits)) - 1);
    (slot_of(hash, slots), low_word(tag))
}

fn slot_of(hash: u64, slots: usize) -> usize {
    low_word(hash) as usize & (slots - 1)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the low half is what is asked for"
)]
fn low_word(bits: u64) -> u32 {
    bits as u32
}

/// A position or count that limits checked earlier keep below 2^32.
pub(super) fn position(at: usize) -> u32 {
    u32::try_from(at).expect("GGUF headers and texts are shorter than 4 GiB")
}

/// No token, no merge.
pub(super) const NONE: u32 = u32::MAX;

/// GGUF writes the length of a string before it.
const LENGTH_BYTES: usize = 8;

/// Ordinary vocabularies stay far below: with a good hash, runs of 200 are already improbable.
const PROBES_MAX: usize = 2048;

#[cfg(test)]
mod tests {
    extern crate std;

    use std::vec;
    use std::vec::Vec;

    use super::*;

    fn array(pieces: &[&[u8]]) -> Vec<u8> {
        let mut data = Vec::new();
        for piece in pieces {
            data.extend((piece.len() as u64).to_le_bytes());
            data.extend_from_slice(piece);
        }
        data
    }

    #[test]
    fn pieces_are_found_and_the_last_of_equals_wins() {
        let list: [&[u8]; 7] = [b"a", b"", b"b", b"ab", b"a", b"\xff", b"abc"];
        let data = array(&list);
        let mut starts = vec![0; list.len() + 1];
        let pieces = Pieces::new(&data, list.iter().copied(), &mut starts);
        assert_eq!(pieces.len(), 7);
        for (id, piece) in (0..).zip(list) {
            assert_eq!(pieces.get(id), piece);
        }
        assert_eq!(pieces.get(7), b"");
        assert_eq!(pieces.get(u32::MAX), b"");

        let mut slots = vec![0; slots_for(list.len())];
        let index = PieceIndex::new(pieces, &mut slots).unwrap();
        let find = |bytes: &[u8]| index.find(pieces, bytes.iter().copied());
        assert_eq!(find(b"a"), Some(4));
        assert_eq!(find(b"abc"), Some(6));
        assert_eq!(find(b"\xff"), Some(5));
        assert_eq!(find(b""), None);
        assert_eq!(find(b"bc"), None);
    }

    #[test]
    fn merges_that_name_unknown_pieces_never_apply() {
        let list: [&[u8]; 5] = [b"a", b"b", b"ab", b" b", b"a b"];
        let data = array(&list);
        let mut starts = vec![0; list.len() + 1];
        let pieces = Pieces::new(&data, list.iter().copied(), &mut starts);
        let mut slots = vec![0; slots_for(list.len())];
        let index = PieceIndex::new(pieces, &mut slots).unwrap();
        let lines: [&[u8]; 9] = [
            b"b a", b"a x", b"ab", b"", b" ", b"a ", b"a b", b"a b", b"a  b",
        ];
        let mut merges = vec![0; 3 * lines.len()];
        let mut slots = vec![0; slots_for(lines.len())];
        let lines = lines.iter().copied();
        let merges = Merges::new(lines, pieces, index, &mut merges, &mut slots).unwrap();
        assert_eq!(merges.rank(0, 1), Some(6));
        assert_eq!(merges.merged(6), 2);
        assert_eq!(merges.rank(0, 3), Some(8));
        assert_eq!(merges.merged(8), 4);
        assert_eq!(merges.rank(1, 0), None);
        assert_eq!(merges.rank(NONE, NONE), None);
    }

    #[test]
    fn tables_are_a_third_to_two_thirds_full() {
        for count in 1..2000 {
            let slots = slots_for(count);
            assert!(slots.is_power_of_two());
            assert!(3 * count <= 2 * slots);
            assert!(count < 3 || 3 * count + 8 >= slots);
        }
    }
}
