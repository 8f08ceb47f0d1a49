//! Faults on purpose: which call meets which fault, by a seed. Pure.

use std::time::Duration;

use crate::glob::Glob;
use crate::retry::Rng;

/// Rates are counted in millionths.
pub const MILLION: u32 = 1_000_000;

/// The code of an error made on purpose, unless the rule names one.
pub const FAULT_CODE: i64 = -32000;

/// The `faults` section.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Decides which calls are hit; `None` leaves it to chance, and the chosen one is told at the start.
    pub seed: Option<u64>,
    /// Of several that hit an attempt the first counts.
    pub rules: Vec<FaultRule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FaultRule {
    /// Which tools.
    pub tool: Glob,
    /// How many attempts in a million.
    pub rate: u32,
    /// What goes wrong.
    pub fault: Fault,
    /// Before the tool runs or after it ran.
    pub when: When,
}

/// What goes wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The request or the answer is held back.
    Delay(Duration),
    /// The attempt is answered with this error.
    Error {
        /// `error.code`.
        code: i64,
        /// `error.message`.
        message: String,
    },
    /// No answer comes.
    DropAnswer,
    /// The answer comes twice.
    DuplicateAnswer,
    /// The server's process group is killed.
    KillUpstream,
}

/// On which side of the tool's run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The tool does not run (a delay: it runs late).
    Before,
    /// The tool has run.
    After,
}

impl FaultRule {
    /// The rule in words, for the warning at the start and for each hit.
    #[must_use]
    pub fn describe(&self) -> String {
        let tool = self.tool.as_str();
        match (&self.fault, self.when) {
            (Fault::Delay(by), When::Before) => format!("tool {tool:?}: request delayed by {} ms", by.as_millis()),
            (Fault::Delay(by), When::After) => format!("tool {tool:?}: answer delayed by {} ms", by.as_millis()),
            (Fault::Error { code, .. }, When::Before) => format!("tool {tool:?}: error {code} in its place"),
            (Fault::Error { code, .. }, When::After) => format!("tool {tool:?}: error {code} in place of its answer"),
            (Fault::DropAnswer, When::Before) => format!("tool {tool:?}: request dropped"),
            (Fault::DropAnswer, When::After) => format!("tool {tool:?}: answer dropped"),
            (Fault::DuplicateAnswer, _) => format!("tool {tool:?}: answer doubled"),
            (Fault::KillUpstream, When::Before) => format!("tool {tool:?}: server killed before it gets the request"),
            (Fault::KillUpstream, When::After) => format!("tool {tool:?}: server killed before its answer passes"),
        }
    }
}

/// The rules in force, and how far their draws are.
///
/// The n-th attempt that a rule looks at is hit or not by the seed, the rule and n alone, so what other tools do changes
/// nothing for it.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    seed: u64,
    rules: Vec<FaultRule>,
    looked: Vec<u64>,
}

impl FaultPlan {
    /// The plan of `faults`; without a seed of its own it takes `seed`.
    #[must_use]
    pub fn new(faults: &Faults, seed: u64) -> FaultPlan {
        let looked = vec![0; faults.rules.len()];
        FaultPlan { seed: faults.seed.unwrap_or(seed), rules: faults.rules.clone(), looked }
    }

    /// What decides the draws.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[FaultRule] {
        &self.rules
    }

    /// The rule that hits the next attempt of `tool`, if one does.
    pub fn draw(&mut self, tool: &str) -> Option<&FaultRule> {
        let mut hit = None;
        for (index, rule) in self.rules.iter().enumerate() {
            if !rule.tool.matches(tool) {
                continue;
            }
            let number = self.looked[index];
            self.looked[index] += 1;
            // Odd constants keep neighbouring rules and numbers apart before the generator mixes them.
            let rule_seed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let mut rng = Rng::seeded(self.seed ^ rule_seed ^ number.wrapping_mul(0xd1b5_4a32_d192_ed03));
            if hit.is_none() && rng.below(u64::from(MILLION)) < u64::from(rule.rate) {
                hit = Some(index);
            }
        }
        hit.map(|index| &self.rules[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(tool: &str, rate: u32, fault: Fault) -> FaultRule {
        FaultRule { tool: Glob::new(tool), rate, fault, when: When::After }
    }

    fn hits(plan: &mut FaultPlan, tool: &str, count: usize) -> Vec<bool> {
        (0..count).map(|_| plan.draw(tool).is_some()).collect()
    }

    #[test]
    fn the_same_seed_hits_the_same_attempts() {
        let faults = Faults { seed: Some(7), rules: vec![rule("*", MILLION / 2, Fault::DropAnswer)] };
        let first = hits(&mut FaultPlan::new(&faults, 1), "a", 200);
        assert_eq!(first, hits(&mut FaultPlan::new(&faults, 2), "b", 200));
        let other = Faults { seed: Some(8), ..faults };
        assert_ne!(first, hits(&mut FaultPlan::new(&other, 1), "a", 200));
    }

    #[test]
    fn other_tools_change_nothing_for_a_rule() {
        let rules = vec![rule("a", MILLION / 2, Fault::DropAnswer), rule("b", MILLION / 2, Fault::KillUpstream)];
        let faults = Faults { seed: Some(7), rules };
        let alone = hits(&mut FaultPlan::new(&faults, 0), "b", 100);
        let mut mixed = FaultPlan::new(&faults, 0);
        let beside: Vec<bool> = (0..100)
            .map(|_| {
                mixed.draw("a");
                mixed.draw("b").is_some()
            })
            .collect();
        assert_eq!(alone, beside);
    }

    #[test]
    fn a_rate_is_kept_on_average_and_its_ends_are_exact() {
        for (rate, least, most) in [(0, 0, 0), (MILLION, 10_000, 10_000), (MILLION / 10, 850, 1_150)] {
            let faults = Faults { seed: Some(3), rules: vec![rule("*", rate, Fault::DropAnswer)] };
            let count = hits(&mut FaultPlan::new(&faults, 0), "x", 10_000).iter().filter(|hit| **hit).count();
            assert!((least..=most).contains(&count), "{rate}: {count}");
        }
    }

    #[test]
    fn the_first_rule_that_hits_counts_and_others_tools_are_left_alone() {
        let rules = vec![rule("a*", MILLION, Fault::DropAnswer), rule("ab", MILLION, Fault::KillUpstream)];
        let mut plan = FaultPlan::new(&Faults { seed: None, rules }, 5);
        assert_eq!(plan.seed(), 5);
        assert_eq!(plan.draw("ab").map(|rule| &rule.fault), Some(&Fault::DropAnswer));
        assert_eq!(plan.draw("b"), None);
    }
}
