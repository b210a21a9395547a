//! Real-time scheduling classes, which take a capability.

use napkin_os::sched::{Class, class, classify, may};
use napkin_testing::{needs, test};

#[test]
fn a_real_time_priority_is_read_back() {
    for class_of in [Class::Fifo, Class::Rr] {
        let wanted = class_of(7);
        needs(may(wanted), "the right to real-time priority (CAP_SYS_NICE, or a limit)");
        let thread = std::thread::spawn(move || classify(None, wanted).and_then(|()| class(None)));
        assert_eq!(thread.join().expect("no panic").expect("it lives"), wanted);
    }
}

napkin_testing::main!();
