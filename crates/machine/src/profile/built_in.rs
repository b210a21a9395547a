//! The profiles that come with napkin. They are embedded, so that a result does not depend on where the program is
//! installed.

use super::Profile;

/// Name and text of each file in `profiles/`; the name is the file's without `.toml`.
macro_rules! embedded {
    ($($name:literal),* $(,)?) => {
        &[$(($name, include_str!(concat!("../../profiles/", $name, ".toml")))),*]
    };
}

/// Every built-in profile. A file in `profiles/` that is not listed here fails a test.
const BUILT_IN: &[(&str, &str)] =
    embedded!["desktop-2007", "emulator-7.2", "epyc-7662", "qemu-2018", "xeon-56", "xsk-2025"];

impl Profile {
    /// Returns the names of the built-in profiles.
    pub fn names() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// Returns the text of a built-in profile, comments included.
    pub fn built_in_text(name: &str) -> Option<&'static str> {
        BUILT_IN.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
    }
}
