//! Which era a server speaks: the decisions of the opening, without any waiting or writing.
//!
//! A modern server answers `server/discover`; a legacy one refuses it, stays silent or exits, and then wants
//! `initialize` (MCP 2026-07-28, stdio transport, compatibility with earlier versions). A server that is slow to start
//! may answer the probe after `initialize` was sent to it, too; a late answer is as good as a quick one.

/// The revision of the modern era that we speak.
pub(super) const MODERN_VERSION: &str = "2026-07-28";

/// The revisions of the legacy era that we speak, the newest first.
pub(super) const LEGACY_VERSIONS: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// The rules that were agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Era {
    /// `initialize` once, then requests without more.
    Legacy,
    /// Every request says the version and who asks.
    Modern,
}

/// What came of what was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Heard {
    /// The probe's result: the versions that the server offers.
    Discovered(Vec<String>),
    /// The probe's error, with the versions that it names.
    DiscoverRefused { versions: Vec<String>, text: String },
    /// The answer to `initialize`: the version that the server chose.
    Initialized(String),
    /// The error to `initialize`.
    InitializeRefused(String),
    /// The probe's time is over.
    Silence,
    /// The process ended or closed its output; how, in words.
    Gone(String),
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Go on listening.
    Wait,
    /// Send `initialize`.
    Initialize,
    /// Start the process again and send it `initialize` alone.
    StartAgain,
    /// The opening is over.
    Ready(Era),
    /// There is no common language.
    Fail(String),
}

/// How far the opening is.
#[derive(Clone, Debug, Default)]
pub(super) struct Opening {
    initialize_sent: bool,
    /// Why `initialize` failed while the probe may still be answered.
    initialize_refused: Option<String>,
    probe_over: bool,
    started_again: bool,
}

impl Opening {
    pub(super) fn hear(&mut self, heard: Heard) -> Next {
        match heard {
            Heard::Discovered(versions) => self.offered(&versions, "it answered server/discover"),
            Heard::DiscoverRefused { versions, text } if versions.is_empty() => {
                self.probe_over = true;
                match &self.initialize_refused {
                    Some(refused) => Next::Fail(format!("server/discover: {text}; initialize: {refused}")),
                    None => self.initialize(),
                }
            }
            Heard::DiscoverRefused { versions, text } => self.offered(&versions, &text),
            Heard::Initialized(version) if LEGACY_VERSIONS.contains(&version.as_str()) => Next::Ready(Era::Legacy),
            Heard::Initialized(version) => {
                Next::Fail(format!("it chose protocol version {version:?}; known are {}", known_versions()))
            }
            Heard::InitializeRefused(text) if self.probe_over => Next::Fail(format!("initialize: {text}")),
            Heard::InitializeRefused(text) => {
                self.initialize_refused = Some(text);
                Next::Wait
            }
            Heard::Silence => match &self.initialize_refused {
                Some(refused) => Next::Fail(format!("no answer to server/discover; initialize: {refused}")),
                None => self.initialize(),
            },
            // Some servers exit at any first message but `initialize`.
            Heard::Gone(_) if !self.started_again => {
                (self.started_again, self.probe_over, self.initialize_sent) = (true, true, true);
                Next::StartAgain
            }
            Heard::Gone(text) => Next::Fail(text),
        }
    }

    fn initialize(&mut self) -> Next {
        if self.initialize_sent {
            return Next::Wait;
        }
        self.initialize_sent = true;
        Next::Initialize
    }

    fn offered(&mut self, versions: &[String], text: &str) -> Next {
        self.probe_over = true;
        let offers = |known: &str| versions.iter().any(|version| version == known);
        if offers(MODERN_VERSION) {
            return Next::Ready(Era::Modern);
        }
        match &self.initialize_refused {
            None if LEGACY_VERSIONS.into_iter().any(offers) => self.initialize(),
            _ => {
                let offered = versions.join(", ");
                Next::Fail(format!("{text}, but offers only {offered}; known are {}", known_versions()))
            }
        }
    }
}

fn known_versions() -> String {
    format!("{MODERN_VERSION}, {}", LEGACY_VERSIONS.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn discovered(versions: &[&str]) -> Heard {
        Heard::Discovered(versions.iter().map(|version| (*version).to_owned()).collect())
    }

    fn refused(versions: &[&str]) -> Heard {
        let versions = versions.iter().map(|version| (*version).to_owned()).collect();
        Heard::DiscoverRefused { versions, text: "no".to_owned() }
    }

    fn initialized(version: &str) -> Heard {
        Heard::Initialized(version.to_owned())
    }

    fn story(heard: Vec<Heard>) -> Vec<Next> {
        let mut opening = Opening::default();
        heard.into_iter().map(|heard| opening.hear(heard)).collect()
    }

    #[test]
    fn pro_1_each_way_to_answer_the_probe_leads_to_an_era() {
        let legacy = [Next::Initialize, Next::Ready(Era::Legacy)];
        assert_eq!(story(vec![discovered(&["2025-11-25", "2026-07-28"])]), [Next::Ready(Era::Modern)]);
        assert_eq!(story(vec![refused(&["2026-07-28"])]), [Next::Ready(Era::Modern)]);
        assert_eq!(story(vec![refused(&[]), initialized("2025-11-25")]), legacy);
        assert_eq!(story(vec![refused(&["2025-06-18"]), initialized("2025-06-18")]), legacy);
        assert_eq!(story(vec![discovered(&["2024-11-05"]), initialized("2024-11-05")]), legacy);
        assert_eq!(story(vec![Heard::Silence, initialized("2025-03-26")]), legacy);
    }

    #[test]
    fn pro_1_a_server_that_exits_at_the_probe_is_started_once_more() {
        let gone = || Heard::Gone("exited".to_owned());
        assert_eq!(story(vec![gone(), initialized("2025-11-25")]), [Next::StartAgain, Next::Ready(Era::Legacy)]);
        assert_eq!(story(vec![gone(), gone()]), [Next::StartAgain, Next::Fail("exited".to_owned())]);
    }

    #[test]
    fn a_slow_server_may_answer_the_probe_after_initialize_was_sent() {
        let late = |last: Heard| story(vec![Heard::Silence, Heard::InitializeRefused("who?".to_owned()), last]);
        assert_eq!(late(discovered(&["2026-07-28"])), [Next::Initialize, Next::Wait, Next::Ready(Era::Modern)]);
        let failed = Next::Fail("server/discover: no; initialize: who?".to_owned());
        assert_eq!(late(refused(&[])), [Next::Initialize, Next::Wait, failed]);
        let failed = Next::Fail("no answer to server/discover; initialize: who?".to_owned());
        assert_eq!(late(Heard::Silence), [Next::Initialize, Next::Wait, failed]);
        // A late refusal must not send initialize twice.
        assert_eq!(story(vec![Heard::Silence, refused(&[])]), [Next::Initialize, Next::Wait]);
    }

    #[test]
    fn without_a_common_version_the_failure_names_both_sides() {
        let one = |heard| story(vec![heard]).pop();
        for heard in [discovered(&["2031-01-01"]), initialized("2031-01-01")] {
            let Some(Next::Fail(text)) = one(heard) else { panic!("no failure") };
            assert!(text.contains("2031-01-01") && text.contains("2026-07-28, 2025-11-25"), "{text}");
        }
        assert_eq!(
            story(vec![refused(&[]), Heard::InitializeRefused("no".to_owned())]),
            [Next::Initialize, Next::Fail("initialize: no".to_owned())]
        );
    }
}
