//! What a model thought, as items that clients send back.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

const SIGNATURE_BYTES: usize = 32;

/// A thought as `encrypted_content`: a signature and the text, in base64. It is not secret from the client.
pub(super) fn sealed(thought: &str) -> String {
    let mut bytes = signature(thought.as_bytes());
    bytes.extend_from_slice(thought.as_bytes());
    BASE64_STANDARD.encode(bytes)
}

/// The thought of an item of type `reasoning`: in full, from our `encrypted_content` or, failing both, its summary.
/// Another server's `encrypted_content` is ignored.
///
/// # Errors
/// The name of the field that is missing.
pub(super) fn read(item: &Value) -> Result<String, &'static str> {
    let texts = |name: &str| -> Option<String> {
        let parts = item.get(name)?.as_array()?;
        parts
            .iter()
            .map(|part| part.get("text")?.as_str())
            .collect()
    };
    let full = texts("content").filter(|text| !text.is_empty());
    let sealed = || opened(item.get("encrypted_content")?.as_str()?);
    let thought = full.or_else(sealed).or_else(|| texts("summary"));
    thought.ok_or("summary")
}

/// The thought in our `encrypted_content`.
fn opened(sealed: &str) -> Option<String> {
    let bytes = BASE64_STANDARD.decode(sealed).ok()?;
    let (signed, thought) = bytes.split_at_checked(SIGNATURE_BYTES)?;
    let is_ours = *signed == *signature(thought);
    String::from_utf8(thought.to_vec()).ok().filter(|_| is_ours)
}

fn signature(thought: &[u8]) -> Vec<u8> {
    let mut hash = Sha256::new();
    hash.update(b"sluice reasoning\0");
    hash.update(thought);
    hash.finalize().to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_thought_comes_back_as_it_was() {
        let thought = "So: a \u{1f30a}.";
        let sealed = sealed(thought);
        let summary = json!([{"type": "summary_text", "text": "short"}]);
        let item = json!({"summary": summary, "encrypted_content": sealed});
        assert_eq!(read(&item).unwrap(), thought);
        // Another server's, or one that was changed.
        for other in ["gAAAAABo", &sealed.replace('A', "B"), ""] {
            let item = json!({"summary": summary, "encrypted_content": other});
            assert_eq!(read(&item).unwrap(), "short", "{other}");
        }
        let content = json!([{"type": "reasoning_text", "text": "in full"}]);
        let item = json!({"summary": [], "content": content});
        assert_eq!(read(&item).unwrap(), "in full");
        assert_eq!(read(&json!({})), Err("summary"));
    }
}
