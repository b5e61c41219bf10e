//! Errors of downloads as clients may read them.

use crate::api::{ApiError, ErrorKind};
use sluice_pull::PullError;
use std::io;

/// An error as clients may read it: without the server's files.
pub(super) fn shown(error: &PullError) -> ApiError {
    let what = error.to_string();
    let kind = match error {
        PullError::Name { .. } => ErrorKind::Invalid,
        PullError::Limit(_) => ErrorKind::Forbidden,
        PullError::Refused { status, .. } => of_status(*status),
        PullError::NotThere { .. } => ErrorKind::NotFound,
        PullError::Unreachable { .. }
        | PullError::Answer { .. }
        | PullError::Checksum { .. }
        | PullError::TooLong { .. }
        | PullError::Stopped => ErrorKind::Unavailable,
        PullError::Disk { .. } => return hidden(ErrorKind::Unavailable, FULL, what),
        PullError::Io { error, .. } if error.kind() == io::ErrorKind::StorageFull => {
            return hidden(ErrorKind::Unavailable, FULL, what);
        }
        PullError::NotCached { .. } => {
            let shown = "the model is not in the cache, and the server is offline (--offline)";
            return hidden(ErrorKind::Unavailable, shown, what);
        }
        _ => {
            let shown = "the model could not be downloaded; the server's log says why";
            return hidden(ErrorKind::Internal, shown, what);
        }
    };
    ApiError::new(kind, what)
}

/// The kind of an error that the hub replied with this status.
const fn of_status(status: u16) -> ErrorKind {
    match status {
        // The key is right, but the hub lets this server's token not have the model.
        401 | 403 => ErrorKind::Forbidden,
        408 | 425 | 429 | 500.. => ErrorKind::Unavailable,
        _ => ErrorKind::NotFound,
    }
}

fn hidden(kind: ErrorKind, shown: &str, whole: String) -> ApiError {
    ApiError {
        detail: Some(whole),
        ..ApiError::new(kind, shown)
    }
}

/// A number of bytes for people.
pub(super) fn size(n_bytes: u64) -> String {
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let of = |unit: u64| n_bytes as f64 / unit as f64;
    match n_bytes {
        GIB.. => format!("{:.1} GiB", of(GIB)),
        _ => format!("{:.1} MiB", of(1 << 20)),
    }
}

const GIB: u64 = 1 << 30;
const FULL: &str = "the server's disk has no room for the model";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_hub_have_a_status_of_their_own() {
        let refused = |status| PullError::Refused {
            url: "hub".into(),
            status,
            why: String::new(),
        };
        let full = PullError::Io {
            path: "/secret".into(),
            error: io::ErrorKind::StorageFull.into(),
        };
        let wrong = PullError::TooLong {
            file: "m.gguf".into(),
            expected: 3,
        };
        for (error, kind) in [
            (refused(401), ErrorKind::Forbidden),
            (refused(403), ErrorKind::Forbidden),
            (refused(404), ErrorKind::NotFound),
            (refused(429), ErrorKind::Unavailable),
            (refused(502), ErrorKind::Unavailable),
            (PullError::Limit(String::new()), ErrorKind::Forbidden),
            (full, ErrorKind::Unavailable),
            (wrong, ErrorKind::Unavailable),
        ] {
            let shown = shown(&error);
            assert_eq!(shown.kind, kind, "{error}");
            assert!(!shown.what.contains("/secret"), "{}", shown.what);
        }
    }
}
