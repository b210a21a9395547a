//! Values that another program has set since.

use super::*;
use crate::place::{Place, Value};

#[test]
fn what_somebody_else_has_set_refuses_the_policy_that_would_change_it_and_no_other() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let on = |cpu| Options { cpus: vec![cpu], ..plain() };
    applied(&mut backend, &place.store(), "defer20", &on(1)).expect("applied");
    // For example irqbalance.
    let (irq, foreign) = (Place::IrqCpus(queue(0)), Value::Cpus(vec![2]));
    backend.somebody_sets(&irq, &foreign);
    applied(&mut backend, &place.store(), "suspend20", &plain()).expect("it moves no interrupt");
    let refused = applied(&mut backend, &place.store(), "suspend20", &on(3)).expect_err("it would");
    let message = refused.to_string();
    assert!(
        message.contains("irq-cpus of va queue 0") && message.contains("--forget"),
        "{message}"
    );
    let restored = all_back(&mut backend, &place.store());
    assert_eq!(restored.devices[0].foreign.len(), 1, "the journal has it all the same");
    assert_eq!(backend.everything()[&(7, irq)], foreign);
}
