//! A 64-bit hash for checksums of Sluice's own files and comparisons of its own settings.
//!
//! It guards against accidents only: one who chooses the bytes can choose the hash. What others bring (models, adapters,
//! salts) is known by a cryptographic hash, which the host computes.

/// FNV-1a over 64-bit words with a final mix: order-sensitive, endian-independent, tiny.
///
/// Source of the constants: Fowler, Noll, Vo (FNV-1a, 64 bit); the final mix is SplitMix64's.
#[derive(Clone, Copy, Debug)]
pub struct Hash64 {
    state: u64,
    len_bytes: u64,
}

impl Default for Hash64 {
    fn default() -> Self {
        Self::new()
    }
}

impl Hash64 {
    /// The hash of no data.
    pub const fn new() -> Self {
        Self {
            state: 0xcbf2_9ce4_8422_2325,
            len_bytes: 0,
        }
    }

    /// Adds bytes. Each call is padded to whole words, so the split into calls matters, not only the bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        let (words, tail) = bytes.as_chunks::<8>();
        for word in words {
            self.word(u64::from_le_bytes(*word));
        }
        if !tail.is_empty() {
            let mut word = [0; 8];
            word[..tail.len()].copy_from_slice(tail);
            self.word(u64::from_le_bytes(word));
        }
        self.len_bytes += bytes.len() as u64;
    }

    /// Adds the bits of floats.
    pub fn write_f32(&mut self, values: &[f32]) {
        for value in values {
            self.word(value.to_bits().into());
        }
        self.len_bytes += 4 * values.len() as u64;
    }

    const fn word(&mut self, word: u64) {
        // The rotation carries high bits down, which a multiplication alone never does.
        self.state = (self.state ^ word)
            .wrapping_mul(0x0000_0100_0000_01b3)
            .rotate_left(23);
    }

    /// The hash of everything added.
    pub const fn finish(&self) -> u64 {
        let mut z = self.state ^ self.len_bytes;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_and_the_length_matter() {
        let of = |bytes: &[u8]| {
            let mut hash = Hash64::new();
            hash.write(bytes);
            hash.finish()
        };
        let base = [7u8; 23];
        for bit in 0..23 * 8 {
            let mut other = base;
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(of(&base), of(&other));
        }
        assert_ne!(of(&[0; 7]), of(&[0; 8]));
        assert_ne!(of(&[]), of(&[0]));
    }
}
