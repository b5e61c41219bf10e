//! The files of the page.

/// A file of the page.
#[derive(Debug)]
pub(super) struct Part {
    pub(super) content_type: &'static str,
    pub(super) gzip: &'static [u8],
    /// Its `ETag`, from the hash of its uncompressed bytes.
    pub(super) tag: String,
    /// Whether it is the page itself, whose name stays when it changes.
    pub(super) is_page: bool,
}

/// Each file's name, and the name with its hash that it has in addresses; of the page itself, the hash alone.
const NAMES: &str = include_str!("../../page/dist/names.txt");
const PAGE: &str = "index.html";

const FILES: [(&str, &str, &[u8]); 5] = [
    (
        PAGE,
        "text/html; charset=utf-8",
        include_bytes!("../../page/dist/index.html.gz"),
    ),
    (
        "page.js",
        "text/javascript; charset=utf-8",
        include_bytes!("../../page/dist/page.js.gz"),
    ),
    (
        "page.css",
        "text/css; charset=utf-8",
        include_bytes!("../../page/dist/page.css.gz"),
    ),
    (
        "icon.svg",
        "image/svg+xml",
        include_bytes!("../../page/dist/icon.svg.gz"),
    ),
    (
        "licences.txt",
        "text/plain; charset=utf-8",
        include_bytes!("../../page/dist/licences.txt.gz"),
    ),
];

/// The page itself.
pub(super) fn page() -> Part {
    let names = names().find(|(name, _)| *name == PAGE);
    let (_, hash) = names.unwrap_or((PAGE, ""));
    part(PAGE, hash).expect("it is one of the files")
}

/// The file at a path.
pub(super) fn named(path: &str) -> Option<Part> {
    let hashed = path.strip_prefix("/page/")?;
    let (name, _) = names().find(|(name, known)| *known == hashed && *name != PAGE)?;
    part(name, hashed)
}

fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    NAMES.lines().filter_map(|line| line.split_once(' '))
}

fn part(name: &str, hash: &str) -> Option<Part> {
    let (_, content_type, gzip) = *FILES.iter().find(|(known, ..)| *known == name)?;
    Some(Part {
        content_type,
        gzip,
        tag: format!("\"{hash}\""),
        is_page: name == PAGE,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_has_a_name_and_every_name_a_file() {
        let all: Vec<_> = names().collect();
        assert_eq!(all.len(), FILES.len());
        for (name, hashed) in all {
            assert!(part(name, hashed).is_some(), "{name}");
            let is_page = name == PAGE;
            assert_eq!(named(&format!("/page/{hashed}")).is_none(), is_page);
            assert!(named(&format!("/page/{name}")).is_none(), "{name}");
        }
        assert!(page().is_page);
    }

    /// The bar for the page is 250 KB compressed; this is what it is kept below.
    #[test]
    fn the_page_is_light() {
        let bytes: usize = FILES.iter().map(|(.., gzip)| gzip.len()).sum();
        assert!(bytes <= 120 << 10, "{bytes} bytes");
    }
}
