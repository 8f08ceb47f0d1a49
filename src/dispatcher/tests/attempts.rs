//! What an attempt's end means: the class table, retries, back-off, and the limits in time.

use super::super::sim::{Sim, call};

#[test]
fn a_call_is_answered_with_the_clients_own_id_and_logged() {
    let mut sim = Sim::new();
    sim.client(r#"{"jsonrpc":"2.0","id":"a","method":"tools/call","params":{"name":"echo","arguments":{"x":1}}}"#);
    sim.expect(
        r#">u {"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"_meta":{"mcprelay":{"correlation_id":"C1"}},"name":"echo","arguments":{"x":1}}}"#,
    );
    sim.result(2, r#"{"content":[]}"#);
    sim.expect(
        r#"
        !log allowed echo attempts=1
        >c {"jsonrpc":"2.0","id":"a","result":{"content":[]}}
    "#,
    );
    sim.assert_at_rest();
    let _ = call(1, "x");
}
