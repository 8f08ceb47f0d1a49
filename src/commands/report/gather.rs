//! Sums up events as they are read, in bounded memory whatever their number and whatever names are in them.

use std::collections::BTreeMap;

use super::latency::{Latencies, Precision};
use crate::cli::Dimension;
use crate::clock::Wall;
use crate::glob::Glob;
use crate::store::reading::{Replay, StoredEvent};

/// Rows of the report; calls of further groups are summed up in one row of their own.
const GROUPS_MAX: usize = 5_000;
/// Different names that are kept, and their bytes.
const NAMES_MAX: usize = 20_000;
const NAMES_BYTES_MAX: usize = 4 * 1024 * 1024;
/// Different latencies that are kept over all groups, some 40 bytes each.
const LATENCIES_MAX: usize = 400_000;
/// Classes of failures that are told apart in one row; there are seven, and a newer version may know more.
const CLASSES_MAX: usize = 16;
/// Slices of the time that charts show.
const SLICES_MAX: i64 = 96;

/// Which calls count.
#[derive(Clone, Debug, Default)]
pub(crate) struct Filter {
    pub(crate) tool: Option<Glob>,
    pub(crate) caller: Option<String>,
    pub(crate) server: Option<String>,
}

impl Filter {
    pub(crate) fn takes(&self, caller: &str, server: &str, tool: &str) -> bool {
        self.caller.as_ref().is_none_or(|wanted| wanted == caller)
            && self.server.as_ref().is_none_or(|wanted| wanted == server)
            && self.tool.as_ref().is_none_or(|glob| glob.matches(tool))
    }
}

/// The sums of some calls.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) calls: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) failed: u64,
    pub(crate) cancelled: u64,
    /// Calls of more than one attempt.
    pub(crate) retried: u64,
    /// Replays of dead letters.
    pub(crate) replayed: u64,
    pub(crate) request_bytes: u64,
    pub(crate) response_bytes: u64,
    /// Failures by their class.
    pub(crate) classes: BTreeMap<String, u64>,
    /// Of calls that ran or may have run.
    pub(crate) latencies: Latencies,
}

impl Sums {
    /// Failed calls as a fraction of all.
    pub(crate) fn error_rate(&self) -> f64 {
        if self.calls == 0 { 0.0 } else { self.failed as f64 / self.calls as f64 }
    }

    /// p50, p95 and p99.
    pub(crate) fn percentiles(&self) -> Option<[u64; 3]> {
        self.latencies.percentiles([50, 95, 99])
    }

    /// Classes of failures, the most frequent first.
    pub(crate) fn top_classes(&self) -> Vec<(&str, u64)> {
        let mut classes: Vec<(&str, u64)> =
            self.classes.iter().map(|(class, count)| (class.as_str(), *count)).collect();
        classes.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(b.0)));
        classes
    }

    /// Gives how many more latencies are kept than before.
    fn add(&mut self, event: &StoredEvent<'_>, precision: Precision) -> usize {
        self.calls += 1;
        match event.decision {
            "allowed" => self.allowed += 1,
            "denied" => self.denied += 1,
            "cancelled" => self.cancelled += 1,
            // Also a word that only a newer version knows: nobody should miss it.
            _ => {
                self.failed += 1;
                let class = event.class.unwrap_or("unknown");
                let room = self.classes.len() < CLASSES_MAX;
                match self.classes.get_mut(class) {
                    Some(count) => *count += 1,
                    None => *self.classes.entry(if room { class } else { "unknown" }.to_owned()).or_insert(0) += 1,
                }
            }
        }
        self.retried += u64::from(event.attempts > 1);
        self.request_bytes = self.request_bytes.saturating_add(event.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(event.response_bytes);
        if executed(event) { self.latencies.add(event.latency_ms, precision) } else { 0 }
    }

    fn merge(&mut self, other: &Sums) {
        self.calls += other.calls;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.failed += other.failed;
        self.cancelled += other.cancelled;
        self.retried += other.retried;
        self.replayed += other.replayed;
        self.request_bytes = self.request_bytes.saturating_add(other.request_bytes);
        self.response_bytes = self.response_bytes.saturating_add(other.response_bytes);
        for (class, count) in &other.classes {
            *self.classes.entry(class.clone()).or_insert(0) += count;
        }
        self.latencies.merge(&other.latencies);
    }
}

/// Whether the tool ran or may have run. A call that was refused or withdrawn says nothing of how fast a tool is, nor
/// does one that never reached it.
fn executed(event: &StoredEvent<'_>) -> bool {
    !matches!(event.decision, "denied" | "cancelled") && event.executed != Some("no")
}

/// The value of one dimension of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Member {
    /// A name or a word.
    Text(String),
    /// The beginning of the hour or day.
    Time(Wall),
    /// The dimension does not apply: the class of a call that did not fail.
    None,
    /// Groups, or names, beyond those that are told apart.
    Other,
}

/// One row of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Group {
    /// One for each dimension that was asked for, in that order.
    pub(crate) members: Vec<Member>,
    pub(crate) sums: Sums,
}

/// One slice of the time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slice {
    /// Where it begins.
    pub(crate) at: Wall,
    pub(crate) sums: Sums,
}

/// All of it, summed up.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    pub(crate) totals: Sums,
    /// Most calls first.
    pub(crate) groups: Vec<Group>,
    /// Empty if slices were not asked for.
    pub(crate) slices: Vec<Slice>,
    /// How long a slice is.
    pub(crate) slice_ms: i64,
    /// How far percentiles can be off, as a fraction; 0 if they are exact.
    pub(crate) latency_error_max: f64,
}

/// The dimensions of an event, as numbers that are cheap to compare.
type Key = [u32; Dimension::ALL.len()];
const OTHER: u32 = u32::MAX;
const NONE: u32 = u32::MAX - 1;

/// Places in front of a map where what was found last is found again, by a hash that is quick rather than good. Most
/// events are of few groups, and a look into the map for each would take longer than reading the event.
const SLOTS: usize = 4_096;

/// FNV-1a over the words, down to a slot.
fn slot(words: impl Iterator<Item = u64>) -> usize {
    let hash = words.fold(0xcbf2_9ce4_8422_2325_u64, |hash, word| (hash ^ word).wrapping_mul(0x0100_0000_01b3));
    usize::try_from(hash >> 40).unwrap_or(0) % SLOTS
}

/// Names as numbers, few enough to be kept.
struct Names {
    numbers: BTreeMap<String, u32>,
    names: Vec<String>,
    bytes: usize,
    slots: Vec<u32>,
}

impl Names {
    fn new() -> Names {
        Names { numbers: BTreeMap::new(), names: Vec::new(), bytes: 0, slots: vec![OTHER; SLOTS] }
    }

    fn number(&mut self, name: &str) -> u32 {
        let slot = slot(name.bytes().map(u64::from));
        let last = self.slots[slot];
        if self.names.get(last as usize).is_some_and(|known| known == name) {
            return last;
        }
        let number = match self.numbers.get(name) {
            Some(number) => *number,
            None if self.names.len() >= NAMES_MAX || self.bytes + name.len() > NAMES_BYTES_MAX => return OTHER,
            None => {
                let number = u32::try_from(self.names.len()).unwrap_or(OTHER);
                self.bytes += name.len();
                self.names.push(name.to_owned());
                self.numbers.insert(name.to_owned(), number);
                number
            }
        };
        self.slots[slot] = number;
        number
    }

    fn member(&self, number: u32) -> Member {
        match self.names.get(number as usize) {
            Some(name) => Member::Text(name.clone()),
            None if number == NONE => Member::None,
            None => Member::Other,
        }
    }
}

/// Takes events and replays one by one.
pub(crate) struct Gather {
    filter: Filter,
    dimensions: Vec<Dimension>,
    names: Names,
    keys: BTreeMap<Key, usize>,
    sums: Vec<Sums>,
    /// See [`SLOTS`].
    slots: Vec<Option<(Key, usize)>>,
    /// What the tool filter said of the last name.
    verdict: Option<(String, bool)>,
    slices: Vec<Slice>,
    slice_ms: i64,
    precision: Precision,
    distinct: usize,
}

impl Gather {
    /// `slices` is the time that charts show, first and last moment; `None` for no charts.
    pub(crate) fn new(filter: Filter, dimensions: &[Dimension], slices: Option<(Wall, Wall)>) -> Gather {
        let (slices, slice_ms) = slices.map_or((Vec::new(), 1), |(from, to)| sliced(from, to));
        Gather {
            filter,
            dimensions: dimensions.to_vec(),
            names: Names::new(),
            keys: BTreeMap::new(),
            sums: Vec::new(),
            slots: vec![None; SLOTS],
            verdict: None,
            slices,
            slice_ms,
            precision: Precision::EXACT,
            distinct: 0,
        }
    }

    /// Counts a call, if the filter takes it.
    pub(crate) fn event(&mut self, event: &StoredEvent<'_>) {
        if !self.takes(event.caller, event.server, event.tool) {
            return;
        }
        let key = self.key(event.at, event.caller, event.server, event.tool, Some(event));
        let group = self.group(key);
        self.distinct += self.sums[group].add(event, self.precision);
        if let Some(slice) = self.slice(event.at) {
            self.distinct += self.slices[slice].sums.add(event, self.precision);
        }
        if self.distinct > LATENCIES_MAX {
            self.coarsen();
        }
    }

    /// Counts a replay, if the filter takes it. `server` is `None` if nobody knows it any more.
    pub(crate) fn replay(&mut self, replay: &Replay, server: Option<&str>) {
        let server = server.unwrap_or("unknown");
        if self.takes(&replay.caller, server, &replay.tool) {
            let key = self.key(replay.at, &replay.caller, server, &replay.tool, None);
            let group = self.group(key);
            self.sums[group].replayed += 1;
        }
    }

    /// The filter, which asks the glob only once for each run of the same tool.
    fn takes(&mut self, caller: &str, server: &str, tool: &str) -> bool {
        let named = |wanted: &Option<String>, name: &str| wanted.as_ref().is_none_or(|wanted| wanted == name);
        if !named(&self.filter.caller, caller) || !named(&self.filter.server, server) {
            return false;
        }
        let Some(glob) = &self.filter.tool else { return true };
        match &self.verdict {
            Some((name, verdict)) if name == tool => *verdict,
            _ => {
                let verdict = glob.matches(tool);
                self.verdict = Some((tool.to_owned(), verdict));
                verdict
            }
        }
    }

    fn key(&mut self, at: Wall, caller: &str, server: &str, tool: &str, event: Option<&StoredEvent<'_>>) -> Key {
        const HOUR_MS: i64 = 3_600_000;
        let mut key = [NONE; Dimension::ALL.len()];
        for (place, dimension) in self.dimensions.iter().enumerate() {
            let unit = |length: i64| u32::try_from(at.0.div_euclid(length)).unwrap_or(0);
            key[place] = match dimension {
                Dimension::Caller => self.names.number(caller),
                Dimension::Server => self.names.number(server),
                Dimension::Tool => self.names.number(tool),
                Dimension::Class => match event.and_then(|event| event.class) {
                    Some(class) => self.names.number(class),
                    None => NONE,
                },
                // A replay is told by a call event of its own as well; here it is a decision of its own kind.
                Dimension::Decision => self.names.number(event.map_or("replayed", |event| event.decision)),
                Dimension::Hour => unit(HOUR_MS),
                Dimension::Day => unit(24 * HOUR_MS),
            };
        }
        key
    }

    fn group(&mut self, key: Key) -> usize {
        let slot = slot(key.iter().map(|number| u64::from(*number)));
        if let Some((last, group)) = self.slots[slot]
            && last == key
        {
            return group;
        }
        let key = if self.keys.len() >= GROUPS_MAX && !self.keys.contains_key(&key) {
            [OTHER; Dimension::ALL.len()]
        } else {
            key
        };
        let group = *self.keys.entry(key).or_insert_with(|| {
            self.sums.push(Sums::default());
            self.sums.len() - 1
        });
        self.slots[slot] = Some((key, group));
        group
    }

    fn slice(&self, at: Wall) -> Option<usize> {
        let first = self.slices.first()?.at;
        let place = usize::try_from((at.0 - first.0).div_euclid(self.slice_ms)).ok()?;
        (place < self.slices.len()).then_some(place)
    }

    fn coarsen(&mut self) {
        self.precision = self.precision.coarser();
        let slices = self.slices.iter_mut().map(|slice| &mut slice.sums);
        self.distinct = self.sums.iter_mut().chain(slices).fold(0, |distinct, sums| {
            sums.latencies.coarsen(self.precision);
            distinct + sums.latencies.distinct()
        });
    }

    /// The sums, most calls first.
    pub(crate) fn finish(mut self) -> Gathered {
        let slices = self.slices.iter_mut().map(|slice| &mut slice.sums);
        self.sums.iter_mut().chain(slices).for_each(|sums| sums.latencies.settle());
        let mut totals = Sums::default();
        let mut groups: Vec<Group> = Vec::new();
        for (key, at) in &self.keys {
            totals.merge(&self.sums[*at]);
            let members = self.dimensions.iter().zip(key).map(|(dimension, number)| match dimension {
                _ if *number == OTHER => Member::Other,
                Dimension::Hour => Member::Time(Wall(i64::from(*number) * 3_600_000)),
                Dimension::Day => Member::Time(Wall(i64::from(*number) * 86_400_000)),
                _ => self.names.member(*number),
            });
            groups.push(Group { members: members.collect(), sums: std::mem::take(&mut self.sums[*at]) });
        }
        groups.sort_by(|a, b| b.sums.calls.cmp(&a.sums.calls).then_with(|| a.members.cmp(&b.members)));
        Gathered {
            totals,
            groups,
            slices: self.slices,
            slice_ms: self.slice_ms,
            latency_error_max: self.precision.error_max(),
        }
    }
}

/// Slices of a round length that cover the time.
fn sliced(from: Wall, to: Wall) -> (Vec<Slice>, i64) {
    const MINUTE: i64 = 60_000;
    const ROUND: [i64; 12] = [1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440];
    let span = (to.0 - from.0).max(0);
    let day = 1_440 * MINUTE;
    let fits = |length: &i64| span / length <= SLICES_MAX;
    let length = ROUND.iter().map(|minutes| minutes * MINUTE).find(fits);
    let length = length.unwrap_or_else(|| (span / SLICES_MAX / day + 1) * day);
    let first = from.0.div_euclid(length);
    let last = to.0.div_euclid(length);
    let slices = (first..=last).map(|n| Slice { at: Wall(n * length), sums: Sums::default() });
    (slices.collect(), length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event<'a>(tool: &'a str, decision: &'static str, latency_ms: u64) -> StoredEvent<'a> {
        StoredEvent {
            at: Wall(7_200_000),
            caller: "local",
            server: "files",
            tool,
            decision,
            class: (decision == "failed").then_some("timeout"),
            executed: (decision == "failed").then_some("maybe"),
            latency_ms,
            request_bytes: 10,
            response_bytes: 20,
            attempts: 1,
        }
    }

    fn gathered(dimensions: &[Dimension], events: &[StoredEvent<'_>]) -> Gathered {
        let mut gather = Gather::new(Filter::default(), dimensions, None);
        events.iter().for_each(|event| gather.event(event));
        gather.finish()
    }

    fn text(text: &str) -> Member {
        Member::Text(text.to_owned())
    }

    #[test]
    fn percentiles_are_those_of_calls_that_ran_or_may_have_run() {
        let not_sent = StoredEvent { class: Some("circuit_open"), executed: Some("no"), ..event("a", "failed", 1) };
        let found = gathered(
            &[],
            &[
                event("a", "allowed", 100),
                event("a", "denied", 0),
                event("a", "cancelled", 5_000),
                event("a", "failed", 300),
                not_sent,
            ],
        );
        assert_eq!(found.totals.percentiles(), Some([100, 300, 300]));
        assert_eq!(found.totals.latencies.total(), 2);
        let Sums { calls, allowed, denied, failed, cancelled, .. } = found.totals;
        assert_eq!((calls, allowed, denied, failed, cancelled), (5, 1, 1, 2, 1));
        assert_eq!(found.totals.top_classes(), [("circuit_open", 1), ("timeout", 1)]);
    }

    #[test]
    fn rows_are_told_apart_by_what_was_asked_for_the_most_calls_first() {
        let events =
            [event("b", "allowed", 1), event("a", "failed", 1), event("c", "allowed", 1), event("b", "allowed", 1)];
        let members = |dimensions: &[Dimension]| -> Vec<Vec<Member>> {
            gathered(dimensions, &events).groups.into_iter().map(|group| group.members).collect()
        };
        assert_eq!(members(&[Dimension::Tool]), [[text("b")], [text("a")], [text("c")]]);
        assert_eq!(members(&[Dimension::Class]), [[Member::None], [text("timeout")]]);
        assert_eq!(
            members(&[Dimension::Decision, Dimension::Hour]),
            [[text("allowed"), Member::Time(Wall(7_200_000))], [text("failed"), Member::Time(Wall(7_200_000))]]
        );
        assert_eq!(members(&[Dimension::Day]), [[Member::Time(Wall(0))]]);
    }

    #[test]
    fn replays_obey_every_filter_and_stand_in_their_row() {
        let filter = |tool: &str, server: Option<&str>| Filter {
            tool: Some(Glob::new(tool)),
            caller: Some("local".to_owned()),
            server: server.map(str::to_owned),
        };
        let replay = |caller: &str, tool: &str| Replay {
            at: Wall(5),
            caller: caller.to_owned(),
            tool: tool.to_owned(),
            record_id: None,
            detail: None,
        };
        let count = |filter: Filter| {
            let mut gather = Gather::new(filter, &[Dimension::Server, Dimension::Tool], None);
            for (caller, tool, server) in [
                ("local", "read_a", Some("files")),
                ("local", "write", Some("files")),
                ("ci", "read_a", Some("files")),
                ("local", "read_a", Some("git")),
                ("local", "read_a", None),
            ] {
                gather.replay(&replay(caller, tool), server);
            }
            let found = gather.finish();
            assert!(found.groups.iter().all(|group| group.sums.calls == 0));
            found.totals.replayed
        };
        assert_eq!(count(filter("read_*", None)), 3);
        assert_eq!(count(filter("read_*", Some("files"))), 1);
        assert_eq!(count(filter("*", Some("unknown"))), 1);
    }

    #[test]
    fn memory_is_bounded_whatever_names_and_latencies_come() {
        let mut gather = Gather::new(Filter::default(), &[Dimension::Tool], Some((Wall(0), Wall(86_400_000))));
        let long = "x".repeat(NAMES_BYTES_MAX + 1);
        gather.event(&event(&long, "allowed", 1));
        for n in 0..(GROUPS_MAX as u64 * 100) {
            let name = format!("tool{}", n % (GROUPS_MAX as u64 * 2));
            gather.event(&event(&name, "allowed", n));
        }
        assert!(gather.keys.len() <= GROUPS_MAX + 1 && gather.distinct <= LATENCIES_MAX);
        let found = gather.finish();
        assert_eq!(found.totals.calls, GROUPS_MAX as u64 * 100 + 1, "every call counts");
        assert!(found.groups.iter().any(|group| group.members == [Member::Other]));
        assert!(found.latency_error_max > 0.0 && found.latency_error_max <= 0.01, "{}", found.latency_error_max);
        let [p50, ..] = found.totals.percentiles().expect("some ran");
        let exact = GROUPS_MAX as f64 * 50.0;
        assert!((exact - p50 as f64).abs() <= exact * found.latency_error_max + 1.0, "{p50}");
    }

    #[test]
    fn slices_cover_the_time_with_round_lengths() {
        for (span, length) in
            [(0, 60_000), (3_600_000, 60_000), (86_400_000, 15 * 60_000), (30 * 86_400_000, 720 * 60_000)]
        {
            let from = 1_796_032_800_000;
            let (slices, found) = sliced(Wall(from), Wall(from + span));
            assert_eq!(found, length, "{span}");
            assert!(slices[0].at.0 <= from && slices[slices.len() - 1].at.0 + found > from + span);
            assert!(slices.len() <= 98, "{}", slices.len());
        }
        let (slices, _) = sliced(Wall(0), Wall(200 * 365 * 86_400_000));
        assert!(slices.len() <= 98);
        let mut gather = Gather::new(Filter::default(), &[], Some((Wall(0), Wall(10_000_000))));
        gather.event(&event("a", "failed", 3));
        let found = gather.finish();
        assert_eq!(found.slices.iter().map(|slice| slice.sums.failed).sum::<u64>(), 1);
        let full = found.slices.iter().find(|slice| slice.sums.calls == 1).expect("there is one");
        assert!(full.at.0 <= 7_200_000 && 7_200_000 < full.at.0 + found.slice_ms);
    }
}
