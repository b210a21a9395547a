//! Tests of whole screens.

use super::*;
use crate::key::Key;
use proptest::prelude::*;
use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;

fn napi(id: u32) -> NapiRates {
    NapiRates {
        ifname: "eth0".into(),
        id,
        rx_queues: vec![id],
        irq: Some(100 + id),
        cpu: Some(id as usize % 4),
        policy: "suspend20".into(),
        packets_per_s: Some(f64::from(id) * 1_000.0),
        interrupts_per_s: Some(12.0),
        polls_per_s: Some(4_321.0),
        softirq_polls_per_s: Some(21.0),
        thread_polls_per_s: Some(0.0),
        application_polls_per_s: Some(4_300.0),
        empty_polls: Some(0.25),
        full_polls_per_s: Some(3.0),
        deferrals_per_s: Some(17.0),
        watchdogs_per_s: Some(0.5),
        suspensions_per_s: Some(0.0),
        time_squeezes_per_s: Some(0.0),
        pid: None,
        thread_cpu: None,
        latency_ns: Default::default(),
        owners: vec![format!("memcached[{}]", 800 + id)],
    }
}

fn cpu(cpu: usize, softirq: f64) -> CpuShares {
    CpuShares {
        cpu,
        hard_irq: Some(0.0),
        softirq: Some(softirq),
        thread: Some(0.0),
        idle: Some(1.0 - softirq),
        steal: Some(0.0),
        time_squeezes_per_s: Some(0.0),
    }
}

fn rates(napis: u32, cpus: usize) -> Rates {
    Rates {
        at_ns: 2_000_000_000,
        window_ns: Some(1_000_000_000),
        napis: (1..=napis).map(napi).collect(),
        cpus: (0..cpus).map(|number| cpu(number, 0.25)).collect(),
        notes: Vec::new(),
    }
}

fn screen(rates: &Rates, view: &mut View, columns: u16, lines: u16) -> Vec<String> {
    let scene =
        Scene { title: "Linux 6.18 on host", interval: Duration::from_secs(1), rates, error: None };
    let mut terminal = Terminal::new(TestBackend::new(columns, lines)).expect("it cannot fail");
    let done = terminal.draw(|frame| {
        let area = frame.area();
        draw(&scene, view, area, frame.buffer_mut());
    });
    let buffer = done.expect("it cannot fail").buffer;
    let line = |y| (0..columns).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    (0..lines).map(|y| line(y).trim_end().to_owned()).collect()
}

#[test]
fn eighty_columns_hold_the_most_important() {
    let lines = screen(&rates(3, 4), &mut View::new(), 80, 24);
    assert_eq!(
        lines[..6],
        [
            "napkin top: Linux 6.18 on host                             3 instances  every 1s",
            "cpu hard soft thread idle steal squeeze  cpu hard soft thread idle steal squeeze",
            "  0   0%  25%     0%  75%    0%       0    2   0%  25%     0%  75%    0%       0",
            "  1   0%  25%     0%  75%    0%       0    3   0%  25%     0%  75%    0%       0",
            "dev  napi packets  intr polls softirq   app empty policy    owners",
            "eth0    3    3000    12  4321      21  4300   25% suspend20 memcached[803]",
        ]
        .map(str::to_owned)[..6]
    );
}

#[test]
fn two_hundred_columns_hold_them_all_and_a_selected_line_has_nothing_to_add() {
    let mut view = View::new();
    let rates = rates(3, 4);
    view.key(Key::Down, &rates);
    let lines = screen(&rates, &mut view, 200, 60);
    let names = lines.iter().find(|line| line.starts_with("dev")).expect("the columns' names");
    for column in Column::ALL {
        assert!(names.split_whitespace().any(|name| name == column.name()), "{column}: {names}");
    }
    assert!(lines.iter().any(|line| line == "eth0 3:"), "{lines:?}");
    let lines = screen(&rates, &mut view, 80, 24);
    let detail = lines.iter().find(|line| line.starts_with("eth0 3:")).expect("the selected");
    assert!(detail.starts_with("eth0 3:  rx 3  irq 103  cpu 3"), "{detail}");
}

#[test]
fn more_instances_than_lines_are_scrolled_and_counted() {
    let (rates, mut view) = (rates(64, 2), View::new());
    let lines = screen(&rates, &mut view, 80, 24);
    assert!(lines[0].ends_with("64 instances  every 1s"), "{}", lines[0]);
    assert!(lines[23].ends_with("1-19 of 64"), "{}", lines[23]);
    view.key(Key::End, &rates);
    let lines = screen(&rates, &mut view, 80, 24);
    assert!(lines[23].ends_with("48-64 of 64"), "{}", lines[23]);
    assert!(lines.iter().any(|line| line.contains(" memcached[801]")), "{lines:?}");
    view.key(Key::Char('/'), &rates);
    "803".chars().for_each(|c| {
        view.key(Key::Char(c), &rates);
    });
    let lines = screen(&rates, &mut view, 80, 24);
    assert!(lines[0].ends_with("64 instances, 63 hidden  every 1s"), "{}", lines[0]);
    assert!(lines[23].starts_with("filter: 803_"), "{}", lines[23]);
}

#[test]
fn no_instance_says_what_to_do() {
    let lines = screen(&rates(0, 0), &mut View::new(), 80, 24);
    assert!(lines[2].contains("ethtool -K DEV gro on"), "{}", lines[2]);
    let lines = screen(&rates(2, 0), &mut View::new().filtered("nothing"), 80, 24);
    assert!(lines[2].contains("Esc clears the filter"), "{}", lines[2]);
}

#[test]
fn a_long_name_is_cut_and_a_number_is_not() {
    let mut rates = rates(1, 1);
    rates.napis[0].ifname = "a-device-with-a-name-that-has-no-end".repeat(3);
    rates.napis[0].policy = "defer-hard-irqs=100,gro-flush-timeout=20us,hold=1ms".into();
    rates.napis[0].owners = (0..20).map(|pid| format!("worker[{pid}]")).collect();
    rates.napis[0].packets_per_s = Some(123_456_789.0);
    rates.napis[0].id = u32::MAX;
    let lines = screen(&rates, &mut View::new(), 80, 24);
    let row = lines.iter().find(|line| line.contains("123M")).expect("the packets");
    assert!(row.contains(" 4294967295 ") && row.contains('…'), "{row}");
    let mut view = View::new();
    view.key(Key::Down, &rates);
    let lines = screen(&rates, &mut view, 200, 24);
    assert!(lines.iter().any(|line| line.contains("owners worker[0] worker[1] ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains(",gro-flush-timeout=20us,hold=1ms")));
}

#[test]
fn a_name_that_was_made_harmless_takes_the_place_of_its_width_and_no_other() {
    let shown = |name: &str| {
        let mut rates = rates(1, 1);
        rates.napis[0].ifname = name.into();
        screen(&rates, &mut View::new(), 120, 24)
    };
    let name = napkin_policy::text::escaped("\x1b[2J\u{9b}31m\r\n\u{202e}");
    let (lines, usual) = (shown(&name), shown(&"x".repeat(name.len())));
    assert_eq!(lines.iter().zip(&usual).filter(|(line, usual)| line != usual).count(), 1);
    for (line, usual) in lines.iter().zip(&usual) {
        assert_eq!(line.chars().count(), usual.chars().count(), "{lines:?}");
        assert!(!line.chars().any(char::is_control), "{lines:?}");
    }
}

#[test]
fn sixty_four_cpus_are_folded_and_the_busiest_are_shown() {
    let mut rates = rates(2, 64);
    rates.cpus.iter_mut().for_each(|it| *it = cpu(it.cpu, 0.0));
    rates.cpus[40] = cpu(40, 0.75);
    rates.cpus[7] = cpu(7, 0.5);
    let lines = screen(&rates, &mut View::new(), 80, 24);
    let shown: Vec<&str> = lines[2..4].iter().map(String::as_str).collect();
    assert!(shown[0].starts_with("  0 ") && shown[1].starts_with("  1 "), "{shown:?}");
    assert!(shown[0].contains("  7   0%  50%") && shown[1].contains(" 40   0%  75%"), "{shown:?}");
    assert_eq!(lines[4], "and 60 more, 0% busy on average");
    // All CPUs, if there is room.
    let lines = screen(&rates, &mut View::new(), 250, 120);
    assert!(!lines.iter().any(|line| line.starts_with("and ")));
    assert!(lines.iter().any(|line| line.contains(" 63   0%")));
}

#[test]
fn what_could_not_be_known_is_said_as_a_dash_and_a_note() {
    let mut rates = rates(1, 1);
    rates.napis[0].polls_per_s = None;
    rates.notes =
        ["polls: counting them takes CAP_BPF", "owners: two were not seen", "a third", "a fourth"]
            .map(str::to_owned)
            .to_vec();
    let lines = screen(&rates, &mut View::new().sorted(Column::Polls), 80, 24);
    assert!(lines[3].starts_with("polls: counting them takes CAP_BPF"), "{}", lines[3]);
    assert!(lines[5].starts_with("(h shows 1 more) a third"), "{}", lines[5]);
    let mut view = View::new();
    view.key(Key::Char('h'), &rates);
    view.key(Key::End, &rates);
    let help = screen(&rates, &mut view, 80, 24).join("\n");
    assert!(help.contains("What could not be known here:\n  polls: counting"), "{help}");
    assert!(help.contains("a fourth"), "{help}");
}

#[test]
fn the_first_screen_knows_no_rates_and_a_lost_source_is_said() {
    let mut first = rates(1, 1);
    first.window_ns = None;
    first.napis[0] = NapiRates { ifname: "eth0".into(), id: 1, ..NapiRates::default() };
    let scene = Scene {
        title: "engine a.sock",
        interval: Duration::from_millis(500),
        rates: &first,
        error: Some("no engine is controlled over a.sock"),
    };
    let mut buffer = Buffer::empty(Rect::new(0, 0, 80, 10));
    let area = buffer.area;
    draw(&scene, &mut View::new(), area, &mut buffer);
    let line = |y| (0..80).map(|x| buffer[(x, y)].symbol()).collect::<String>();
    assert!(line(0).ends_with("1 instance  every 500ms"), "{}", line(0));
    assert!(line(1).starts_with("no engine is controlled over a.sock"), "{}", line(1));
    assert!((2..9).any(|y| line(y).starts_with("eth0    1       -")));
}

fn some_rates() -> impl Strategy<Value = Rates> {
    let number = || prop::option::of(prop_oneof![Just(0.0), 0.0..1e20_f64]);
    let name = || "[ -~]{0,40}|\\PC{0,20}|.{0,12}";
    let napi = (
        name(),
        any::<u32>(),
        prop::collection::vec(any::<u32>(), 0..70),
        name(),
        number(),
        number(),
    )
        .prop_map(|(ifname, id, rx_queues, policy, packets_per_s, polls_per_s)| NapiRates {
            owners: vec![policy.clone(); id as usize % 5],
            irq: Some(id),
            cpu: polls_per_s.map(|_| id as usize),
            empty_polls: polls_per_s.map(|polls| polls / 1e20),
            ifname,
            id,
            rx_queues,
            policy,
            packets_per_s,
            polls_per_s,
            ..NapiRates::default()
        });
    let cpus = prop_oneof![Just(0_usize), 1..5_usize, 60..70_usize];
    (prop::collection::vec(napi, 0..40), cpus, prop::collection::vec(name(), 0..6), any::<bool>())
        .prop_map(|(napis, cpus, notes, first)| Rates {
            window_ns: (!first).then_some(1),
            napis,
            cpus: (0..cpus).map(|number| cpu(number, number as f64 / 64.0)).collect(),
            notes,
            ..Rates::default()
        })
}

fn some_key() -> impl Strategy<Value = Key> {
    prop_oneof![
        prop::char::any().prop_map(Key::Char),
        prop::sample::select(vec!['s', 'S', 'r', '/', 'i', 'h', 'p', 'e', ' ']).prop_map(Key::Char),
        prop::sample::select(vec![
            Key::Enter,
            Key::Escape,
            Key::Backspace,
            Key::Up,
            Key::Down,
            Key::PageUp,
            Key::PageDown,
            Key::Home,
            Key::End,
            Key::Redraw,
            Key::Erase,
        ]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn no_counts_and_no_keys_panic_at_any_size(
        steps in prop::collection::vec((some_rates(), prop::collection::vec(some_key(), 0..4)), 1..6),
        sizes in prop::collection::vec((1_u16..250, 1_u16..80), 6),
        tiny in (1_u16..12, 1_u16..12),
    ) {
        let mut view = View::new();
        for ((rates, keys), (columns, lines)) in steps.iter().zip(&sizes) {
            for key in keys {
                view.key(*key, rates);
                screen(rates, &mut view, *columns, *lines);
                screen(rates, &mut view, tiny.0, tiny.1);
            }
            screen(rates, &mut view, 1, 1);
        }
    }

    #[test]
    fn a_screen_is_divided_without_a_line_too_many(
        lines in 1_usize..200, cpus in 0_usize..100, notes in 0_usize..20, details in 0_usize..2,
    ) {
        let parts = divide(lines, cpus, notes, details);
        let all = 2 + parts.cpus + parts.notes + parts.details + parts.keys + parts.rows;
        prop_assert!(all <= lines.max(2), "{parts:?}");
        prop_assert!(lines < 3 || parts.rows >= 1);
        prop_assert!(parts.cpus != 1, "names without numbers");
    }
}
