//! A device is re-created under a running engine: its instance keeps id, settings, thread and
//! counts, in every mode, and traffic goes on.

mod common;

use common::app::App;
use common::{POLICIES, PORT, Setup, alone, eventually, policy, queue, start};

#[test]
fn an_instance_keeps_its_settings_and_its_traffic_when_its_queue_is_replaced() {
    let _alone = alone();
    for name in POLICIES {
        let policy = policy(name);
        let setup = Setup { per_second: 5_000.0, ..Setup::default() };
        let (engine, _first) = start(&policy, &setup);
        let app = App::start(&engine, PORT, &policy, None);
        eventually(&format!("{name}: traffic"), || app.received() >= 50);
        for round in 0..5 {
            let before = engine.napi(1).expect("the instance");
            let (second, _source) = queue(&setup);
            engine.replace_queue(1, Box::new(second)).expect("it is replaced");
            let after = engine.napi(1).expect("the instance");
            assert_eq!(after.settings, before.settings, "{name}");
            assert_eq!(after.pid, before.pid, "{name}: it keeps its thread");
            assert!(
                after.queue_counts.rx_packets >= before.queue_counts.rx_packets,
                "{name}: counts go on"
            );
            let received = app.received();
            eventually(&format!("{name}: traffic from queue {round}"), || {
                app.received() >= received + 50
            });
        }
        engine.stop();
        assert!(app.join(), "{name}: its wait ended with the engine");
    }
}

#[test]
fn what_is_not_there_is_not_replaced() {
    let _alone = alone();
    let (engine, _source) = start(&policy("base"), &Setup::default());
    let (other, _source) = queue(&Setup::default());
    let error = engine.replace_queue(2, Box::new(other)).expect_err("there is one instance");
    assert!(error.to_string().contains("id 2"), "{error}");
}
