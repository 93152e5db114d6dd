//! The path that a proxy puts in front of every route.

use std::fmt;

/// Longer ones are a mistake.
const BYTES_MAX: usize = 200;

/// A prefix of paths: nothing, or `/` and names with `/` between them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct BasePath(String);

impl BasePath {
    /// Reads `/tasks` or `/tools/tasks`; `/` is none. A slash at the end does not count.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let path = text.strip_suffix('/').unwrap_or(text);
        let fits = |name: &str| {
            let known = |c: char| c.is_ascii_alphanumeric() || "-._~".contains(c);
            !name.is_empty() && name != "." && name != ".." && name.chars().all(known)
        };
        let is_path =
            path.is_empty() || path.strip_prefix('/').is_some_and(|names| names.split('/').all(fits));
        (text.starts_with('/') && is_path && path.len() <= BYTES_MAX).then(|| Self(path.to_owned()))
    }

    /// True when there is none.
    pub(crate) fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Without a slash at its end.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// A route without its prefix, as it is counted.
    pub(crate) fn route<'a>(&self, path: &'a str) -> &'a str {
        path.strip_prefix(&self.0).filter(|rest| rest.starts_with('/')).unwrap_or(path)
    }
}

impl fmt::Display for BasePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whether `ServerBuilder::base_path` takes this: `/`, or `/` and names of letters, digits, `-`, `.`, `_` and `~` with `/` between them.
pub fn is_base_path(text: &str) -> bool {
    BasePath::parse(text).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_base_path_is_a_slash_and_names() {
        for (text, path) in
            [("/", ""), ("/tasks", "/tasks"), ("/tasks/", "/tasks"), ("/a/b-c.d_e~f", "/a/b-c.d_e~f")]
        {
            assert_eq!(BasePath::parse(text).unwrap().as_str(), path, "{text}");
        }
        let long = format!("/{}", "x".repeat(200));
        for text in ["", "tasks", "//", "/a//b", "/a b", "/{id}", "/..", "/a/.", "/ä", "/a?b", "/*x", &long]
        {
            assert_eq!(BasePath::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_route_is_counted_without_its_prefix() {
        let base = BasePath::parse("/tasks").unwrap();

        assert_eq!(base.route("/tasks/api/v1/tasks/{id}"), "/api/v1/tasks/{id}");
        assert_eq!(base.route("/livez"), "/livez");
        assert_eq!(base.route("/tasksapi"), "/tasksapi");
        assert_eq!(BasePath::default().route("/livez"), "/livez");
    }
}
