//! Network namespaces of a test's own, and the rights that they and other tests need.

use napkin_kernel::namespace::Namespace;
use napkin_os::rights::Right;
use napkin_testing::needs;

/// Ignores the running test unless it has these rights.
pub(crate) fn needs_rights(rights: &[Right]) {
    for right in rights {
        needs(right.held(), right);
    }
}

/// A fresh namespace, in which devices can be made.
pub(crate) fn fresh() -> Namespace {
    needs_rights(&[Right::SysAdmin, Right::NetAdmin]);
    Namespace::new().expect("a namespace")
}
