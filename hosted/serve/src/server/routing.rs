//! Finds the dialect and the route of a request.

use crate::api::ApiError;
use crate::dialect::{self, Action, Dialect};
use hyper::{HeaderMap, Method};

/// The route of a request.
pub(super) struct Route {
    /// The dialect, in which errors are written, too.
    pub(super) dialect: &'static dyn Dialect,
    pub(super) action: Result<Action, ApiError>,
    /// The methods that the path supports, if the request's is not one of them.
    pub(super) methods: Vec<&'static str>,
}

/// Finds the route of a request.
pub(super) fn find(method: &Method, path: &str, headers: &HeaderMap) -> Route {
    // HEAD is answered like GET, without a body.
    let method = if method == Method::HEAD {
        &Method::GET
    } else {
        method
    };
    let all = dialect::ALL.iter().flat_map(|&dialect| {
        let routes = dialect.routes().iter();
        routes.map(move |route| (dialect, route))
    });
    let is_meant =
        |route: &dialect::Route| route.header.is_none_or(|name| headers.contains_key(name));
    let mut of_path: Vec<_> = all
        .filter(|(_, route)| matches(route.path, path) && is_meant(route))
        .collect();
    // Routes for requests with a header come first, then routes of exactly this path.
    of_path.sort_by_key(|(_, route)| (route.header.is_none(), route.path.contains('{')));
    if let Some((dialect, route)) = of_path.iter().find(|(_, route)| route.method == method) {
        return Route {
            dialect: *dialect,
            action: Ok(route.action),
            methods: Vec::new(),
        };
    }
    let mut methods = Vec::new();
    for (_, route) in &of_path {
        methods.push(route.method.as_str());
        if route.method == Method::GET {
            methods.push("HEAD");
        }
    }
    Route {
        dialect: of_path
            .first()
            .map_or_else(|| owner(path), |(dialect, _)| *dialect),
        action: Err(match of_path.is_empty() {
            true => ApiError::no_route(path),
            false => ApiError::method(),
        }),
        methods,
    }
}

/// The dialect that answers for an unknown path.
fn owner(path: &str) -> &'static dyn Dialect {
    let mut all = dialect::ALL.iter().copied();
    let owns = |dialect: &&dyn Dialect| {
        let prefix = dialect.prefix();
        prefix.is_some_and(|prefix| path.starts_with(prefix))
    };
    all.find(owns).unwrap_or(dialect::ALL[0])
}

/// Whether a path matches a route, in which parts in braces match anything.
fn matches(route: &str, path: &str) -> bool {
    let mut parts = path.split('/');
    let all = route.split('/').all(|expected| {
        let is_any = expected.starts_with('{');
        parts.next().is_some_and(|part| match is_any {
            true => !part.is_empty(),
            false => part == expected,
        })
    });
    all && parts.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_has_a_path_and_a_method() {
        let status = |method: Method, path: &str| {
            let route = find(&method, path, &HeaderMap::new());
            let kind = route.action.err().map(|error| format!("{:?}", error.kind));
            (kind, route.methods.join(","))
        };
        let found = (None, String::new());
        assert_eq!(status(Method::GET, "/health"), found);
        assert_eq!(status(Method::HEAD, "/health"), found);
        assert_eq!(status(Method::GET, "/v1/models/a%20b"), found);
        assert_eq!(status(Method::POST, "/v1/models"), found);
        for path in ["/healthy", "/health/", "/v1/models/a/b", "/v1/models/"] {
            assert_eq!(status(Method::GET, path).0.unwrap(), "NotFound", "{path}");
        }
        let wrong = (Some("Method".to_owned()), "GET,HEAD".to_owned());
        assert_eq!(status(Method::DELETE, "/health"), wrong);
    }

    #[test]
    fn a_header_tells_two_dialects_with_the_same_path_apart() {
        let mut headers = HeaderMap::new();
        let plain = find(&Method::GET, "/v1/models", &headers).dialect;
        headers.insert("anthropic-version", "2023-06-01".parse().unwrap());
        let theirs = find(&Method::GET, "/v1/models", &headers).dialect;
        let error = |dialect: &dyn Dialect| {
            let of = dialect::ErrorOf {
                status: 404,
                request: "req-1",
            };
            dialect.error(&ApiError::no_route("/"), of)
        };
        assert_eq!(error(theirs)["type"], "error");
        assert_ne!(error(plain)["type"], "error");
    }

    #[test]
    fn no_two_dialects_have_a_route() {
        let all = dialect::ALL.iter().flat_map(|dialect| dialect.routes());
        let mut all: Vec<_> = all
            .map(|route| (route.path, route.method.as_str(), route.header))
            .collect();
        all.sort_unstable();
        assert!(all.windows(2).all(|two| two[0] != two[1]));
    }
}
