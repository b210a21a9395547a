//! Generic netlink: families by name, their operations, and the attributes that they accept.

use std::collections::BTreeMap;
use std::fmt;

use netlink_sys::protocols::NETLINK_GENERIC;
use rustix::io::Errno;

use super::attribute::{Attribute, Body, Malformed, attributes, split_header};
use super::error::NetlinkError;
use super::socket::Connection;

/// The controller family, which describes all families, with its operations and attributes (`linux/genetlink.h`).
const GENL_ID_CTRL: u16 = 16;
const CTRL_CMD_GETFAMILY: u8 = 3;
const CTRL_CMD_GETPOLICY: u8 = 10;
const CTRL_ATTR_FAMILY_ID: u16 = 1;
const CTRL_ATTR_FAMILY_NAME: u16 = 2;
const CTRL_ATTR_OPS: u16 = 6;
const CTRL_ATTR_MCAST_GROUPS: u16 = 7;
const CTRL_ATTR_POLICY: u16 = 8;
const CTRL_ATTR_OP_POLICY: u16 = 9;
const CTRL_ATTR_OP: u16 = 10;
const CTRL_ATTR_OP_ID: u16 = 1;
const CTRL_ATTR_MCAST_GRP_NAME: u16 = 1;
const CTRL_ATTR_MCAST_GRP_ID: u16 = 2;
const CTRL_ATTR_POLICY_DO: u16 = 1;
/// The largest value of an attribute, in a policy (`linux/netlink.h`).
const NL_POLICY_TYPE_ATTR_MAX_VALUE_U: u16 = 5;

/// Size of the generic header: command, version, and two reserved bytes.
const HEADER: usize = 4;

/// A socket for one family.
#[derive(Debug)]
pub(super) struct Family {
    connection: Connection,
    id: u16,
    operations: Vec<u8>,
    groups: BTreeMap<String, u32>,
}

/// The part of a policy dump in one message.
#[derive(Debug, Default)]
pub(super) struct PolicyPart {
    /// Operations, each with the index of its policy.
    pub(super) index: Vec<(u16, u32)>,
    /// Largest values, by policy index and attribute. `None` means accepted without a limit.
    pub(super) attributes: Vec<((u16, u16), Option<u64>)>,
}

impl Family {
    /// Opens the family `name`, which came with Linux version `since`.
    pub(super) fn open(name: &str, since: &'static str) -> Result<Family, NetlinkError> {
        let mut connection = Connection::open(NETLINK_GENERIC)?;
        let body = header(CTRL_CMD_GETFAMILY, 1).text(CTRL_ATTR_FAMILY_NAME, name);
        let what = format_args!("looking for the netlink family `{name}`");
        let found = connection
            .ask(what, GENL_ID_CTRL, 0, body, |_, body| Ok(Some((family(body)?, groups(body)?))));
        let found = match found {
            Ok(found) => found.into_iter().next(),
            Err(NetlinkError::Refused { errno: Errno::NOENT, .. }) => None,
            Err(error) => return Err(error),
        };
        match found {
            Some(((id, operations), groups)) => Ok(Family { connection, id, operations, groups }),
            None => Err(NetlinkError::NoFamily { family: name.to_owned(), since }),
        }
    }

    /// Returns the id of a multicast group to which the family sends notifications.
    pub(super) fn group(&self, name: &str) -> Option<u32> {
        self.groups.get(name).copied()
    }

    /// Whether the kernel's family has an operation.
    pub(super) fn has(&self, operation: u8) -> bool {
        self.operations.contains(&operation)
    }

    /// Sends one request and returns its replies. `parse` gets the attributes of each.
    pub(super) fn ask<T>(
        &mut self,
        what: fmt::Arguments<'_>,
        operation: u8,
        fill: impl FnOnce(Body) -> Body,
        mut parse: impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        let id = self.id;
        self.connection.ask(
            what,
            id,
            0,
            fill(header(operation, 1)),
            family_messages(id, &mut parse),
        )
    }

    /// Dumps the list of an operation.
    pub(super) fn dump<T>(
        &mut self,
        what: fmt::Arguments<'_>,
        operation: u8,
        fill: impl FnOnce(Body) -> Body,
        mut parse: impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
    ) -> Result<Vec<T>, NetlinkError> {
        let id = self.id;
        self.connection.dump(what, id, fill(header(operation, 1)), family_messages(id, &mut parse))
    }

    /// Returns the attributes that requests of an operation may have, each with its largest value if the kernel
    /// reports one. `None` if it reports no policy (before Linux 5.7).
    pub(super) fn policy(
        &mut self,
        operation: u8,
    ) -> Result<Option<BTreeMap<u16, Option<u64>>>, NetlinkError> {
        let id = self.id;
        let body = header(CTRL_CMD_GETPOLICY, 1)
            .u16(CTRL_ATTR_FAMILY_ID, id)
            .u32(CTRL_ATTR_OP, u32::from(operation));
        let what = format_args!("reading what operation {operation} of a family accepts");
        let parts =
            self.connection.dump(what, GENL_ID_CTRL, body, |_, body| policy(body).map(Some));
        let parts = match parts {
            Ok(parts) => parts,
            Err(NetlinkError::Refused {
                errno: Errno::OPNOTSUPP | Errno::NODATA | Errno::NOENT,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let wanted = |(of, _): &&(u16, u32)| *of == u16::from(operation);
        let index = parts.iter().flat_map(|part| &part.index).find(wanted).map(|(_, index)| *index);
        let Some(index) = index else { return Ok(None) };
        let of_index = |((at, _), _): &&((u16, u16), Option<u64>)| u32::from(*at) == index;
        let attributes = parts.iter().flat_map(|part| &part.attributes).filter(of_index);
        Ok(Some(attributes.map(|((_, attribute), largest)| (*attribute, *largest)).collect()))
    }
}

fn header(operation: u8, version: u8) -> Body {
    Body::new().header(&[operation, version, 0, 0])
}

/// Skips messages of other families, and strips the generic header of the others.
fn family_messages<T>(
    id: u16,
    parse: &mut impl FnMut(&[u8]) -> Result<Option<T>, Malformed>,
) -> impl FnMut(u16, &[u8]) -> Result<Option<T>, Malformed> {
    move |kind, body| {
        if kind != id {
            return Ok(None);
        }
        parse(split_header(body, HEADER)?.1)
    }
}

/// Parses a family's id and operations.
pub(super) fn family(body: &[u8]) -> Result<(u16, Vec<u8>), Malformed> {
    let (_, list) = split_header(body, HEADER)?;
    let (mut id, mut operations) = (None, Vec::new());
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            CTRL_ATTR_FAMILY_ID => id = u16::try_from(attribute.u64()?).ok(),
            CTRL_ATTR_OPS => {
                for operation in attribute.nested() {
                    // An operation's number is one byte of the header; this code knows no larger one.
                    let number = nested_number(&operation?, CTRL_ATTR_OP_ID)?;
                    operations.extend(number.and_then(|number| u8::try_from(number).ok()));
                }
            }
            _ => {}
        }
    }
    Ok((id.ok_or(Malformed("a family has no id"))?, operations))
}

/// Parses a family's multicast groups, by name.
pub(super) fn groups(body: &[u8]) -> Result<BTreeMap<String, u32>, Malformed> {
    let (_, list) = split_header(body, HEADER)?;
    let mut found = BTreeMap::new();
    for attribute in attributes(list) {
        let attribute = attribute?;
        if attribute.kind != CTRL_ATTR_MCAST_GROUPS {
            continue;
        }
        for group in attribute.nested() {
            let (mut name, mut id) = (None, None);
            for attribute in group?.nested() {
                let attribute = attribute?;
                match attribute.kind {
                    CTRL_ATTR_MCAST_GRP_NAME => name = Some(attribute.text()?),
                    CTRL_ATTR_MCAST_GRP_ID => id = Some(attribute.u32()?),
                    _ => {}
                }
            }
            found.extend(name.zip(id));
        }
    }
    Ok(found)
}

/// Parses one message of a policy dump.
pub(super) fn policy(body: &[u8]) -> Result<PolicyPart, Malformed> {
    let (_, list) = split_header(body, HEADER)?;
    let mut part = PolicyPart::default();
    for attribute in attributes(list) {
        let attribute = attribute?;
        match attribute.kind {
            CTRL_ATTR_OP_POLICY => {
                for operation in attribute.nested() {
                    let operation = operation?;
                    if let Some(index) = nested_number(&operation, CTRL_ATTR_POLICY_DO)? {
                        let index = u32::try_from(index)
                            .map_err(|_| Malformed("a policy's index is too large"))?;
                        part.index.push((operation.kind, index));
                    }
                }
            }
            CTRL_ATTR_POLICY => {
                for policy in attribute.nested() {
                    let policy = policy?;
                    for accepted in policy.nested() {
                        let accepted = accepted?;
                        let largest = nested_number(&accepted, NL_POLICY_TYPE_ATTR_MAX_VALUE_U)?;
                        part.attributes.push(((policy.kind, accepted.kind), largest));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(part)
}

/// Returns a number in a nested list by its type.
fn nested_number(list: &Attribute<'_>, kind: u16) -> Result<Option<u64>, Malformed> {
    for attribute in list.nested() {
        let attribute = attribute?;
        if attribute.kind == kind {
            return attribute.u64().map(Some);
        }
    }
    Ok(None)
}
