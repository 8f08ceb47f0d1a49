//! Random walks: whatever the peers, the store, the clock and the operating system do, in any order, the rules hold.
//!
//! [`Sim`] checks on every step that each request is answered once, that nothing is forwarded after its end, and that
//! frames are messages; the engine checks its own state. What is added here needs the whole run.

use std::collections::BTreeMap;
use std::time::Duration;

use super::super::event::{Level, ProcessEnd, RequestFailure};
use super::super::sim::{Sim, Store, cancel, correlation_of};
use crate::exit::ExitStatus;
use crate::record::{Executed, FailureClass};
use crate::retry::{RetryPlan, Rng};
use crate::wire::message::{FromUpstream, Role, from_upstream};

const STEPS: usize = 1_200;

/// The client's ids lie above every number of ours, so that a cancel can be told from its bytes; that equal numbers on
/// both sides do not mix is tested elsewhere.
const FIRST_ID: u64 = 1_000_000;

/// A peer on each side that knows what it could say, right or wrong.
struct Walk {
    sim: Sim,
    rng: Rng,
    last_id: u64,
    /// The rare events that end a session are among the steps.
    mortal: bool,
    /// Outboxes fill up.
    pressed: bool,
}

fn plan() -> RetryPlan {
    RetryPlan { attempts_max: 3, base: Duration::from_millis(100), jitter: true }
}

impl Walk {
    fn new(seed: u64) -> Walk {
        let sim = Sim::seeded(seed, |settings| {
            let reliability = &mut settings.reliability;
            reliability.defaults.retry = plan();
            for (_, tool) in &mut reliability.per_tool {
                tool.retry = plan();
            }
            reliability.max_total = seed.is_multiple_of(3).then_some(Duration::from_millis(2_500));
            reliability.client_wait_max = Duration::from_millis(4_000);
        });
        Walk { sim, rng: Rng::seeded(!seed), last_id: FIRST_ID, mortal: seed.is_multiple_of(2), pressed: seed % 5 < 3 }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[usize::try_from(self.rng.below(from.len() as u64)).expect("small")]
    }

    fn chance(&mut self, one_in: u64) -> bool {
        self.rng.below(one_in) == 0
    }

    /// An id that the client has not used.
    fn fresh_id(&mut self) -> String {
        self.last_id += 1;
        let id = self.last_id;
        match self.rng.below(4) {
            0 => format!("\"c{id}\""),
            1 => format!("{id}.0"),
            _ => id.to_string(),
        }
    }

    /// An id that it may have used.
    fn some_id(&mut self) -> String {
        let id = FIRST_ID + self.rng.below(self.last_id - FIRST_ID + 2);
        let back = self.last_id - self.rng.below(6);
        let id = self.pick(&[id, back, back]);
        if self.chance(2) { format!("\"c{id}\"") } else { id.to_string() }
    }

    /// A number that is or was on the upstream's wire, mostly a young one.
    fn some_attempt(&mut self) -> u64 {
        let sent = self.sim.sent();
        if sent.is_empty() || self.chance(30) {
            return self.rng.below(5_000);
        }
        let reach = self.pick(&[3, 3, 10, 1_000_000]);
        let back = usize::try_from(self.rng.below(reach.min(sent.len() as u64))).expect("small");
        sent[sent.len() - 1 - back]
    }

    fn call(&mut self) -> String {
        let (id, tool) = (self.fresh_id(), self.pick(&["safe_a", "safe_a", "pay", "noted", "denied_x"]));
        let meta =
            self.pick(&["", r#","_meta":{"progressToken":7}"#, r#","_meta":{"authorization":"Bearer k-alice"}"#]);
        let rest = self.pick(&["", r#","arguments":{"idempotency_key":"k"}"#, r#","requestState":"s""#]);
        format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"{tool}"{meta}{rest}}}}}"#)
    }

    fn client_line(&mut self) -> String {
        match self.rng.below(12) {
            0..=5 => self.call(),
            6 => {
                let id = self.fresh_id();
                let method =
                    self.pick(&["ping", "tools/list", "subscriptions/listen", "initialize", "server/discover"]);
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"{method}"}}"#)
            }
            7..=8 => {
                let id = self.some_id();
                cancel(id)
            }
            9 => {
                let count = self.rng.below(4);
                let members: Vec<String> = (0..count).map(|_| self.call()).collect();
                format!("[{}]", members.join(","))
            }
            10 => {
                // An answer to something the upstream asked, or to nothing.
                let id = self.last_asked();
                format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{{}}}}"#)
            }
            _ => self
                .pick(&[
                    "garbage",
                    "{}",
                    r#"{"jsonrpc":"2.0","method":"notifications/roots/list_changed"}"#,
                    r#"{"jsonrpc":"2.0","method":"tools/call","params":{"name":"pay"}}"#,
                    r#"{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"pay"}}"#,
                    r#"{"jsonrpc":"2.0","error":{"code":-32700,"message":"x"}}"#,
                ])
                .to_owned(),
        }
    }

    /// The number of a request of the upstream that the client has seen lately.
    fn last_asked(&mut self) -> u64 {
        let asked: Vec<u64> = self
            .sim
            .to_client
            .iter()
            .rev()
            .take(20)
            .filter_map(|bytes| match from_upstream(bytes.clone()) {
                FromUpstream::Message(message) => match message.role {
                    Role::Request { id, .. } => std::str::from_utf8(id.raw()).ok()?.parse().ok(),
                    Role::Notification { .. } | Role::Response { .. } => None,
                },
                FromUpstream::Batch(_) | FromUpstream::Noise(_) => None,
            })
            .collect();
        if asked.is_empty() { self.rng.below(100) } else { self.pick(&asked) }
    }

    fn upstream_line(&mut self) -> String {
        let attempt = self.some_attempt();
        match self.rng.below(14) {
            0..=4 => {
                let result = self.pick(&[
                    "{}",
                    "{}",
                    r#"{"isError":true,"content":[]}"#,
                    r#"{"resultType":"input_required"}"#,
                    r#"{"task":{"taskId":"t"}}"#,
                ]);
                format!(r#"{{"jsonrpc":"2.0","id":{attempt},"result":{result}}}"#)
            }
            5..=7 => {
                let code = self.pick(&[-32000, -32000, -32603, -32602, -32021, -32042, 5]);
                format!(r#"{{"jsonrpc":"2.0","id":{attempt},"error":{{"code":{code},"message":"no"}}}}"#)
            }
            8 => {
                let id = self.rng.below(50);
                format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"elicitation/create"}}"#)
            }
            9 => cancel(self.rng.below(50)),
            10 => cancel(attempt),
            11 => {
                let progress = self.rng.below(100);
                format!(
                    r#"{{"jsonrpc":"2.0","method":"notifications/progress","params":{{"progressToken":"mcprelay-{attempt}","progress":{progress}}}}}"#
                )
            }
            12 => format!(
                r#"{{"jsonrpc":"2.0","method":"notifications/x","params":{{"_meta":{{"io.modelcontextprotocol/subscriptionId":{attempt}}}}}}}"#
            ),
            _ => {
                let id = 100 + self.rng.below(50);
                let lines = [
                    "noise".to_owned(),
                    r#"{"jsonrpc":"2.0","method":"notifications/x"}"#.to_owned(),
                    format!(
                        r#"[{{"jsonrpc":"2.0","id":{id},"method":"ping"}},{{"jsonrpc":"2.0","id":{attempt},"result":{{}}}}]"#
                    ),
                ];
                let index = usize::try_from(self.rng.below(3)).expect("small");
                lines[index].clone()
            }
        }
    }

    fn rare(&mut self) {
        let attempt = self.some_attempt();
        match self.rng.below(10) {
            0 => self.sim.upstream_exits(ProcessEnd::Code(1), &[attempt]),
            1 => self.sim.upstream_closes(&[attempt]),
            2 => self.sim.upstream_deaf(&[attempt]),
            3 => self.sim.client_closes(),
            4 => self.sim.client_gone(),
            5 => self.sim.terminate(),
            6..=7 => self.sim.upstream_oversized(&format!(r#"{{"jsonrpc":"2.0","id":{attempt},"result":"x"#)),
            8 => self.sim.upstream_oversized(r#"{"jsonrpc":"2.0","id":"big","method":"ping","x":"#),
            _ => {
                let id = self.fresh_id();
                self.sim.client_oversized(&format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"ping","x":"#));
            }
        }
    }

    fn step(&mut self) {
        let intake = self.sim.engine.intake();
        match self.rng.below(100) {
            0..=34 if intake.clients => {
                let line = self.client_line();
                self.sim.client(line);
            }
            // What may have left and failed alone, as an exchange with a remote server does.
            35..=38 if intake.upstreams => {
                let class = self.pick(&[FailureClass::Transport, FailureClass::Transport, FailureClass::NonRetryable]);
                let (executed, message) = (self.pick(&[Executed::Maybe, Executed::Yes]), "no".to_owned());
                let failure = RequestFailure { class, executed, retry_after: None, message, detail: None };
                let attempt = self.some_attempt();
                self.sim.request_fails(attempt, failure);
            }
            39..=74 if intake.upstreams => {
                let line = self.upstream_line();
                self.sim.upstream(line);
            }
            75..=94 => {
                let wait = self.pick(&[0, 1, 10, 50, 100, 300, 1_000, 5_000]);
                self.sim.run_for(wait);
            }
            95..=96 if self.pressed => {
                let level = self.pick(&[Level::Low, Level::Low, Level::High, Level::Full]);
                if self.chance(2) { self.sim.client_outbox(level) } else { self.sim.upstream_outbox(level) }
            }
            97 => {
                self.sim.store =
                    self.pick(&[Store::After(0), Store::After(5), Store::After(3_000), Store::Fails(1), Store::Silent]);
            }
            98 if self.mortal && self.chance(4) => self.rare(),
            _ => {}
        }
    }

    /// Walks until the session has ended, by itself or because its client leaves.
    fn run(mut self) -> Sim {
        for _ in 0..STEPS {
            if self.sim.exit.is_some() {
                break;
            }
            self.step();
        }
        if self.sim.exit.is_none() {
            self.sim.client_outbox(Level::Low);
            self.sim.upstream_outbox(Level::Low);
            self.sim.client_closes();
        }
        let status = self.sim.run_to_exit();
        assert!(matches!(status, ExitStatus::Success | ExitStatus::Upstream));
        assert_eq!(self.sim.engine.next_deadline(), None, "nothing is waited for at the end");
        let engine = &self.sim.engine;
        assert!(engine.open.is_empty(), "{:?}\n{}", engine.open, self.sim.log.join("\n"));
        assert!(engine.batches.is_empty(), "{:?}\n{}", engine.batches, self.sim.log.join("\n"));
        if !self.pressed {
            self.assert_delays_within_plan();
        }
        self.assert_no_second_attempt();
        self.sim
    }

    /// What may have run is never sent again, unless the configuration calls it safe; and nothing more often than planned.
    fn assert_no_second_attempt(&self) {
        let mut attempts: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for (attempt, bytes) in &self.sim.to_upstream {
            let FromUpstream::Message(message) = from_upstream(bytes.clone()) else { continue };
            let Some(id) = correlation_of(&message).filter(|_| attempt.is_some()) else { continue };
            let name = message.params().and_then(|params| params.member("name")).and_then(|name| name.as_str());
            let entry = attempts.entry(id).or_insert_with(|| (0, name.expect("a name").into_owned()));
            entry.0 += 1;
        }
        for (id, (count, tool)) in attempts {
            let most = if tool.starts_with("safe") { 3 } else { 1 };
            assert!(count <= most, "{tool} {id} was sent {count} times\n{}", self.sim.log.join("\n"));
        }
    }

    fn assert_delays_within_plan(&self) {
        for letter in &self.sim.letters {
            for pair in letter.attempts.windows(2) {
                let waited = u64::try_from(pair[1].started_at.0 - pair[0].ended_at.0).expect("time goes forward");
                let longest = plan().delay_longest(pair[0].number);
                assert!(Duration::from_millis(waited) <= longest, "{letter:?}\n{}", self.sim.log.join("\n"));
            }
        }
    }
}

#[test]
fn the_rules_hold_on_every_walk() {
    let (mut answered, mut captured, mut late, mut retried) = (0, 0, 0, 0);
    for seed in 0..60 {
        let sim = Walk::new(seed).run();
        answered += sim.to_client.len();
        captured += sim.letters.len();
        late += sim.lates.len();
        retried += sim.letters.iter().filter(|letter| letter.attempts.len() > 1).count();
    }
    // Walks that never get anywhere would hold every rule.
    assert!(
        answered > 5_000 && captured > 1_000 && late > 50 && retried > 50,
        "{answered} {captured} {late} {retried}"
    );
}

#[test]
fn equal_seeds_and_events_give_equal_actions() {
    for seed in 0..10 {
        let (first, second) = (Walk::new(seed).run(), Walk::new(seed).run());
        assert_eq!(first.log, second.log);
        assert_eq!((first.to_client, first.to_upstream), (second.to_client, second.to_upstream));
    }
    assert_ne!(Walk::new(1).run().to_upstream, Walk::new(3).run().to_upstream);
}

#[test]
fn a_session_at_rest_waits_for_nothing() {
    for seed in (1..60).step_by(2) {
        let mut walk = Walk::new(seed);
        for _ in 0..200 {
            walk.step();
        }
        let sim = &mut walk.sim;
        sim.client_outbox(Level::Low);
        sim.upstream_outbox(Level::Low);
        sim.store = Store::After(0);
        // Everything that was ever sent is answered; what is retried, too.
        for _ in 0..4 {
            for attempt in sim.sent() {
                sim.result(attempt, "{}");
            }
            sim.run_for(60_000);
        }
        for bytes in sim.to_client.clone() {
            if let FromUpstream::Message(message) = from_upstream(bytes)
                && let Role::Request { id, .. } = message.role
            {
                sim.client(format!(r#"{{"jsonrpc":"2.0","id":{},"result":{{}}}}"#, String::from_utf8_lossy(id.raw())));
            }
        }
        sim.assert_at_rest();
    }
}
