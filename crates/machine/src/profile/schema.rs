//! The schema of profiles: the host's constants, and those of the workloads that a program knows.

use std::sync::LazyLock;

use super::key::{Constants, HOST_KEYS, HOST_SECTIONS, Key, Section};

/// The sections and keys by which a profile is read.
#[derive(Debug, PartialEq)]
pub struct Schema {
    sections: Vec<Section>,
    keys: Vec<Key>,
    /// Whether unknown sections are ignored, since they may be a workload's.
    host_alone: bool,
}

impl Schema {
    /// Returns the schema of the host alone. Sections of workloads, which it does not know, are ignored.
    pub fn host() -> &'static Schema {
        static HOST: LazyLock<Schema> =
            LazyLock::new(|| Schema { host_alone: true, ..Schema::with([]) });
        &HOST
    }

    /// Returns the schema of the host and these workloads, whose sections follow the host's in this order.
    pub fn with(workloads: impl IntoIterator<Item = Constants>) -> Schema {
        let mut schema =
            Schema { sections: HOST_SECTIONS.into(), keys: HOST_KEYS.into(), host_alone: false };
        for Constants { section, what, keys } in workloads {
            schema.sections.push(Section { name: section, required: false, what });
            schema.keys.extend(keys.iter().map(|key| Key { section, ..*key }));
        }
        schema
    }

    /// Returns the sections, in the order in which a profile is usually written.
    pub fn sections(&self) -> &[Section] {
        &self.sections
    }

    /// Returns the keys, section by section.
    pub fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// Looks up a section by its exact name.
    pub fn section(&self, name: &str) -> Option<&Section> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Looks up a key by its full name, such as `cost.poll`.
    pub fn key(&self, path: &str) -> Option<&Key> {
        self.keys.get(self.place(path)?)
    }

    /// Returns the index of a key in [`Schema::keys`].
    pub(super) fn place(&self, path: &str) -> Option<usize> {
        let (section, name) = path.split_once('.')?;
        self.keys.iter().position(|key| key.section == section && key.name == name)
    }

    /// Whether unknown sections are ignored.
    pub(super) fn ignores_unknown(&self) -> bool {
        self.host_alone
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Problem, Profile, ValueKind};
    use super::*;

    #[test]
    fn a_workload_s_section_is_read_by_a_schema_that_has_it_and_left_out_by_the_host_s() {
        let keys = const { &[Key::new("work", ValueKind::TIME, "its work")] };
        let weather = Constants { section: "weather", what: "the weather", keys };
        let weather: &'static Schema = Box::leak(Box::new(Schema::with([weather])));
        let text = Profile::built_in_text("emulator-7.2").expect("built in");
        let (host, _) = text.split_once("\n[oracle]").expect("its section");
        let text = format!("{host}\n[weather]\nwork = {{ value = \"2 us\", source = \"test\" }}\n");

        let read = Profile::parse(weather, &text, "x").expect("all is known");
        assert_eq!(read.time("weather.work"), 2_000);
        let alone = Profile::parse(Schema::host(), &text, "x").expect("left out");
        assert!(!alone.has("weather") && alone.time("cost.poll") == read.time("cost.poll"));
        let other = Box::leak(Box::new(Schema::with([])));
        let refused = Profile::parse(other, &text, "x").expect_err("not its own");
        let problem = &refused.faults()[0].problem;
        assert!(matches!(problem, Problem::UnknownSection { .. }), "{refused}");
    }
}
