//! Network namespaces for tests, and checks of the capabilities that tests need.

use napkin_kernel::namespace::Namespace;
use napkin_os::rights::Right;
use napkin_testing::needs;

/// Ignores the running test unless it has these capabilities.
pub(crate) fn needs_rights(rights: &[Right]) {
    for right in rights {
        needs(right.held(), right);
    }
}

/// Creates a new namespace, in which devices can be added.
pub(crate) fn fresh() -> Namespace {
    needs_rights(&[Right::SysAdmin, Right::NetAdmin]);
    Namespace::new().expect("a namespace")
}
