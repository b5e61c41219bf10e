//! What a client accepts, and what it has.

use hyper::header::{self, HeaderMap, HeaderName};

/// Whether a client asks for a page, as browsers do: `*/*` alone is a program's.
pub(super) fn accepts_html(headers: &HeaderMap) -> bool {
    entries(headers, header::ACCEPT).any(|(name, is_wanted)| is_wanted && name == "text/html")
}

/// Whether a client reads gzip (RFC 9110, section 12.5.3). Without the header it reads anything.
pub(super) fn accepts_gzip(headers: &HeaderMap) -> bool {
    if !headers.contains_key(header::ACCEPT_ENCODING) {
        return true;
    }
    let find = |wanted: &[&str]| {
        let mut all = entries(headers, header::ACCEPT_ENCODING);
        all.find(|(name, _)| wanted.contains(&&**name))
            .map(|(_, is_wanted)| is_wanted)
    };
    find(&["gzip", "x-gzip"])
        .or_else(|| find(&["*"]))
        .unwrap_or(false)
}

/// Whether a client has what this tag stands for.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> bool {
    let known = headers.get_all(header::IF_NONE_MATCH).iter();
    let mut known = known
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .map(str::trim);
    // Proxies that compress again mark the tag as weak.
    known.any(|one| one == "*" || one.trim_start_matches("W/") == tag)
}

/// The entries of a list, without parameters, and whether their quality is above 0.
fn entries(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = (String, bool)> {
    let values = headers.get_all(name).into_iter();
    let values = values.filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|entry| {
        let mut parts = entry.split(';').map(str::trim);
        let name = parts.next().unwrap_or_default().to_ascii_lowercase();
        let quality = parts.find_map(|part| {
            let (key, value) = part.split_once('=')?;
            key.trim()
                .eq_ignore_ascii_case("q")
                .then(|| value.trim().parse().unwrap_or(0.0_f32))
        });
        (name, quality.is_none_or(|quality| quality > 0.0))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, value.parse().unwrap())])
    }

    #[test]
    fn browsers_ask_for_pages_and_programs_do_not() {
        for (accept, is_page) in [
            ("text/html,application/xhtml+xml,*/*;q=0.8", true),
            ("application/json, TEXT/HTML;q=0.2", true),
            ("*/*", false),
            ("application/json", false),
            ("text/html;q=0", false),
        ] {
            assert_eq!(
                accepts_html(&of(header::ACCEPT, accept)),
                is_page,
                "{accept}"
            );
        }
        assert!(!accepts_html(&HeaderMap::new()));
    }

    #[test]
    fn an_encoding_can_be_excluded() {
        for (accept, is_read) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, x-gzip;q=0.5", true),
            ("*", true),
            ("gzip;q=0, *", false),
            ("gzip; Q=0.000", false),
            ("identity", false),
            ("br", false),
            ("", false),
        ] {
            let headers = of(header::ACCEPT_ENCODING, accept);
            assert_eq!(accepts_gzip(&headers), is_read, "{accept}");
        }
        assert!(accepts_gzip(&HeaderMap::new()));
    }

    #[test]
    fn a_known_tag_may_be_weak_or_one_of_several() {
        for (known, is_same) in [
            ("\"a\"", true),
            ("W/\"a\"", true),
            ("\"b\", \"a\"", true),
            ("*", true),
            ("\"b\"", false),
        ] {
            let headers = of(header::IF_NONE_MATCH, known);
            assert_eq!(is_known(&headers, "\"a\""), is_same, "{known}");
        }
    }
}
