//! CPUs that go offline: a thread keeps those of its CPUs that are online; an interrupt without any gets all
//! others.

use super::*;
use crate::place::{Place, Value};

#[test]
fn a_thread_gets_back_those_of_its_cpus_that_are_on() {
    for at in 0.. {
        let (mut backend, place) = (Fake::new(1), Home::new());
        let store = place.store();
        backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
        applied(&mut backend, &store, "threaded", &placed()).expect("applied");
        backend.off = vec![2];
        let ended = crash::at(Some(at), || all_back(&mut backend, &store).is_complete());
        // What the first restore put back is not taken for another program's change.
        let restored = all_back(&mut backend, &store);
        assert!(restored.is_complete(), "died at {at}: {restored:?}");
        let now = backend.everything().remove(&(7, Place::ThreadCpus(queue(0))));
        assert_eq!(now, Some(Value::Cpus(vec![0, 1, 3])), "died at {at}");
        assert_eq!(place.files(), [""; 0]);
        if ended == Some(true) {
            assert!(at > 4, "no point was come to");
            break;
        }
    }
}

#[test]
fn a_hold_gives_a_thread_back_those_of_its_cpus_that_are_on() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    backend.somebody_sets(&napi(0, Setting::Threaded), &Value::Number(1));
    let (policy, options) = (policy("threaded"), placed());
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    let mut hold = Temporary::apply(backend, &place.store(), &request).expect("applied");
    hold.backend().off = vec![2];
    assert!(hold.put_back().expect("it is there").is_complete());
    let now = hold.backend().everything().remove(&(7, Place::ThreadCpus(queue(0))));
    assert_eq!(now, Some(Value::Cpus(vec![0, 1, 3])));
    drop(hold);
    assert_eq!(place.files(), [""; 0]);
}

#[test]
fn an_interrupt_whose_cpu_has_gone_off_is_put_back_and_is_not_somebody_else_s() {
    let (mut backend, place) = (Fake::new(1), Home::new());
    let (original, store) = (backend.everything(), place.store());
    let irq = Place::IrqCpus(queue(0));
    let goes_off = |backend: &mut Fake| {
        backend.off = vec![3];
        backend.somebody_sets(&irq, &Value::Cpus(vec![0, 1, 2]));
    };
    let (policy, options) = (policy("base"), Options { cpus: vec![3], ..plain() });
    let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
    apply(&mut backend, &store, &request).expect("applied");
    goes_off(&mut backend);
    assert!(all_back(&mut backend, &store).is_complete());
    assert_eq!((backend.everything(), place.files()), (original.clone(), vec![]));
    // When the CPU is online again, the kernel's change cannot be told from another program's.
    backend.off.clear();
    apply(&mut backend, &store, &request).expect("applied");
    goes_off(&mut backend);
    backend.off.clear();
    let restored = all_back(&mut backend, &store);
    let foreign = restored.devices[0].foreign[0].to_string();
    assert!(foreign.ends_with("(the kernel's doing, if CPU 3 was off meanwhile)"), "{foreign}");
    backend.somebody_sets(&irq, &original[&(7, irq.clone())]);
    let mut hold = Temporary::apply(backend, &store, &request).expect("applied");
    goes_off(hold.backend());
    assert!(hold.put_back().expect("it is there").is_complete());
    assert_eq!(hold.backend().everything(), original);
}
