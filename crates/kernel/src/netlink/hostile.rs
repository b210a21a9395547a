//! Tests of all reply parsers with replies that are truncated, corrupted, or random. Each parser also gets the
//! replies to other requests. None may panic, and none may return more records than the bytes can hold.
//!
//! The captured replies are from Linux 6.18: a veth pair with two queues each in a separate namespace, and a virtio
//! device's coalescing, rings and counters. Their sequence number is 1, their port 7.

use proptest::prelude::*;

use super::attribute::{Body, Malformed, split_header};
use super::error::NetlinkError;
use super::socket::Reply;
use super::{LinkRecord, QueueKind, ethtool, generic, netdev, notice, route};
use crate::settings::Settings;

const CAPTURED: [(&str, &[u8]); 11] = [
    ("channels", include_bytes!("../../tests/captured/channels.bin")),
    ("coalescing", include_bytes!("../../tests/captured/coalescing.bin")),
    ("dev-get", include_bytes!("../../tests/captured/dev-get.bin")),
    ("family", include_bytes!("../../tests/captured/family.bin")),
    ("features", include_bytes!("../../tests/captured/features.bin")),
    ("links", include_bytes!("../../tests/captured/links.bin")),
    ("napi-get", include_bytes!("../../tests/captured/napi-get.bin")),
    ("policy", include_bytes!("../../tests/captured/policy.bin")),
    ("queue-get", include_bytes!("../../tests/captured/queue-get.bin")),
    ("refused", include_bytes!("../../tests/captured/refused.bin")),
    ("rings", include_bytes!("../../tests/captured/rings.bin")),
];

fn captured(name: &str) -> &'static [u8] {
    CAPTURED.iter().find(|(of, _)| *of == name).expect("captured").1
}

/// Reads a datagram as the reply to request 1 of port 7.
fn read<T>(
    datagram: &[u8],
    mut parse: impl FnMut(u16, &[u8]) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, NetlinkError> {
    let mut reply = Reply::new(1, 7, &mut parse);
    reply.datagram(datagram);
    reply.result(format_args!("a test")).map(|(records, _)| records)
}

/// Reads a datagram of a generic family, after its generic header.
fn read_generic<T>(
    datagram: &[u8],
    parse: fn(&[u8]) -> Result<Option<T>, Malformed>,
) -> Result<Vec<T>, NetlinkError> {
    read(datagram, |_, body| parse(split_header(body, 4)?.1))
}

/// Runs all parsers on the same bytes and returns the number of records or the error of each.
fn read_all(datagram: &[u8]) -> [(&'static str, Result<usize, NetlinkError>); 12] {
    fn count<T>(read: Result<Vec<T>, NetlinkError>) -> Result<usize, NetlinkError> {
        read.map(|records| records.len())
    }
    let all = [
        ("channels", count(read_generic(datagram, ethtool::channels))),
        ("coalescing", count(read_generic(datagram, ethtool::coalescing))),
        ("default routes", count(read(datagram, route::default_route))),
        ("departures", count(read(datagram, route::departure))),
        ("dev-get", count(read_generic(datagram, netdev::dev))),
        ("family", count(read(datagram, |_, body| generic::family(body).map(Some)))),
        ("groups", count(read(datagram, |_, body| generic::groups(body).map(Some)))),
        ("features", count(read_generic(datagram, ethtool::features))),
        ("links", count(read(datagram, route::link))),
        ("napi-get", count(read_generic(datagram, netdev::napi))),
        ("policy", count(read(datagram, |_, body| generic::policy(body).map(Some)))),
        ("queue-get", count(read_generic(datagram, netdev::queue))),
    ];
    for (parser, result) in &all {
        if let Ok(records) = result {
            assert!(records * 16 <= datagram.len(), "{parser} made {records} records");
        }
    }
    if let Ok(left) = notice::departures(datagram) {
        assert!(left.len() * 16 <= datagram.len(), "{left:?}");
    }
    all
}

#[test]
fn the_captured_replies_are_read() {
    let napis = read_generic(captured("napi-get"), netdev::napi).expect("read");
    assert_eq!(napis.len(), 2);
    for napi in &napis {
        let off = Settings {
            threaded: Some(0),
            defer_hard_irqs: Some(0),
            gro_flush_timeout: Some(0),
            irq_suspend_timeout: Some(0),
        };
        assert_eq!((napi.settings, napi.irq, napi.pid), (off, None, None));
    }
    let queues = read_generic(captured("queue-get"), netdev::queue).expect("read");
    let receive = queues.iter().filter(|queue| queue.kind == QueueKind::Rx).count();
    assert_eq!((queues.len(), receive), (8, 4), "{queues:?}");
    // The veth driver does not report which instance polls a queue.
    assert!(queues.iter().all(|queue| queue.napi_id.is_none()), "{queues:?}");
    let links = read(captured("links"), route::link).expect("read");
    let names: Vec<_> = links.iter().map(|link| (link.name.as_str(), link.up)).collect();
    assert_eq!(names, [("lo", false), ("vb", true), ("va", true)]);
    let LinkRecord { kind, rx_queues, tx_queues, .. } = &links[1];
    assert_eq!((kind.as_deref(), rx_queues, tx_queues), (Some("veth"), &2, &2));
    let (id, operations) = read(captured("family"), |_, body| generic::family(body).map(Some))
        .expect("read")
        .remove(0);
    assert!(id > 16);
    assert_eq!(operations, [1, 5, 10, 11, 12, 13, 14, 15]);
    let groups = read(captured("family"), |_, body| generic::groups(body).map(Some));
    let groups = groups.expect("read").remove(0);
    assert!(groups.get("mgmt").is_some_and(|id| *id > 0), "{groups:?}");
    let features = read_generic(captured("features"), ethtool::features).expect("read").remove(0);
    assert_eq!(features.get("rx-gro"), Some(&true));
    assert_eq!(features.get("loopback"), Some(&false));
}

#[test]
fn the_kernel_s_own_words_are_in_its_refusal() {
    let error = read_generic(captured("refused"), netdev::napi).expect_err("refused");
    let message = error.to_string();
    assert!(message.starts_with("the kernel refused a test: "), "{message}");
    assert!(message.ends_with("integer out of range"), "{message}");
}

#[test]
fn every_reply_cut_at_every_byte_is_an_error_or_shorter() {
    for (name, whole) in CAPTURED {
        let records = |bytes: &[u8]| {
            let all = read_all(bytes);
            all.into_iter().find(|(parser, _)| *parser == name).map(|(_, result)| result)
        };
        let Some(all) = records(whole) else { continue };
        let all = all.expect(name);
        let mut boundary = 0;
        let mut before = 0;
        for cut in 0..whole.len() {
            if cut == boundary {
                let length = whole[cut..].first_chunk().copied().map(u32::from_ne_bytes);
                boundary += length.expect("a header") as usize;
                let read = records(&whole[..cut]).expect("its parser").expect(name);
                assert!(before <= read && read <= all, "{name} at {cut}");
                before = read;
            } else {
                let read = records(&whole[..cut]).expect("its parser");
                assert!(matches!(read, Err(NetlinkError::Malformed { .. })), "{name} at {cut}");
            }
        }
    }
}

#[test]
fn no_length_in_a_reply_is_believed() {
    for (_, whole) in CAPTURED {
        for at in (0..whole.len() - 1).step_by(2) {
            for length in [0, 1, 3, 4, 5, 8, 0x7fff, 0x8000, 0xfffc, 0xffff_u16] {
                let mut corrupted = whole.to_vec();
                corrupted[at..at + 2].copy_from_slice(&length.to_ne_bytes());
                let _fared = read_all(&corrupted);
            }
        }
    }
}

#[test]
fn nests_within_nests_and_lists_without_end_are_bounded() {
    let mut list = Body::new();
    for kind in [1, 2, 3, 4, 6, 8, 9, 18] {
        let deep = (0..10_000).fold(Body::new().u32(1, 1), |body, level| {
            let inner = body.finish().expect("short");
            Body::new()
                .bytes(if level % 2 == 0 { 1 } else { kind }, &inner[..inner.len().min(60_000)])
        });
        list = list.nest(kind, |body| {
            let deep = deep.finish().expect("short");
            body.header(&deep[..deep.len().min(40_000)])
        });
    }
    let deep = message(&list.finish().expect("short"));
    let _fared = read_all(&deep);

    // As many features as fit into a message, more than the parser's limit.
    let bit = |body: Body, n: u32| body.nest(1, |body| body.text(2, &n.to_string()));
    let many = Body::new().nest(4, |body| body.nest(3, |body| (0..3000).fold(body, bit)));
    let many = message(&many.finish().expect("short"));
    let error = read_generic(&many, ethtool::features).expect_err("too many");
    assert!(error.to_string().contains("too many features"), "{error}");
}

/// A message of a family with this attribute list.
fn message(list: &[u8]) -> Vec<u8> {
    let length = u32::try_from(20 + list.len()).expect("short");
    let mut message = length.to_ne_bytes().to_vec();
    message.extend_from_slice(&[16, 0, 0, 0, 1, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
    message.extend_from_slice(list);
    message
}

/// A corruption of a reply.
#[derive(Debug, Clone)]
enum Corruption {
    Set(usize, u8),
    Flip(usize, u8),
    Remove(usize, usize),
    Repeat(usize, usize),
    Insert(usize, Vec<u8>),
}

fn corruption() -> impl Strategy<Value = Corruption> {
    let at = 0..5000_usize;
    prop_oneof![
        (at.clone(), any::<u8>()).prop_map(|(at, byte)| Corruption::Set(at, byte)),
        (at.clone(), 0..8_u8).prop_map(|(at, bit)| Corruption::Flip(at, bit)),
        (at.clone(), 1..64_usize).prop_map(|(at, length)| Corruption::Remove(at, length)),
        (at.clone(), 1..64_usize).prop_map(|(at, length)| Corruption::Repeat(at, length)),
        (at, prop::collection::vec(any::<u8>(), 1..32))
            .prop_map(|(at, b)| Corruption::Insert(at, b)),
    ]
}

fn corrupted(reply: &[u8], corruptions: &[Corruption]) -> Vec<u8> {
    let mut bytes = reply.to_vec();
    for corruption in corruptions {
        let length = bytes.len().max(1);
        match corruption {
            _ if bytes.is_empty() => break,
            Corruption::Set(at, byte) => bytes[at % length] = *byte,
            Corruption::Flip(at, bit) => bytes[at % length] ^= 1 << bit,
            Corruption::Remove(at, count) => {
                let at = at % length;
                bytes.drain(at..(at + count).min(length));
            }
            Corruption::Repeat(at, count) => {
                let at = at % length;
                let part = bytes[at..(at + count).min(length)].to_vec();
                bytes.splice(at..at, part);
            }
            Corruption::Insert(at, part) => {
                let at = at % length;
                bytes.splice(at..at, part.iter().copied());
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_bent_reply_never_panics(
        which in 0..CAPTURED.len(),
        corruptions in prop::collection::vec(corruption(), 1..12),
    ) {
        let _fared = read_all(&corrupted(CAPTURED[which].1, &corruptions));
    }

    #[test]
    fn a_bent_list_in_a_good_message_never_panics(
        which in 0..CAPTURED.len(),
        corruptions in prop::collection::vec(corruption(), 1..12),
    ) {
        let list = CAPTURED[which].1.get(20..).unwrap_or_default();
        let _fared = read_all(&message(&corrupted(list, &corruptions)));
    }

    #[test]
    fn noise_never_panics(noise in prop::collection::vec(any::<u8>(), 0..300)) {
        let _fared = read_all(&noise);
        let _fared = read_all(&message(&noise));
    }
}
