//! Tests of the programs themselves: what they cost, what they leave behind, and what the verifier reports.

use napkin_testing::{KillOnDrop, test};

use super::*;

/// The child process that the test below kills.
pub(crate) fn counts_until_it_is_killed() -> bool {
    if std::env::var_os("NAPKIN_COUNT_CHILD").is_none() {
        return false;
    }
    let _counter = Counter::start(&Options::default()).expect("it counts");
    println!("counting");
    std::thread::sleep(Duration::from_secs(60));
    true
}

#[test]
fn kill_9_leaves_no_program_no_map_and_no_link() {
    needs_rights(&COUNTS);
    let child = Command::new(std::env::current_exe().expect("this test"))
        .env("NAPKIN_COUNT_CHILD", "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a child");
    let mut child = KillOnDrop(child);
    let mut output = BufReader::new(child.0.stdout.take().expect("a pipe").take(10_000));
    let mut line = String::new();
    while !line.contains("counting") {
        line.clear();
        assert!(output.read_line(&mut line).expect("output") > 0, "the child counts");
    }
    let pid = child.0.id();
    let held = objects_of(pid);
    let kinds = |of: &str| held.iter().filter(|(kind, _)| kind == of).count();
    assert_eq!((kinds("prog_id"), kinds("map_id"), kinds("link_id")), (5, 2, 5), "{held:?}");
    assert!(held.iter().all(|(kind, id)| exists(kind, *id)), "they are found by id");
    drop(child);
    // The kernel frees them some time after the descriptors are closed.
    let mut left = held;
    for _ in 0..100 {
        left.retain(|(kind, id)| exists(kind, *id));
        if left.is_empty() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("left behind: {left:?}");
}

/// The kernel's IDs of a process's BPF objects, from `/proc/PID/fdinfo`.
fn objects_of(pid: u32) -> Vec<(String, u32)> {
    let mut found = BTreeMap::new();
    for file in fs::read_dir(format!("/proc/{pid}/fdinfo")).expect("its descriptors").flatten() {
        let text = fs::read_to_string(file.path()).unwrap_or_default();
        let link = text.contains("link_id:");
        for line in text.lines() {
            let Some((name, id)) = line.split_once(':') else { continue };
            // The text of a link also names its program.
            let own = if link { name == "link_id" } else { matches!(name, "prog_id" | "map_id") };
            if own {
                found.insert((name.to_owned(), id.trim().parse().expect(line)), ());
            }
        }
    }
    found.into_keys().collect()
}

fn exists(kind: &str, id: u32) -> bool {
    // BPF_PROG_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_LINK_GET_FD_BY_ID
    let command = match kind {
        "prog_id" => 13,
        "map_id" => 14,
        _ => 30,
    };
    bpf(command, [id, 0, 0]).is_some()
}

/// Runs a BPF command that opens a descriptor.
fn bpf(command: i32, mut attributes: [u32; 3]) -> Option<OwnedFd> {
    // SAFETY: the commands used here take up to three numbers and dereference no pointer in them.
    let answer = unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(&attributes))
    };
    let descriptor = i32::try_from(answer).ok().filter(|answer| *answer >= 0)?;
    // SAFETY: the call succeeded and returned a new descriptor, which nothing else owns.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

#[test]
fn the_programs_are_short_and_what_a_run_takes_is_printed() {
    let world = Backend::new();
    world.set(&[(Setting::DeferHardIrqs, 100), (Setting::GroFlushTimeout, 20_000)]);
    let counter = Counter::start(&Options::default()).expect("it counts");
    // BPF_ENABLE_STATS: counts run times until the descriptor is closed.
    let stats = bpf(32, [0, 0, 0]).expect("the kernel counts run times");
    Talk::new(&world).rounds(2000, 4);
    drop(stats);
    for program in counter.programs().expect("statistics") {
        let runs = program.runs;
        eprintln!(
            "{}: {} instructions, {} bytes of machine code, {} runs of {} ns",
            program.name,
            program.instructions,
            runs.machine_code,
            runs.runs,
            runs.run_ns / runs.runs.max(1)
        );
        assert!(runs.runs > 0, "{program:?}");
        assert!(program.instructions <= 120, "{program:?}");
    }
}

#[test]
fn without_the_right_it_says_which() {
    let answer = std::thread::spawn(|| {
        use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
        let none = CapabilitySet::empty();
        // Of this thread only.
        let none = CapabilitySets { effective: none, permitted: none, inheritable: none };
        set_capabilities(None, none).expect("rights can always be given up");
        Counter::start(&Options::default()).map(drop)
    })
    .join()
    .expect("a thread");
    let error = answer.expect_err("no right, no counts");
    assert!(matches!(error, CountError::Right { right: Right::Bpf }), "{error}");
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
}

#[test]
fn the_running_kernel_s_types_are_read_to_their_end() {
    needs(fs::exists("/sys/kernel/btf/vmlinux").is_ok_and(|it| it), "a kernel with BTF");
    let btf = Btf::kernel().expect("it is whole");
    assert!(btf.len() > 10_000, "{}", btf.len());
    let task = btf.find(Kind::Struct, "task_struct").expect("every kernel has tasks");
    assert!(btf.member(task, "pid").is_some());
    // `struct list_head { next, prev }` has never changed.
    let list = btf.find(Kind::Struct, "list_head").expect("and lists");
    let prev = btf.member(list, "prev").expect("with a prev");
    assert_eq!(prev.offset as usize, size_of::<usize>());
}

/// Programs that are not otherwise loaded on this kernel: without softirq trace points, and for Linux before 6.13.
#[test]
fn the_kernel_takes_the_programs_that_go_by_the_instance_s_state_alone() {
    needs_rights(&COUNTS);
    verifier::takes_older_programs().expect("they are accepted");
}

#[test]
fn a_program_that_the_verifier_refuses_comes_with_its_words() {
    needs_rights(&COUNTS);
    let error = verifier::refuses_a_wrong_program().expect_err("R0 was never set");
    assert!(error.to_string().contains("napkin_bad"), "{error}");
    assert!(error.to_string().contains("R0"), "{error}");
}
