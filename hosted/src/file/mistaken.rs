//! Files that are not what their name suggests: what is found in place of a model after a failed
//! download.
#![forbid(unsafe_code)]

/// What a file is instead of a model, from its first bytes, and what to do about it.
///
/// `head` is the file's start; 256 bytes are enough. `None` if nothing is recognised: the file may
/// be anything.
#[must_use]
pub fn mistaken(head: &[u8]) -> Option<&'static str> {
    let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
    let text = text.trim_ascii_start();
    let begins = |with: &[u8]| {
        let start = text.get(..with.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(with))
    };
    if begins(b"version https://git-lfs.github.com/") {
        return Some(
            "it is a Git LFS pointer, not the file itself: download the file with `git lfs pull`",
        );
    }
    if begins(b"<!doctype html") || begins(b"<html") {
        return Some(
            "it is an HTML page, not the file itself: download it again (you may have to log in)",
        );
    }
    if begins(b"<?xml") {
        return Some("it is an XML page, such as a server's error: download the file again");
    }
    if head.starts_with(b"PK\x03\x04") {
        return Some(
            "it is a zip archive, like PyTorch's .bin and .pt files, which are not supported",
        );
    }
    if head.starts_with(b"\x1f\x8b") {
        return Some("it is compressed by gzip: run `gunzip` first");
    }
    if is_tiktoken(text) {
        return Some(
            "it is a tiktoken vocabulary (base64 and ranks): `sluice convert` reads it if it is named tiktoken.model",
        );
    }
    None
}

/// The mark that Windows puts before a text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Lines of a token in base64 and its rank, such as `IQ== 0`.
fn is_tiktoken(text: &[u8]) -> bool {
    let Some(line) = text.split(|&byte| byte == b'\n').next() else {
        return false;
    };
    let line = line.trim_ascii_end();
    let Some(space) = line.iter().position(|&byte| byte == b' ') else {
        return false;
    };
    let (token, rank) = (&line[..space], &line[space + 1..]);
    let digits = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/=".contains(byte);
    let is_base64 = !token.is_empty() && token.len() % 4 == 0 && token.iter().all(digits);
    is_base64 && !rank.is_empty() && rank.iter().all(u8::is_ascii_digit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_for_what_they_are() {
        let cases: [(&[u8], &str); 8] = [
            (
                b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
                "Git LFS",
            ),
            (b"\xef\xbb\xbf\n<!DOCTYPE HTML><html>", "HTML"),
            (b"<html lang=en>", "HTML"),
            (b"<?xml version='1.0'?><Error>", "XML"),
            (b"PK\x03\x04\0\0", "zip"),
            (b"\x1f\x8b\x08", "gzip"),
            (b"IQ== 0\nIg== 1\n", "tiktoken"),
            (b"IQ== 0\r\n", "tiktoken"),
        ];
        for (head, expected) in cases {
            let told = mistaken(head).unwrap_or_default();
            assert!(told.contains(expected), "{expected}: {told:?}");
        }
        let others: [&[u8]; 7] = [
            b"",
            b"GGUF\x03\0\0\0",
            b"{\"a\": 1}",
            b"\x0a\x0b\x0a\x04",
            b"IQ= 0\n",
            b"text and 7\n",
            b"versions of it",
        ];
        for head in others {
            assert_eq!(mistaken(head), None);
        }
    }
}
