//! A capture that fails before the server stops.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use napkin_serve::{Event, ServeConfig, ServeError, run};
use rustix::fs::{CWD, Mode, mkfifoat};

#[test]
fn totals_are_reported_even_if_the_capture_could_not_be_written() {
    let path = std::env::temp_dir().join(format!("napkin-serve-capture-{}", std::process::id()));
    mkfifoat(CWD, &path, Mode::RUSR | Mode::WUSR).expect("a free path");
    let config = ServeConfig {
        devices: vec!["synthetic".parse().expect("a device")],
        control: Some(path.with_extension("control")),
        capture: Some(path.clone()),
        ..ServeConfig::default()
    };
    let limit = Some(Duration::from_secs(2));
    let refused = run(&config, limit, &mut |_| panic!("it does not start"));
    let refused = refused.expect_err("nobody reads it yet").to_string();
    assert!(refused.contains("start the reader first"), "{refused}");

    let reader = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(&path);
    let mut reader = Some(reader.expect("it is there"));
    let (mut reported, mut troubles) = (None, Vec::new());
    let served = run(&config, limit, &mut |event| match event {
        // From here on the FIFO has no reader.
        Event::Started(_) => drop(reader.take()),
        Event::Problem(trouble) => troubles.push(trouble.to_owned()),
        Event::Served(totals) => reported = Some(totals.clone()),
        Event::Status(_) | Event::DeviceRemoved(_) => {}
    });
    std::fs::remove_file(&path).expect("it is ours");
    let error = served.expect_err("not all was written");
    assert!(matches!(error, ServeError::Capture { .. }), "{error}");
    assert!(troubles.iter().any(|it| it.contains("the capture has ended")), "{troubles:?}");
    assert!(reported.expect("the totals").received > 0);
}
