//! Text from the user: files, pipes, stdin.

use anyhow::{Context as _, bail};
use std::fs::File;
use std::io::{self, IsTerminal as _, Read};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

/// Reads the text in `path`; `-` is stdin. Errors call it `what`. A byte order mark at its
/// beginning is removed.
///
/// # Errors
/// The file does not exist, is a directory or a device, is longer than [`TEXT_BYTES_MAX`], or is
/// not UTF-8.
pub(crate) fn text(what: &str, path: &Path) -> anyhow::Result<String> {
    if path == Path::new("-") {
        return stdin();
    }
    let name = format!("{what} {}", path.display());
    let file = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let kind = file
        .metadata()
        .with_context(|| format!("cannot read {name}"))?
        .file_type();
    if kind.is_dir() {
        bail!("{name} is a directory");
    }
    let is_text = kind.is_file() || kind.is_fifo() || kind.is_socket() || file.is_terminal();
    if !is_text {
        bail!("{name} is not a regular file");
    }
    read(&name, file)
}

/// Reads all of stdin, as [`text`] does.
///
/// # Errors
/// As [`text`].
pub(crate) fn stdin() -> anyhow::Result<String> {
    read("stdin", io::stdin().lock())
}

/// Whether stdin is a pipe or a file, so that text can be read from it.
pub(crate) fn is_piped() -> bool {
    let Ok(stdin) = rustix::fs::fstat(rustix::stdio::stdin()) else {
        return false;
    };
    let kind = rustix::fs::FileType::from_raw_mode(stdin.st_mode);
    matches!(
        kind,
        rustix::fs::FileType::Fifo | rustix::fs::FileType::RegularFile
    )
}

/// Neither a flag nor a pipe provides a text.
pub(crate) fn no_text() -> crate::outcome::UsageError {
    crate::outcome::UsageError("no text is given: use -p TEXT, -f FILE, or a pipe".to_owned())
}

fn read(name: &str, from: impl Read) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    let n = from
        .take(TEXT_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {name}"))?;
    if n as u64 > TEXT_BYTES_MAX {
        bail!("{name} has more than {} MiB", TEXT_BYTES_MAX >> 20);
    }
    if bytes.starts_with(BYTE_ORDER_MARK) {
        bytes.drain(..BYTE_ORDER_MARK.len());
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        anyhow::anyhow!("{name} is not UTF-8: invalid bytes from byte {at} on")
    })
}

/// `text` without the newline that editors add at the end of a file.
pub(crate) fn without_last_newline(text: &str) -> &str {
    let bare = text.strip_suffix('\n');
    bare.map_or(text, |line| line.strip_suffix('\r').unwrap_or(line))
}

/// Maximum length of a text: more than any context, less than memory.
const TEXT_BYTES_MAX: u64 = 1 << 30;

/// U+FEFF in UTF-8 (Unicode 23.8).
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

#[cfg(test)]
mod tests {
    use super::*;

    fn of(bytes: &[u8]) -> anyhow::Result<String> {
        read("it", bytes)
    }

    #[test]
    fn marks_and_newlines() {
        assert_eq!(of(b"\xef\xbb\xbfa\xef\xbb\xbf").unwrap(), "a\u{feff}");
        assert!(of(b"\xef\xbb").unwrap_err().to_string().contains("byte 0"));
        for (text, bare) in [("a\r\n", "a"), ("a\n\n", "a\n"), ("a\r", "a\r"), ("", "")] {
            assert_eq!(without_last_newline(text), bare);
        }
    }

    #[test]
    fn endless_input_ends() {
        let error = read("it", io::repeat(b'a')).unwrap_err();
        assert_eq!(error.to_string(), "it has more than 1024 MiB");
    }

    #[test]
    fn what_is_no_text_is_named() {
        let error = |path: &str| {
            text("prompt file", Path::new(path))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(error("/"), "prompt file / is a directory");
        assert_eq!(
            error("/dev/zero"),
            "prompt file /dev/zero is not a regular file"
        );
        assert!(error("/no/such").contains("cannot read prompt file /no/such"));
    }
}
