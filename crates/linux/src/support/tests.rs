use super::*;
use napkin_kernel::probe::{Interface, KernelSupport};
use napkin_policy::PRESETS;
use std::collections::BTreeMap;

/// A kernel with all features up to and including a release.
pub(crate) fn linux(major: u32, minor: u32) -> Kernel {
    let has = |since: (u32, u32)| (major, minor) >= since;
    let can = |since| if has(since) { KernelSupport::Yes } else { KernelSupport::No };
    let mut settings = BTreeMap::new();
    let mut way = |setting, since: (u32, u32), way| {
        if has(since) {
            settings.insert(setting, way);
        }
    };
    let (count, time) = (i32::MAX as u64, u64::MAX);
    way(Setting::GroFlushTimeout, (3, 19), Interface::Device { largest: time });
    way(Setting::DeferHardIrqs, (5, 8), Interface::Device { largest: count });
    way(Setting::Threaded, (5, 12), Interface::Device { largest: 1 });
    way(Setting::GroFlushTimeout, (6, 13), Interface::Napi { largest: time });
    way(Setting::DeferHardIrqs, (6, 13), Interface::Napi { largest: count });
    way(Setting::IrqSuspendTimeout, (6, 13), Interface::Napi { largest: time });
    way(Setting::Threaded, (6, 17), Interface::Napi { largest: 1 });
    way(Setting::Threaded, (6, 19), Interface::Napi { largest: 2 });
    Kernel {
        release: format!("{major}.{minor}"),
        instances: can((6, 8)),
        settings,
        queue_stats: can((6, 10)),
        epoll_params: can((6, 9)),
        incoming_napi_id: can((4, 12)),
        socket_prefer_busy_poll: can((5, 11)),
        pidfd: can((5, 3)),
        pidfd_getfd: can((5, 6)),
        namespace_cookie: can((5, 14)),
    }
}

fn policy(text: &str) -> Policy {
    text.parse().expect(text)
}

#[track_caller]
fn refused(text: &str, kernel: &Kernel, scope: Scope) -> Refusal {
    check(&policy(text), kernel, scope).expect_err(text)
}

#[test]
fn what_no_linux_has_is_refused_with_what_comes_nearest() {
    let kernel = linux(6, 18);
    for (name, nearest) in [
        ("hold", "defer-hard-irqs=5,gro-flush-timeout=20us"),
        ("hold2000", "defer20"),
        ("hold=10ms", "defer100"),
        ("ksoftirqd", "threaded"),
        ("ksoftirqd-as-posted", "threaded"),
        ("base-6.4", "base"),
        ("workqueue", "threaded"),
        ("feedback", "suspend20"),
        ("defer20,hold=50us", "defer20"),
        ("ksoftirqd,feedback=on,hold=1ms", "suspend20,threaded=enabled"),
    ] {
        let refusal = refused(name, &kernel, Scope::Device);
        assert_eq!(policy(&refusal.nearest), policy(nearest), "{refusal}");
        assert_eq!(refusal.since, None, "{refusal}");
        assert!(refusal.to_string().contains("no Linux") || name.contains("6.4"), "{refusal}");
    }
}

#[test]
fn what_a_later_linux_has_is_refused_with_its_version() {
    for (name, (major, minor), since, nearest) in [
        ("threaded-busy-poll", (6, 18), "6.19", "threaded"),
        ("threaded-busy-poll", (5, 10), "6.19", "base"),
        ("threaded", (5, 11), "5.12", "base"),
        (
            "suspend20",
            (6, 12),
            "6.13",
            "defer20,epoll-busy-poll-budget=64,epoll-prefer-busy-poll=on",
        ),
        ("defer20", (5, 7), "5.8", "base"),
    ] {
        let refusal = refused(name, &linux(major, minor), Scope::Device);
        assert_eq!(refusal.since, Some(since), "{refusal}");
        assert!(refusal.to_string().contains(&format!("Linux {since} has it first")), "{refusal}");
        let near = policy(&refusal.nearest);
        assert!(check(&near, &linux(major, minor), Scope::Device).is_ok(), "{refusal}");
        if name != "threaded-busy-poll" || major == 6 {
            assert_eq!(near, policy(nearest), "{refusal}");
        }
    }
}

#[test]
fn a_program_s_part_is_refused_only_where_it_is_set() {
    let old = linux(6, 8);
    assert_eq!(refused("napibusy", &old, Scope::Both).since, Some("6.9"));
    assert_eq!(refused("napibusy", &old, Scope::Program).nearest, "defer200");
    assert!(check(&policy("napibusy"), &old, Scope::Device).is_ok());
    let new = linux(6, 18);
    assert_eq!(refused("busypoll-separate", &new, Scope::Program).nearest, "busypoll");
    assert!(check(&policy("busypoll-separate"), &new, Scope::Device).is_ok());
    assert!(check(&policy("hold"), &new, Scope::Program).is_ok());
}

#[test]
fn an_epoll_that_keeps_its_napi_id_is_refused_whatever_is_about_to_be_set() {
    for scope in [Scope::Device, Scope::Program, Scope::Both] {
        let refusal = refused("fullbusy,epoll-keep-napi-id=on", &linux(6, 18), scope);
        assert_eq!((refusal.lacking, refusal.since), (Lacking::KeepNapiId, None), "{scope:?}");
        assert_eq!(refusal.nearest, "fullbusy", "{scope:?}");
        let message = refusal.to_string();
        let why =
            "no Linux has an epoll that keeps its NAPI id after a busy poll that found nothing";
        assert!(message.contains(why), "{message}");
        assert!(message.ends_with("the nearest that this kernel can do is fullbusy"), "{message}");
    }
}

#[test]
fn every_preset_is_done_or_its_refusal_names_one_that_is() {
    for minor in 0..=19 {
        let kernel = linux(6, minor);
        for preset in PRESETS {
            for scope in [Scope::Device, Scope::Program, Scope::Both] {
                if let Err(refusal) = check(&preset.policy, &kernel, scope) {
                    let nearest = policy(&refusal.nearest);
                    assert!(check(&nearest, &kernel, scope).is_ok(), "6.{minor}: {refusal}");
                }
            }
        }
    }
    for preset in PRESETS {
        let wanted = Settings::of(&preset.policy.instance);
        if let Ok(_warnings) = check(&preset.policy, &linux(6, 18), Scope::Device) {
            assert!(wanted.get(Setting::Threaded).is_some_and(|it| it < 2), "{}", preset.name);
        }
    }
}

#[test]
fn what_is_left_to_others_is_said() {
    let kernel = linux(6, 19);
    let warned = |text, scope| check(&policy(text), &kernel, scope).expect(text);
    assert_eq!(warned("suspend20", Scope::Device), [Warning::EpollNotSet]);
    assert_eq!(warned("suspend20", Scope::Program), [Warning::DeviceNotSet]);
    assert_eq!(warned("suspend20", Scope::Both), []);
    assert_eq!(warned("fullbusy", Scope::Both), [Warning::SpinNotSet]);
    assert_eq!(warned("busypoll", Scope::Device), [Warning::SocketsNotSet]);
    assert_eq!(warned("base", Scope::Device), []);
}

#[test]
fn nobody_is_sent_to_a_command_that_refuses_as_well() {
    for minor in 0..=19 {
        let kernel = linux(6, minor);
        for preset in PRESETS {
            let checked = |scope| check(&preset.policy, &kernel, scope);
            for (from, to) in [(Scope::Device, Scope::Program), (Scope::Program, Scope::Device)] {
                let Ok(warnings) = checked(from) else { continue };
                let sent = warnings.iter().any(|warning| {
                    let message = warning.to_string();
                    message.contains("napkin run") || message.contains("napkin apply")
                });
                assert!(!sent || checked(to).is_ok(), "6.{minor} {}: {warnings:?}", preset.name);
            }
        }
    }
    let warned = check(&policy("suspend20"), &linux(6, 12), Scope::Program).expect("the program's");
    let message = warned[0].to_string();
    assert!(
        message.ends_with("lacks suspension of interrupts: Linux 6.13 has it first"),
        "{message}"
    );
}

#[test]
fn an_answer_that_could_not_be_had_is_no_refusal() {
    let mut kernel = linux(6, 18);
    kernel.epoll_params = KernelSupport::Unknown { right: None };
    assert!(check(&policy("suspend20"), &kernel, Scope::Both).is_ok());
}

#[test]
fn a_value_that_is_too_large_is_refused_with_the_largest() {
    let mut kernel = linux(6, 18);
    kernel.settings.insert(Setting::GroFlushTimeout, Interface::Napi { largest: 1_000_000 });
    let refusal = refused("fullbusy", &kernel, Scope::Device);
    assert!(refusal.to_string().contains("takes no gro-flush-timeout above 1ms"), "{refusal}");
}

#[test]
fn others_wait_for_as_long_as_interrupts_are_masked() {
    let waits = |text| others_wait(&policy(text));
    assert_eq!(waits("base"), None);
    assert_eq!(waits("defer20"), Some(2 * MILLISECOND));
    assert_eq!(waits("defer-hard-irqs=2,gro-flush-timeout=20us"), None);
    assert_eq!(waits("suspend20"), Some(20 * MILLISECOND));
}

#[test]
fn a_key_that_no_linux_has_is_refused_whichever_it_is() {
    use napkin_policy::{INSTANCE_KEYS, ValueKind};
    let kernel = linux(7, 3);
    for key in INSTANCE_KEYS.iter().filter(|key| key.is_napkin_only()) {
        let value = match key.takes {
            ValueKind::Choice(words) => words[1],
            ValueKind::Count { .. } => "3",
            ValueKind::Time => "3ms",
        };
        let text = format!("base,{}={value}", key.name);
        let refusal = refused(&text, &kernel, Scope::Device);
        assert!(refusal.to_string().contains(key.name), "{refusal}");
    }
}
