//! Splitting the input changes nothing, nothing panics, and the store behaves like a map.

use std::collections::BTreeMap;

use proptest::prelude::*;

use crate::client::Client;

/// A valid or nearly valid line.
fn lines() -> impl Strategy<Value = Vec<u8>> {
    let word = prop_oneof![
        Just("get"),
        Just("gets"),
        Just("set"),
        Just("cas"),
        Just("append"),
        Just("incr"),
        Just("touch"),
        Just("delete"),
        Just("mg"),
        Just("ms"),
        Just("md"),
        Just("ma"),
        Just("me"),
        Just("a"),
        Just("b"),
        Just("0"),
        Just("1"),
        Just("3"),
        Just("-1"),
        Just("noreply"),
        Just("v"),
        Just("q"),
        Just("N5"),
        Just("MA"),
        Just("T0"),
        Just("C1"),
        Just("I"),
        Just("\r\n"),
        Just("\n"),
        Just("xyz\r\n"),
        Just("99999999999999999999"),
    ];
    prop_oneof![
        8 => prop::collection::vec(word, 0..40)
            .prop_map(|words| words.join(" ").replace("\n ", "\n").into_bytes()),
        1 => prop::collection::vec(any::<u8>(), 0..100),
    ]
}

/// An operation on the model.
#[derive(Debug, Clone)]
enum Act {
    Set(u8, Vec<u8>),
    Add(u8, Vec<u8>),
    Append(u8, Vec<u8>),
    Delete(u8),
    Get(u8),
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let (key, value) = (0u8..8, prop::collection::vec(any::<u8>(), 0..40));
    prop::collection::vec(
        prop_oneof![
            (key.clone(), value.clone()).prop_map(|(key, value)| Act::Set(key, value)),
            (key.clone(), value.clone()).prop_map(|(key, value)| Act::Add(key, value)),
            (key.clone(), value).prop_map(|(key, value)| Act::Append(key, value)),
            key.clone().prop_map(Act::Delete),
            key.prop_map(Act::Get),
        ],
        0..100,
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..Default::default() })]

    #[test]
    fn how_the_bytes_are_cut_changes_nothing(
        bytes in lines(), pieces in prop::collection::vec(1usize..20, 1..10),
    ) {
        let whole = Client::new().send(&bytes, &[]);
        prop_assert_eq!(Client::new().send(&bytes, &pieces), whole);
    }

    #[test]
    fn it_does_what_a_map_does(acts in acts()) {
        let (mut client, mut model) = (Client::new(), BTreeMap::<u8, Vec<u8>>::new());
        for act in acts {
            let mut send = |command: &str, key: u8, value: &[u8]| {
                let line = format!("{command} k{key} 0 0 {}\r\n", value.len());
                client.send(&[line.as_bytes(), value, b"\r\n"].concat(), &[])
            };
            match act {
                Act::Set(key, value) => {
                    prop_assert_eq!(send("set", key, &value), b"STORED\r\n");
                    model.insert(key, value);
                }
                Act::Add(key, value) => {
                    let heard = send("add", key, &value);
                    prop_assert_eq!(heard == b"STORED\r\n", !model.contains_key(&key));
                    model.entry(key).or_insert(value);
                }
                Act::Append(key, value) => {
                    let heard = send("append", key, &value);
                    let had = model.get_mut(&key).map(|old| old.extend(&value)).is_some();
                    prop_assert_eq!(heard == b"STORED\r\n", had);
                }
                Act::Delete(key) => {
                    let heard = client.say(&format!("delete k{key}"));
                    prop_assert_eq!(heard == "DELETED", model.remove(&key).is_some());
                }
                Act::Get(key) => {
                    let heard = client.send(format!("get k{key}\r\n").as_bytes(), &[]);
                    let expected = model.get(&key).map_or(b"END\r\n".to_vec(), |value| {
                        let head = format!("VALUE k{key} 0 {}\r\n", value.len());
                        [head.as_bytes(), value, b"\r\nEND\r\n"].concat()
                    });
                    prop_assert_eq!(heard, expected);
                }
            }
        }
        prop_assert_eq!(client.memcached.store().len(), model.len());
    }
}
