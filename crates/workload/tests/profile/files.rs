//! Built-in profiles, and those in files.

use super::*;

#[test]
fn every_built_in_profile_is_valid_and_none_is_forgotten() {
    for name in Profile::names() {
        let profile = Profile::named(schema(), name).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(profile.name(), name);
        assert_eq!(Profile::load(schema(), name), Ok(profile));
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../machine/profiles");
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for file in files.map(|file| file.file_name().to_string_lossy().into_owned()) {
        let stem = file.strip_suffix(".toml").unwrap_or_else(|| panic!("profiles/{file}"));
        assert!(Profile::names().any(|name| name == stem), "profiles/{file} is not embedded");
    }
}

#[test]
fn a_profile_that_is_not_there_is_said_to_be_so() {
    let error = Profile::named(schema(), "no such\u{1b}[2J").expect_err("unknown").to_string();
    assert!(error.starts_with("no profile is called 'no such\\u{1b}[2J'; "), "{error}");
    assert!(error.ends_with("write the path of a TOML file"), "{error}");
    for name in Profile::names() {
        let error = Profile::load(schema(), &format!("{name}x")).expect_err("misspelt").to_string();
        assert!(error.contains(&format!("did you mean '{name}'?")), "{error}");
    }
    let unreadable = |path: &str| match Profile::load(schema(), path) {
        Err(ProfileError::Unreadable { path: named, reason }) => (named, reason),
        other => panic!("{other:?}"),
    };
    assert_eq!(unreadable("./nowhere.toml").0, "./nowhere.toml");
    assert_eq!(unreadable("/dev/zero").1, "it is not a file");
}

#[test]
fn a_file_is_read_and_named_in_its_errors() {
    let path = std::env::temp_dir().join(format!("napkin-profile-{}.toml", std::process::id()));
    let name = path.to_str().expect("a path in UTF-8");
    std::fs::write(&path, sample()).expect("a file");
    let good = Profile::load(schema(), name);
    std::fs::write(&path, sample().replace("hz = { value = 1,", "hz = { value = 0,")).expect("it");
    let bad = Profile::load(schema(), name);
    std::fs::remove_file(&path).expect("it");
    assert_eq!(good.expect("valid").count("processor.cpus"), 64);
    assert!(bad.expect_err("0 Hz").to_string().starts_with(&format!("{name}:")));
}
