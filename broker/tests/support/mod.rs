//! A real broker process for tests: started on a free loopback port, stopped by its process id, restarted on its data.
#![allow(dead_code, reason = "each test target uses its own part")]
#![allow(clippy::disallowed_methods, reason = "drives real processes from outside")]
#![allow(clippy::expect_used, clippy::indexing_slicing, reason = "a test that cannot start has failed")]

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bench_harness::client::Client;

/// How long a broker may take to listen or to stop before the test fails.
const PATIENCE: Duration = Duration::from_secs(120);

/// What an admin endpoint tells.
///
/// # Errors
/// What the operating system says.
pub fn metrics(admin: impl ToSocketAddrs) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(admin)?;
    write!(stream, "GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

/// A broker process and its data directory; both are gone when it is dropped.
pub struct Broker {
    child: Option<Child>,
    port: u16,
    shards: u16,
    overrides: Vec<String>,
    /// Starts the broker with limits other than those of the test, such as `prlimit --nofile=200`.
    wrapper: Vec<String>,
    data: tempfile::TempDir,
    /// Bytes that earlier processes have printed.
    printed_before: usize,
}

impl Broker {
    /// Starts a broker with so many shards on an empty directory, and waits until it listens.
    pub fn start(shards: u16, overrides: &[&str]) -> Self {
        Self::start_wrapped(shards, overrides, &[])
    }

    /// The same with what a shell does before it becomes the broker, such as `ulimit -n 200`.
    pub fn start_limited(shards: u16, overrides: &[&str], before: &str) -> Self {
        let script = format!("{before}; exec \"$0\" \"$@\"");
        Self::start_wrapped(shards, overrides, &["sh", "-c", &script])
    }

    /// The same, started by a wrapper that is followed by the broker's command line.
    pub fn start_wrapped(shards: u16, overrides: &[&str], wrapper: &[&str]) -> Self {
        let mut broker = Self::prepared(shards, overrides);
        broker.wrapper = wrapper.iter().map(|word| (*word).to_owned()).collect();
        broker.launch();
        broker
    }

    /// A broker that is not started: see [`Self::command`].
    pub fn prepared(shards: u16, overrides: &[&str]) -> Self {
        let data = tempfile::Builder::new().prefix("odradek-test-").tempdir().expect("temporary directory");
        let overrides = overrides.iter().map(|o| (*o).to_owned()).collect();
        let (port, wrapper) = (free_port(), Vec::new());
        Self { child: None, port, shards, overrides, wrapper, data, printed_before: 0 }
    }

    /// The same directory under other settings; the broker must have stopped.
    pub fn with(self, overrides: &[&str]) -> Self {
        let mut other = self;
        assert!(other.child.is_none(), "still running");
        other.overrides = overrides.iter().map(|o| (*o).to_owned()).collect();
        other
    }

    /// Starts the process again on the same port and data.
    pub fn launch(&mut self) {
        assert!(self.child.is_none(), "already running");
        self.printed_before = self.log().len();
        let log = File::options().create(true).append(true).open(self.log_path()).expect("log file");
        let child = self
            .command()
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("log file"))
            .stderr(log)
            .spawn()
            .expect("start odradek");
        self.child = Some(child);
        self.await_listening();
    }

    /// Changes a setting for the next start.
    pub fn set(&mut self, key: &str, value: &str) {
        self.overrides.retain(|setting| setting.split('=').next() != Some(key));
        self.overrides.push(format!("{key}={value}"));
    }

    /// The command line that starts this broker.
    pub fn command(&self) -> Command {
        let program = env!("CARGO_BIN_EXE_odradek");
        let mut command = match self.wrapper.split_first() {
            None => Command::new(program),
            Some((first, rest)) => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        command.arg("serve");
        let own = [
            format!("listeners=PLAINTEXT://127.0.0.1:{}", self.port),
            format!("log.dirs={}", self.log_dir().display()),
            format!("cores={}", self.shards),
            "admin.listener=none".to_owned(),
        ];
        for setting in own.iter().chain(&self.overrides) {
            command.arg("--override").arg(setting);
        }
        command
    }

    fn await_listening(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.answers() {
            let ended = self.child.as_mut().expect("running").try_wait().expect("wait");
            assert!(ended.is_none(), "broker ended at start with {ended:?}:\n{}", self.log());
            assert!(Instant::now() < deadline, "broker does not listen:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until a process that the test has started by [`Self::command`] answers.
    pub fn await_answering(&self, is_running: &mut dyn FnMut() -> bool) -> Result<(), String> {
        let deadline = Instant::now() + PATIENCE;
        while !self.answers() {
            if !is_running() || Instant::now() > deadline {
                return Err("the broker does not listen".to_owned());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Whether an ApiVersions request is answered. That a connection can be made proves nothing: after a kill the
    /// kernel keeps the sockets of the old process for a moment.
    fn answers(&self) -> bool {
        const API_VERSIONS: [u8; 14] = [0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 0xff, 0xff];
        let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) else { return false };
        stream.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut answer = [0; 8];
        stream.write_all(&API_VERSIONS).is_ok()
            && stream.read_exact(&mut answer).is_ok()
            && answer[4..] == [0, 0, 0, 1]
    }

    /// Waits until the logs of these partitions are open: a start serves each when it is ready.
    pub fn await_served(&self, topic: &str, partitions: i32) {
        const NOT_LEADER_OR_FOLLOWER: i16 = 6;
        let mut client = Client::connect(&self.bootstrap(), PATIENCE).expect("connect");
        let deadline = Instant::now() + PATIENCE;
        for partition in 0..partitions {
            while client.fetch(topic, partition, 0, Duration::from_millis(100)).expect("fetch").error_code
                == NOT_LEADER_OR_FOLLOWER
            {
                assert!(Instant::now() < deadline, "{topic}-{partition} is not served:\n{}", self.log());
            }
        }
    }

    /// Waits until every shard has opened the logs that were there; each has some.
    pub fn await_loaded(&self) {
        let deadline = Instant::now() + PATIENCE;
        while self.log()[self.printed_before..].matches("logs are loaded").count() < usize::from(self.shards)
        {
            assert!(Instant::now() < deadline, "logs are not loaded:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// `host:port` for clients.
    pub fn bootstrap(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port it listens on.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Where its partitions are.
    pub fn log_dir(&self) -> PathBuf {
        self.data.path().join("logs")
    }

    fn log_path(&self) -> PathBuf {
        self.data.path().join("broker.log")
    }

    /// Everything it printed so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Process id.
    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("running").id()
    }

    /// Resident memory in bytes.
    pub fn resident_bytes(&self) -> u64 {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", self.pid())).expect("running process");
        let line = status.lines().find(|l| l.starts_with("VmRSS:")).expect("VmRSS");
        let kib: u64 = line.split_whitespace().nth(1).expect("number").parse().expect("number");
        kib * 1024
    }

    /// User and system CPU time so far, in clock ticks (100 a second).
    pub fn cpu_ticks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("running process");
        let fields: Vec<&str> = stat.rsplit(')').next().expect("fields").split_whitespace().collect();
        fields[11].parse::<u64>().expect("utime") + fields[12].parse::<u64>().expect("stime")
    }

    /// Whether the process still runs.
    pub fn is_running(&mut self) -> bool {
        self.child.as_mut().is_some_and(|child| child.try_wait().expect("wait").is_none())
    }

    /// Sends a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.pid().to_string()).status();
        assert!(sent.expect("kill").success(), "signal {name}");
    }

    /// Stops it cleanly and returns how it ended.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        let mut child = self.child.take().expect("running");
        let status = wait(&mut child, PATIENCE);
        status.unwrap_or_else(|| {
            let _ = child.kill();
            panic!("broker did not stop in {PATIENCE:?}:\n{}", self.log())
        })
    }

    /// Waits until it has ended by itself, and returns how.
    pub fn ended(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("running");
        let status = wait(&mut child, PATIENCE);
        status.unwrap_or_else(|| {
            let _ = child.kill();
            panic!("broker did not end in {PATIENCE:?}:\n{}", self.log())
        })
    }

    /// Lets the next start know no more than after a power cut: what the lock file says of the kernel is gone.
    pub fn distrust(&self) {
        std::fs::remove_file(self.log_dir().join(".lock")).expect("lock file");
    }

    /// Whether a start would now take the logs as the kernel holds them; never before Linux 6.8.
    pub fn is_vouched(&self) -> bool {
        std::fs::metadata(self.log_dir().join(".lock")).is_ok_and(|lock| lock.len() > 0)
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("running");
        child.kill().expect("kill");
        child.wait().expect("wait");
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("--- end of the broker's log ---");
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}

/// Waits for a child with a limit; `None` when it still runs.
pub fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return Some(status);
        }
        if Instant::now() > deadline {
            return None;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A loopback port that nobody uses at this moment, and that the kernel gives to no client: it is below the range from
/// which those get theirs.
pub fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let start = std::process::id().wrapping_mul(97);
    loop {
        let next = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % 12_000;
        let port = 20_000 + u16::try_from(next).expect("a port");
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// The root of the workspace.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("workspace root")
}
