//! A test that compares the netlink numbers in this crate with the running kernel's BTF, and with the numbers of
//! Linux 6.18 in `numbers.txt`, for kernels without BTF.

use std::collections::HashMap;

use super::{ethtool, netdev, route};
use crate::count::btf::{Btf, BtfError};

macro_rules! named {
    ($module:ident: $($name:ident)*) => {
        [$((stringify!($name), i64::from($module::$name))),*]
    };
}

/// The enumerators in the BTF of Linux 6.18.44 whose names begin with one of [`SETS`].
const KEPT: &str = include_str!("numbers.txt");

#[test]
fn every_number_is_the_kernel_s() {
    let number = |line: &'static str| {
        let (name, number) = line.split_once(' ')?;
        Some((name, number.parse().ok()?))
    };
    let kept: Option<HashMap<&str, i64>> = KEPT.lines().map(number).collect();
    assert_eq!(compare(&kept.expect("names and numbers")), 0, "all of them are in it");
    let btf = match Btf::kernel() {
        // The kernel exports none.
        Err(BtfError::Read(_)) => return,
        btf => btf.expect("a BTF of the form of Linux 5.2 and later"),
    };
    let named = |(name, value): (u32, u64)| Some((btf.name(name)?, value.cast_signed()));
    let named: HashMap<&str, i64> = btf.enumerators().filter_map(named).collect();
    compare(&named);
}

/// Compares all numbers, and returns how many of the names are unknown to this kernel.
fn compare(kernel_numbers: &HashMap<&str, i64>) -> usize {
    let mut own: Vec<(String, i64)> = Vec::new();
    let mut add = |numbers: &[(&str, i64)]| {
        own.extend(numbers.iter().map(|(name, number)| ((*name).to_owned(), *number)));
    };
    add(&named!(netdev:
        NETDEV_A_DEV_IFINDEX NETDEV_A_DEV_XDP_FEATURES NETDEV_A_DEV_XDP_ZC_MAX_SEGS
        NETDEV_A_NAPI_IFINDEX NETDEV_A_NAPI_ID NETDEV_A_NAPI_IRQ NETDEV_A_NAPI_PID
        NETDEV_A_NAPI_DEFER_HARD_IRQS NETDEV_A_NAPI_GRO_FLUSH_TIMEOUT
        NETDEV_A_NAPI_IRQ_SUSPEND_TIMEOUT NETDEV_A_NAPI_THREADED
        NETDEV_A_QUEUE_ID NETDEV_A_QUEUE_IFINDEX NETDEV_A_QUEUE_TYPE NETDEV_A_QUEUE_NAPI_ID));
    add(&named!(ethtool:
        ETHTOOL_MSG_FEATURES_GET ETHTOOL_MSG_FEATURES_SET ETHTOOL_MSG_RINGS_GET
        ETHTOOL_MSG_CHANNELS_GET ETHTOOL_MSG_COALESCE_GET ETHTOOL_A_HEADER_DEV_NAME
        ETHTOOL_A_BITSET_BITS ETHTOOL_A_BITSET_BITS_BIT ETHTOOL_A_BITSET_BIT_NAME
        ETHTOOL_A_BITSET_BIT_VALUE ETHTOOL_A_FEATURES_HW ETHTOOL_A_FEATURES_WANTED
        ETHTOOL_A_FEATURES_ACTIVE ETHTOOL_A_RINGS_RX_MAX ETHTOOL_A_RINGS_TX_MAX
        ETHTOOL_A_RINGS_RX ETHTOOL_A_RINGS_TX ETHTOOL_A_CHANNELS_RX_MAX
        ETHTOOL_A_CHANNELS_TX_MAX ETHTOOL_A_CHANNELS_COMBINED_MAX ETHTOOL_A_CHANNELS_RX_COUNT
        ETHTOOL_A_CHANNELS_TX_COUNT ETHTOOL_A_CHANNELS_COMBINED_COUNT
        ETHTOOL_A_COALESCE_RX_USECS ETHTOOL_A_COALESCE_RX_MAX_FRAMES
        ETHTOOL_A_COALESCE_USE_ADAPTIVE_RX));
    add(&named!(route:
        IFLA_ADDRESS IFLA_PERM_ADDRESS IFLA_IFNAME IFLA_LINKINFO IFLA_NET_NS_FD IFLA_EXT_MASK IFLA_NUM_TX_QUEUES
        IFLA_NUM_RX_QUEUES IFLA_NEW_NETNSID IFLA_NEW_IFINDEX IFLA_PROP_LIST IFLA_ALT_IFNAME IFLA_INFO_KIND IFLA_INFO_DATA VETH_INFO_PEER
        IFA_ADDRESS IFA_LOCAL));
    for name in ["FEATURES", "RINGS", "CHANNELS", "COALESCE"] {
        own.push((format!("ETHTOOL_A_{name}_HEADER"), i64::from(ethtool::HEADER)));
    }
    for operation in netdev::Operation::ALL {
        let name = format!("NETDEV_CMD_{}", operation.name().to_uppercase().replace('-', "_"));
        own.push((name, i64::from(operation.number())));
    }
    let mut unknown = Vec::new();
    for (name, number) in &own {
        match kernel_numbers.get(name.as_str()) {
            Some(kernel_number) => assert_eq!(number, kernel_number, "{name}"),
            None => unknown.push((name, *number)),
        }
    }
    eprintln!("{} numbers compared, not named by this kernel: {unknown:?}", own.len());
    let left = unknown.len();
    // An older kernel lacks the last names of a set. If it uses the number for another name, the name in this crate
    // is misspelt.
    for (name, number) in unknown {
        let set = SETS.into_iter().find(|set| name.starts_with(set)).expect("a set");
        let other = kernel_numbers.iter().find(|(of, is)| of.starts_with(set) && **is == number);
        assert!(other.is_none_or(|(of, _)| of.ends_with("_MAX")), "{name} is {other:?}");
    }
    left
}

/// The prefixes of the names in each set of numbers.
const SETS: [&str; 17] = [
    "NETDEV_CMD_",
    "NETDEV_A_DEV_",
    "NETDEV_A_NAPI_",
    "NETDEV_A_QUEUE_",
    "ETHTOOL_MSG_",
    "ETHTOOL_A_HEADER_",
    "ETHTOOL_A_BITSET_BITS_",
    "ETHTOOL_A_BITSET_BIT_",
    "ETHTOOL_A_BITSET_",
    "ETHTOOL_A_FEATURES_",
    "ETHTOOL_A_RINGS_",
    "ETHTOOL_A_CHANNELS_",
    "ETHTOOL_A_COALESCE_",
    "IFLA_INFO_",
    "IFLA_",
    "VETH_INFO_",
    "IFA_",
];
