//! Unmodified servers under `napkin run`.

use napkin_testing::test;

use super::*;

/// Waits until a server has `at_least` epoll contexts, all of them set.
fn until_all_set(napkin: &Running, at_least: usize) -> usize {
    within("all contexts set", || {
        let epolls = epolls_below(napkin.pid());
        let set = epolls.iter().all(|(.., params)| *params == SUSPEND20);
        (epolls.len() >= at_least && set).then_some(epolls.len())
    })
}

/// A free port, which another program may take before it is used.
fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
    listener.local_addr().expect("bound").port()
}

#[test]
fn what_a_daemon_leaves_behind_is_waited_for_and_set() {
    needs_program("python3");
    let scratch = Scratch::new("daemon");
    // The program exits with 4. Its child goes on as an orphan, and opens a context.
    let program = "import os, select, signal\n\
                   r, w = os.pipe()\n\
                   if os.fork(): os.read(r, 1); os._exit(4)\n\
                   os.setsid()\n\
                   os.write(w, b'x')\n\
                   e = select.epoll()\n\
                   signal.pause()";
    let napkin = Running::start(scratch.napkin(&[
        "run",
        "--policy",
        "suspend20",
        "--",
        "python3",
        "-c",
        program,
    ]));
    until_all_set(&napkin, 1);
    napkin.signal(libc::SIGTERM);
    let (status, stderr) = napkin.end();
    assert_eq!(status.code(), Some(4), "{stderr}");
    assert_eq!(stderr.matches("waiting for what it left behind").count(), 1, "{stderr}");
    assert!(stderr.contains("python3["), "{stderr}");
    assert_eq!(scratch.journals(), 0);
}

#[test]
fn a_policy_that_cannot_be_had_is_refused_before_the_program_starts() {
    let scratch = Scratch::new("refused");
    let mark = scratch.path("started");
    let touch = format!("touch {}", mark.display());
    let output = scratch
        .napkin(&["run", "--policy", "busypoll-separate", "--", "sh", "-c", &touch])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(125));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("busypoll"), "{stderr}");
    let output = scratch
        .napkin(&["run", "--policy", "base", "--dev", "nosuch", "--", "sh", "-c", &touch])
        .output()
        .expect("napkin");
    assert_eq!(output.status.code(), Some(125), "as the help says");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("nosuch"), "{stderr}");
    assert!(!mark.exists());
}

/// Runs a server, waits until it has `at_least` contexts and all are set, and ends it by SIGTERM.
fn serves(scratch: &Scratch, program: &[&str], at_least: usize, poke: impl FnOnce()) {
    let arguments = [&["run", "--verbose", "--policy", "suspend20", "--"], program].concat();
    let mut command = scratch.napkin(&arguments);
    command.stdout(Stdio::null());
    let napkin = Running::start(command);
    let before = until_all_set(&napkin, at_least);
    poke();
    let after = until_all_set(&napkin, before);
    napkin.signal(libc::SIGTERM);
    let (status, stderr) = napkin.end();
    let set: Vec<&str> = stderr.lines().filter(|line| line.contains("; set within")).collect();
    eprintln!("{}: {after} contexts\n{}", program[0], set.join("\n"));
    assert!(!set.is_empty(), "{stderr}");
    assert!(
        status.code() == Some(0) || status.signal() == Some(libc::SIGTERM),
        "{status} {stderr}"
    );
    assert_eq!(scratch.journals(), 0, "{stderr}");
}

/// Connects, once the server listens.
fn connect(port: u16) -> std::net::TcpStream {
    within("a listener", || std::net::TcpStream::connect(("127.0.0.1", port)).ok())
}

fn is_root() -> bool {
    // SAFETY: the call takes nothing and returns a number.
    unsafe { libc::geteuid() == 0 }
}

#[test]
fn memcached_unmodified() {
    needs_program("memcached");
    let scratch = Scratch::new("memcached");
    let port = free_port().to_string();
    let mut program = vec!["memcached", "-l", "127.0.0.1", "-U", "0", "-t", "4", "-p", &port];
    if is_root() {
        program.extend(["-u", "root"]);
    }
    // One context for each of four workers, and the main thread's.
    serves(&scratch, &program, 5, || {
        let mut stream = connect(port.parse().expect("a port"));
        stream.write_all(b"version\r\n").expect("it listens");
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).expect("it answers");
        assert!(line.starts_with("VERSION"), "{line}");
    });
}

#[test]
fn nginx_unmodified_a_master_and_two_workers() {
    needs_program("nginx");
    let scratch = Scratch::new("nginx");
    let port = free_port();
    let directory = scratch.0.display();
    let user = if is_root() { "user root;" } else { "" };
    let config = format!(
        "{user} worker_processes 2; pid {directory}/pid; error_log {directory}/error;\n\
         events {{ worker_connections 64; }}\n\
         http {{ access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;\n\
         fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;\n\
         server {{ listen 127.0.0.1:{port}; return 204; }} }}\n"
    );
    let path = scratch.path("nginx.conf");
    std::fs::write(&path, config).expect("a file");
    let path = path.to_str().expect("text");
    let mut workers_before = Vec::new();
    serves(&scratch, &["nginx", "-c", path, "-e", "stderr", "-g", "daemon off;"], 2, || {
        // New workers with new contexts, while the old ones end.
        let pid = std::fs::read_to_string(scratch.path("pid")).expect("nginx wrote it");
        let pid: i32 = pid.trim().parse().expect("an id");
        let master = Process::open(pid).expect("it lives");
        workers_before = master.children().expect("it lives");
        // SAFETY: the call takes two numbers.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGHUP) }, 0);
        within("new workers", || {
            let now = master.children().ok()?;
            (now.len() == 2 && now.iter().all(|pid| !workers_before.contains(pid))).then_some(())
        });
        drop(connect(port));
    });
    assert_eq!(workers_before.len(), 2);
}

#[test]
fn redis_unmodified() {
    needs_program("redis-server");
    let scratch = Scratch::new("redis");
    let port = free_port().to_string();
    let directory = scratch.0.display().to_string();
    let program =
        ["redis-server", "--port", &port, "--bind", "127.0.0.1", "--save", "", "--dir", &directory];
    serves(&scratch, &program, 1, || drop(connect(port.parse().expect("a port"))));
}

const GO_SERVER: &str = "package main\n\
import (\"io\"; \"net\"; \"os\")\n\
func main() {\n\
\tl, err := net.Listen(\"tcp\", os.Args[1])\n\
\tif err != nil { panic(err) }\n\
\tfor {\n\
\t\tc, err := l.Accept()\n\
\t\tif err != nil { return }\n\
\t\tgo io.Copy(c, c)\n\
\t}\n\
}\n";

#[test]
fn a_go_server_statically_linked() {
    needs_program("go");
    let scratch = Scratch::new("go");
    std::fs::write(scratch.path("main.go"), GO_SERVER).expect("a file");
    let built = Command::new("go")
        .args(["build", "-o", "server", "main.go"])
        .current_dir(&scratch.0)
        .env("CGO_ENABLED", "0")
        .env("GOCACHE", concat!(env!("CARGO_TARGET_TMPDIR"), "/go"))
        .env("GO111MODULE", "off")
        .env("GOFLAGS", "")
        .output()
        .expect("go");
    let stderr = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{stderr}");
    let server = scratch.path("server");
    // No dynamic loader: LD_PRELOAD would have no effect.
    let bytes = std::fs::read(&server).expect("it was built");
    assert!(!bytes.windows(8).any(|window| window == b"ld-linux"), "it is linked dynamically");
    let address = format!("127.0.0.1:{}", free_port());
    let program = [server.to_str().expect("text"), &address];
    serves(&scratch, &program, 1, || {
        let mut stream = connect(address.rsplit_once(':').expect("a port").1.parse().unwrap());
        stream.write_all(b"hello").expect("it listens");
        let mut back = [0; 5];
        stream.read_exact(&mut back).expect("it answers");
        assert_eq!(&back, b"hello");
    });
}
