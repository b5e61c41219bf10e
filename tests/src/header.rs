//! Keys added to the metadata of whole GGUF files.

/// The file with another text in its metadata. Tensors keep their places: a second key fills up their alignment.
///
/// # Panics
/// If the file is not GGUF.
#[must_use]
pub fn with_text(file: &[u8], key: &str, text: &str) -> Vec<u8> {
    const ALIGNMENT: usize = 32;
    assert_eq!(&file[..4], b"GGUF");
    let (head, rest) = file.split_at(24);
    let mut added = entry(key, text);
    let filler = entry("general.description", "").len();
    let n = (added.len() + filler).next_multiple_of(ALIGNMENT) - added.len() - filler;
    added.extend(entry("general.description", &" ".repeat(n)));
    let n_keys = u64::from_le_bytes(head[16..].try_into().expect("eight bytes"));
    [&head[..16], &(n_keys + 2).to_le_bytes(), &added, rest].concat()
}

/// A key with a text.
fn entry(key: &str, text: &str) -> Vec<u8> {
    const STRING: u32 = 8;
    let string = |text: &str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    [string(key), STRING.to_le_bytes().to_vec(), string(text)].concat()
}
