//! Whether a file path lies below a directory, judged by its text alone.
//!
//! Nothing here looks at a file system, so symbolic links are not seen: `/projects/link/x` lies below `/projects`
//! wherever `link` points.

use super::matcher::Doubt;

/// A directory that `path_under` compares with; already free of `.`, `..` and repeated separators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BasePath {
    absolute: bool,
    components: Vec<String>,
}

impl BasePath {
    /// Reads a base as the configuration has it.
    ///
    /// # Errors
    ///
    /// In words, for a base that would leave every candidate in doubt.
    pub(super) fn parse(text: &str) -> Result<BasePath, String> {
        if let Some(doubt) = unclear(text) {
            return Err(format!("{text:?} cannot be compared with: {doubt}"));
        }
        let mut components: Vec<&str> = Vec::new();
        let absolute = text.starts_with('/');
        for component in steps(text) {
            if component != ".." {
                components.push(component);
            } else if components.pop().is_none() && !absolute {
                return Err(format!("{text:?} cannot be compared with: {}", Doubt::PathClimbs));
            }
        }
        Ok(BasePath { absolute, components: components.into_iter().map(str::to_owned).collect() })
    }

    /// Whether `candidate` is this directory or lies below it.
    ///
    /// The candidate is followed step by step with only a count of how much of it agrees with the base, so that a path
    /// of any length costs no memory.
    ///
    /// # Errors
    ///
    /// The doubt, if the text alone cannot tell: what is relative depends on the server's working directory.
    pub(super) fn holds(&self, candidate: &str) -> Result<bool, Doubt> {
        if let Some(doubt) = unclear(candidate) {
            return Err(doubt);
        }
        let absolute = candidate.starts_with('/');
        if absolute != self.absolute {
            return Err(if absolute { Doubt::PathAbsolute } else { Doubt::PathRelative });
        }
        let mut depth = 0_usize;
        let mut agreeing = 0_usize;
        for component in steps(candidate) {
            if component == ".." {
                if depth == 0 && !absolute {
                    return Err(Doubt::PathClimbs);
                }
                // The parent of `/` is `/`.
                depth = depth.saturating_sub(1);
                agreeing = agreeing.min(depth);
                continue;
            }
            if agreeing == depth && self.components.get(depth).is_some_and(|wanted| wanted == component) {
                agreeing += 1;
            }
            depth += 1;
        }
        Ok(agreeing == self.components.len())
    }
}

/// The components that mean something: repeated separators and `.` do not.
fn steps(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|component| !component.is_empty() && *component != ".")
}

/// What makes a text unfit to be judged as a path at all: servers differ in what they make of it.
fn unclear(path: &str) -> Option<Doubt> {
    if path.is_empty() {
        return Some(Doubt::PathEmpty);
    }
    // NUL ends the name for the system underneath; a backslash separates on some systems and servers, `~` is
    // expanded by some, and a colon in the first component is a drive or a URL scheme to some.
    let first = path.split('/').next().unwrap_or_default();
    if path.contains(['\0', '\\']) || first.starts_with('~') || first.contains(':') {
        return Some(Doubt::PathAmbiguous);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(base: &str, candidate: &str) -> Result<bool, Doubt> {
        BasePath::parse(base).expect("the base is valid").holds(candidate)
    }

    #[test]
    fn only_the_directory_and_what_lies_below_it_is_under() {
        let cases = [
            ("/projects", "/projects", true),
            ("/projects", "/projects/", true),
            ("/projects", "/projects/a/b.txt", true),
            ("/projects/", "/projects/a", true),
            ("/projects", "/projects-evil/a", false),
            ("/projects", "/project", false),
            ("/projects", "/", false),
            ("/projects", "/projects/../etc/passwd", false),
            ("/projects", "/projects/a/../../etc", false),
            ("/projects", "/projects/a/../b", true),
            ("/projects", "/etc/../projects/a", true),
            ("/projects", "/../../projects/a", true),
            ("/projects", "//projects///./a/.", true),
            ("/projects", "/./projects/..", false),
            ("/projects", "/projects/...", true),
            ("/projects", "/projects/..a", true),
            ("/projects", "/Projects/a", false),
            ("/projects", "/projects /a", false),
            ("/projects", "/projects\n", false),
            ("/a/b", "/a/c/../b/x", true),
            ("/a/b", "/a/b/../../b", false),
            ("/a/b", "/a/x/b", false),
            ("/a/b", "/x/b/../b", false),
            ("/a/../b", "/b/c", true),
            ("/", "/anything", true),
            ("/", "/..", true),
            ("src", "src/main.rs", true),
            ("src", "./src//main.rs", true),
            ("src", "src/../Cargo.toml", false),
            ("./src/", "srcs/main.rs", false),
            (".", "Cargo.toml", true),
            (".", "a/../b", true),
        ];
        for (base, candidate, expected) in cases {
            assert_eq!(holds(base, candidate), Ok(expected), "{candidate:?} under {base:?}");
        }
    }

    #[test]
    fn what_depends_on_the_server_is_in_doubt() {
        let cases = [
            ("/projects", "a.txt", Doubt::PathRelative),
            ("/projects", "../projects/a", Doubt::PathRelative),
            ("src", "/src/main.rs", Doubt::PathAbsolute),
            ("src", "../src/main.rs", Doubt::PathClimbs),
            (".", "a/../../b", Doubt::PathClimbs),
            ("/projects", "", Doubt::PathEmpty),
            ("/projects", "/projects/a\0/../../etc", Doubt::PathAmbiguous),
            ("/projects", r"/projects/..\..\etc", Doubt::PathAmbiguous),
            (".", "~/.ssh/id_rsa", Doubt::PathAmbiguous),
            (".", "~root", Doubt::PathAmbiguous),
            (".", "file:///etc/passwd", Doubt::PathAmbiguous),
            (".", "C:/Windows", Doubt::PathAmbiguous),
        ];
        for (base, candidate, expected) in cases {
            assert_eq!(holds(base, candidate), Err(expected), "{candidate:?} under {base:?}");
        }
        assert_eq!(holds("/a", "/a/b~/c:d"), Ok(true), "inside a path `~` and `:` are ordinary");
    }

    #[test]
    fn a_base_that_leaves_everything_in_doubt_is_refused() {
        for base in ["", "..", "../x", "a/../..", "~/projects", r"C:\x", "C:/x", "file:///x", "/a\0"] {
            assert!(BasePath::parse(base).is_err(), "{base:?}");
        }
    }
}
