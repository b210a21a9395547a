//! Instances whose queues change. A driver that keeps settings keeps them by NAPI id.

use super::*;
use crate::place::{Instance, Place, Value};
use napkin_kernel::settings::Settings;

type Layout = Vec<(Vec<u32>, Vec<u32>)>;

/// Includes the instances that only transmit, so that an id which transmitted may receive later.
fn plain() -> Options {
    Options { transmit: true, ..Options::default() }
}

fn placed() -> Options {
    Options { cpus: vec![1, 3], rt: Some(10), ..plain() }
}

/// An instance for each queue pair.
fn paired(queues: u32) -> Layout {
    (0..queues).map(|queue| (vec![queue], vec![queue])).collect()
}

/// `queues` instances that receive, followed by as many that transmit.
fn separate(queues: u32) -> Layout {
    let rx = (0..queues).map(|queue| (vec![queue], vec![]));
    rx.chain((0..queues).map(|queue| (vec![], vec![queue]))).collect()
}

/// `queues` of four queue pairs in use; the other instances exist, and poll nothing.
fn of_four(queues: u32) -> Layout {
    let pair = |queue| if queue < queues { vec![queue] } else { vec![] };
    (0..4).map(|queue| (pair(queue), pair(queue))).collect()
}

fn with(layout: &Layout) -> (Fake, Home) {
    let mut backend = Fake::new(0);
    backend.channels(layout);
    (backend, Home::new())
}

/// Asserts that every setting of every instance is off.
fn all_off(backend: &Fake) {
    let mut off = Settings::default();
    Setting::ALL.into_iter().for_each(|setting| off.set(setting, 0));
    for (id, settings) in backend.by_id() {
        assert_eq!(settings, off, "instance {id}");
    }
}

#[test]
fn what_went_away_with_its_channels_is_put_back_when_they_return() {
    for (many, few) in [
        // Like igb: an id that received with four channels transmits with two.
        (separate(4), separate(2)),
        // Like igb with more queues than interrupt vectors.
        (paired(6), separate(2)),
        (paired(4), paired(1)),
    ] {
        let (mut backend, place) = with(&many);
        let original = backend.everything();
        applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
        backend.channels(&few);
        let first = all_back(&mut backend, &place.store());
        let device = &first.devices[0];
        assert!(!first.is_complete() && device.failed.is_empty() && device.foreign.is_empty());
        assert_eq!(device.missing.len(), 3 * (many.len() - few.len()), "{:?}", device.missing);
        backend.channels(&many);
        assert!(all_back(&mut backend, &place.store()).is_complete());
        all_off(&backend);
        assert_eq!((backend.everything(), place.files()), (original, vec![]));
    }
}

#[test]
fn what_was_set_before_there_were_more_channels_is_put_back_where_it_is() {
    for (few, many) in
        [(of_four(2), of_four(4)), (of_four(1), of_four(2)), (separate(1), separate(4))]
    {
        let (mut backend, place) = with(&few);
        applied(&mut backend, &place.store(), "suspend20", &plain()).expect("applied");
        backend.channels(&many);
        assert!(all_back(&mut backend, &place.store()).is_complete());
        all_off(&backend);
        assert_eq!(place.files(), [""; 0]);
    }
}

#[test]
fn a_hold_puts_back_what_it_set_whatever_its_instances_poll_by_then() {
    for (from, to) in
        [(of_four(1), of_four(2)), (separate(2), separate(4)), (paired(3), separate(3))]
    {
        let (backend, place) = with(&from);
        let (policy, options) = (policy("suspend20"), plain());
        let request = Request { policy: &policy, ifname: "va", options: &options, force: false };
        let mut hold = Temporary::apply(backend, &place.store(), &request).expect("applied");
        hold.backend().channels(&to);
        let by_then = hold.backend().by_id();
        assert_ne!(by_then.values().next(), Some(&Settings::default()));
        let restored = hold.put_back().expect("it is there");
        assert!(restored.is_complete(), "{restored:?}");
        all_off(hold.backend());
        drop(hold);
        assert_eq!(place.files(), [""; 0]);
    }
}

#[test]
fn instances_are_one_s_own_by_their_ids_under_several_policies() {
    let (mut backend, place) = with(&separate(4));
    let original = backend.everything();
    let store = place.store();
    applied(&mut backend, &store, "suspend20", &plain()).expect("applied");
    backend.channels(&separate(2));
    applied(&mut backend, &store, "defer200", &plain()).expect("what is there is napkin's own");
    let different = difference(&mut backend, &store, "va").expect("it is there");
    assert!(different.iter().all(|it| !it.foreign), "{different:?}");
    backend.channels(&separate(4));
    applied(&mut backend, &store, "threaded", &placed()).expect("what is there is napkin's own");
    backend.channels(&separate(3));
    assert!(!all_back(&mut backend, &store).is_complete());
    backend.channels(&separate(4));
    assert!(all_back(&mut backend, &store).is_complete());
    assert_eq!((backend.everything(), place.files()), (original, vec![]));
}

#[test]
fn somebody_else_s_value_is_told_by_what_its_instance_polls_now() {
    let (mut backend, place) = with(&separate(2));
    applied(&mut backend, &place.store(), "defer20", &plain()).expect("applied");
    backend.channels(&separate(3));
    // The third instance transmitted before, and receives now.
    let third = Instance { rx: vec![2], tx: vec![], nth: 0 };
    backend.somebody_sets(&Place::Napi(third, Setting::GroFlushTimeout), &Value::Number(7));
    let restored = all_back(&mut backend, &place.store());
    let [foreign] = &restored.devices[0].foreign[..] else { panic!("{restored:?}") };
    assert!(foreign.to_string().contains("gro-flush-timeout of va queue 2 is 7ns"), "{foreign}");
    let force = RestoreOptions { force: true, ..RestoreOptions::default() };
    assert!(restore(&mut backend, &place.store(), &force).expect("readable").is_complete());
    all_off(&backend);
}

#[test]
fn a_journal_of_a_napkin_that_knew_no_ids_is_put_back_by_its_queues() {
    let (mut backend, place) = (Fake::new(2), Home::new());
    let original = backend.everything();
    applied(&mut backend, &place.store(), "suspend20", &placed_without_threads()).expect("applied");
    let file = place.0.join("device-700.journal");
    let text = std::fs::read_to_string(&file).expect("written");
    let without: Vec<String> = text.lines().map(without_id).collect();
    assert_ne!(without.join("\n"), text.trim_end());
    assert!(
        without[1].contains(
            r#""place":{"napi":[{"rx":[0],"tx":[0]},"gro-flush-timeout"]},"old":0,"new":20000"#
        ),
        "{}",
        without[1]
    );
    for then in [None, Some("threaded")] {
        std::fs::write(&file, without.join("\n") + "\n").expect("written");
        applied(&mut backend, &place.store(), "suspend20", &placed_without_threads()).expect("so");
        backend.recreate();
        if let Some(policy) = then {
            applied(&mut backend, &place.store(), policy, &plain()).expect("applied");
        }
        assert!(all_back(&mut backend, &place.store()).is_complete());
        assert_eq!((backend.everything(), place.files()), (original.clone(), vec![]));
    }
}

fn placed_without_threads() -> Options {
    Options { rt: None, ..placed() }
}

/// A journal line in the old format, without NAPI id.
fn without_id(line: &str) -> String {
    let Some((head, tail)) = line.split_once(r#","napi-id":"#) else { return line.to_owned() };
    format!("{head}{}", tail.trim_start_matches(|it: char| it.is_ascii_digit()))
}

/// An event of a random sequence.
#[derive(Debug, Clone)]
enum Event {
    Apply { policy: usize, placed: bool, crash: Option<u64> },
    Hold { policy: usize, to: usize, crash: Option<u64> },
    Restore { crash: Option<u64> },
    Channels { to: usize },
}

fn event() -> impl Strategy<Value = Event> {
    let crash = || prop_oneof![2 => Just(None), 1 => (0..60_u64).prop_map(Some)];
    let policy = || 0..POLICIES.len();
    prop_oneof![
        3 => (policy(), any::<bool>(), crash())
            .prop_map(|(policy, placed, crash)| Event::Apply { policy, placed, crash }),
        2 => (policy(), 0..4_usize, crash())
            .prop_map(|(policy, to, crash)| Event::Hold { policy, to, crash }),
        2 => crash().prop_map(|crash| Event::Restore { crash }),
        4 => (0..4_usize).prop_map(|to| Event::Channels { to }),
    ]
}

const POLICIES: [&str; 6] = ["base", "defer20", "threaded", "suspend20", "suspend200", "fullbusy"];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_becomes_of_the_channels_nothing_is_left(
        events in prop::collection::vec(event(), 1..14),
        kind in 0..3_usize,
    ) {
        let layouts = match kind {
            0 => [separate(4), separate(2), separate(3), separate(1)],
            1 => [paired(6), separate(2), paired(5), separate(3)],
            _ => [of_four(4), of_four(2), of_four(1), of_four(3)],
        };
        let (mut backend, place) = with(&layouts[0]);
        let store = place.store();
        for event in events {
            match event {
                Event::Apply { policy: name, placed, crash } => {
                    let policy = policy(POLICIES[name]);
                    let options = if placed { placed_without_threads() } else { plain() };
                    let request =
                        Request { policy: &policy, ifname: "va", options: &options, force: false };
                    let done = crash::at(crash, || apply(&mut backend, &store, &request));
                    prop_assert!(!matches!(done, Some(Err(_))), "{done:?}");
                }
                Event::Hold { policy: name, to, crash } => {
                    let (policy, options) = (policy(POLICIES[name]), plain());
                    let request =
                        Request { policy: &policy, ifname: "va", options: &options, force: false };
                    let mut hold = Temporary::apply(&mut backend, &store, &request).expect("applied");
                    hold.backend().channels(&layouts[to]);
                    let _ = crash::at(crash, || hold.put_back().map(|_| ()));
                }
                Event::Restore { crash } => {
                    crash::at(crash, || restore(&mut backend, &store, &RestoreOptions::default()));
                }
                Event::Channels { to } => backend.channels(&layouts[to]),
            }
        }
        backend.channels(&layouts[0]);
        let restored = all_back(&mut backend, &store);
        prop_assert!(restored.is_complete(), "{restored:?}");
        prop_assert_eq!(journals(&place), 0);
        all_off(&backend);
    }
}

fn journals(place: &Home) -> usize {
    place.files().iter().filter(|name| name.ends_with(".journal")).count()
}
