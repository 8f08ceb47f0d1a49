//! Clocks that jump and machines that sleep (hazard SQL-5).

use super::super::sim::{Sim, Store};

const HOUR: i64 = 3_600_000;

#[test]
fn sql_5_a_jumping_calendar_moves_no_timeout_and_no_back_off() {
    for jump in [-HOUR, 24 * HOUR, 10 * 365 * 24 * HOUR] {
        let mut sim = Sim::new();
        sim.call(1, "safe_echo");
        sim.run_until(500);
        sim.wall_jumps(jump);
        sim.run_until(999);
        assert_eq!(sim.sent().len(), 1, "{jump}: no timeout is early");
        sim.run_until(1_000);
        sim.wall_jumps(-jump);
        sim.run_until(1_099);
        assert_eq!(sim.sent().len(), 1, "{jump}: no retry is early");
        sim.run_until(1_100);
        assert_eq!(sim.sent().len(), 2, "{jump}: nor late");
        sim.wall_jumps(-jump);
        sim.result(sim.last_sent(), "{}");
        let event = sim.events.last().expect("a log line");
        assert_eq!(event.latency_ms, 1_100, "{jump}: the time that passed, not what the calendar says");
    }
}

#[test]
fn sql_5_records_sort_in_the_order_they_were_made_while_the_calendar_goes_back() {
    let mut sim = Sim::new();
    sim.store = Store::After(5);
    for id in 1..=20_i64 {
        sim.call(id, "pay");
        sim.error(sim.last_sent(), -32000, "no");
        sim.wall_jumps(if id % 3 == 0 { 24 * HOUR } else { -13 * HOUR });
        sim.run_for(10);
    }
    let ids: Vec<&String> = sim.letters.iter().map(|letter| &letter.id).collect();
    assert!(ids.is_sorted() && ids.len() == 20, "{ids:?}");
    let events: Vec<&String> = sim.events.iter().map(|event| &event.id).collect();
    assert!(events.is_sorted(), "{events:?}");
}
