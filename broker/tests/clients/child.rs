//! Programs that run beside a test, with a limit: what they print is read as they print it, and never stored on a disk.
//! A file would do for most, but who prints hundreds of megabytes into a full disk may not notice (Java's PrintStream
//! does not), and what is missing then looks like a fault of ours. Knows no program.
#![allow(dead_code, reason = "each runner uses its own part")]
#![allow(clippy::indexing_slicing, reason = "there are two streams")]

use std::collections::VecDeque;
use std::io::Read;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use crate::support;

/// What [`run`] keeps of a program.
const KEPT_BYTES: usize = 16 << 20;
/// No line is longer: a record of the largest batch, printed.
const LINE_BYTES: usize = 16 << 20;
/// The end of what it printed, for the message of a failure: for each of its two streams.
const TAIL_BYTES: usize = 32 << 10;
/// Of a line in such a message.
const TAIL_LINE_BYTES: usize = 2 << 10;
/// A pipe holds as much.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks that are read before the lines in them are looked at.
const CHUNKS: usize = 4;

/// Where a program says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Errors,
}

impl Stream {
    const BOTH: [Self; 2] = [Self::Output, Self::Errors];
}

/// Takes each line; what it answers with an error ends the program.
pub type Visit<'a> = &'a mut dyn FnMut(Stream, &str) -> Result<(), String>;

/// Runs a command with a limit; what it printed, then what it complained of, or why it failed with the end of both.
pub fn run(command: &mut Command, limit: Duration) -> Result<String, String> {
    let program = name(command);
    let mut texts = [String::new(), String::new()];
    let ends = drain(command, limit, &mut |stream, line| {
        if texts.iter().map(String::len).sum::<usize>() + line.len() > KEPT_BYTES {
            return Err(format!("{program} prints more than the {KEPT_BYTES} bytes that are kept"));
        }
        let text = &mut texts[stream as usize];
        text.push_str(line);
        text.push('\n');
        Ok(())
    })?;
    for (text, end) in texts.iter_mut().zip(ends) {
        if end == End::WithoutNewline {
            text.pop();
        }
    }
    Ok(texts.concat())
}

/// Runs a command with a limit and shows every line, however many there are, to a visitor. What it printed must end with a
/// whole line: else it was cut.
pub fn run_by_lines(command: &mut Command, limit: Duration, visit: Visit<'_>) -> Result<(), String> {
    let program = name(command);
    match drain(command, limit, visit)? {
        [End::WithoutNewline, _] => Err(format!("the output of {program} was cut: its last line has no end")),
        _ => Ok(()),
    }
}

fn name(command: &Command) -> String {
    command.get_program().to_string_lossy().into_owned()
}

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Also without any line.
    Whole,
    WithoutNewline,
}

/// What has been read of a stream and not been shown, and the end of what was.
#[derive(Default)]
struct Lines {
    /// A line whose end has not come.
    open: Vec<u8>,
    tail: VecDeque<String>,
    tail_bytes: usize,
}

impl Lines {
    fn take(&mut self, bytes: &[u8], show: &mut dyn FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(end) = piece.strip_suffix(b"\n") else {
                self.open.extend_from_slice(piece);
                if self.open.len() > LINE_BYTES {
                    return Err(format!("a line is longer than {LINE_BYTES} bytes"));
                }
                continue;
            };
            if self.open.is_empty() {
                self.show(&String::from_utf8_lossy(end), show)?;
            } else {
                self.open.extend_from_slice(end);
                let line = std::mem::take(&mut self.open);
                self.show(&String::from_utf8_lossy(&line), show)?;
            }
        }
        Ok(())
    }

    fn show(&mut self, line: &str, show: &mut dyn FnMut(&str) -> Result<(), String>) -> Result<(), String> {
        let line = line.strip_suffix('\r').unwrap_or(line);
        let kept: String = line.chars().take(TAIL_LINE_BYTES).collect();
        self.tail_bytes += kept.len();
        self.tail.push_back(kept);
        while self.tail_bytes > TAIL_BYTES {
            self.tail_bytes -= self.tail.pop_front().map_or(0, |line| line.len());
        }
        show(line)
    }

    /// Shows a line without an end.
    fn finish(&mut self, show: &mut dyn FnMut(&str) -> Result<(), String>) -> Result<End, String> {
        if self.open.is_empty() {
            return Ok(End::Whole);
        }
        let line = std::mem::take(&mut self.open);
        self.show(&String::from_utf8_lossy(&line), show)?;
        Ok(End::WithoutNewline)
    }
}

/// What a thread has read; nothing more comes behind an error.
type Chunk = (Stream, std::io::Result<Vec<u8>>);

/// Reads until the other side is closed, or nobody wants it any more.
fn pump(stream: Stream, mut from: impl Read, to: &SyncSender<Chunk>) {
    loop {
        let mut bytes = vec![0; CHUNK_BYTES];
        let read = from.read(&mut bytes);
        let is_last = !matches!(read, Ok(1..));
        if let Ok(count) = read {
            bytes.truncate(count);
        }
        if to.send((stream, read.map(|_| bytes))).is_err() || is_last {
            return;
        }
    }
}

fn drain(command: &mut Command, limit: Duration, visit: Visit<'_>) -> Result<[End; 2], String> {
    let program = name(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("cannot start {program}: {error}"))?;
    let (sender, receiver) = sync_channel(CHUNKS);
    // A thread each: who fills one pipe does not go on until it is read. They end with the pipes, or with us.
    let (output, errors) = (child.stdout.take().expect("a pipe"), child.stderr.take().expect("a pipe"));
    let also = sender.clone();
    std::thread::spawn(move || pump(Stream::Output, output, &also));
    std::thread::spawn(move || pump(Stream::Errors, errors, &sender));

    let deadline = Instant::now() + limit;
    let mut lines = [Lines::default(), Lines::default()];
    let read = read_all(&receiver, deadline, &mut lines, visit);
    let ended = match read {
        Ok(ends) => support::wait(&mut child, deadline.saturating_duration_since(Instant::now()))
            .map(|status| (status, ends))
            .ok_or(Broken::Late),
        Err(broken) => Err(broken),
    };
    let told = |what: String| {
        let tails = lines.iter().flat_map(|lines| lines.tail.iter().map(String::as_str));
        Err([what.as_str()].into_iter().chain(tails).collect::<Vec<_>>().join("\n"))
    };
    match ended {
        Ok((status, ends)) if status.success() => Ok(ends),
        Ok((status, _)) => told(format!("{program} ended with {status}:")),
        Err(broken) => {
            end(&mut child);
            match broken {
                Broken::Late => told(format!("{program} ran longer than {limit:?}:")),
                Broken::Unread(error) => told(format!("what {program} prints cannot be read: {error}:")),
                Broken::Refused(why) => Err(why),
            }
        }
    }
}

/// Why a program is not heard to its end.
enum Broken {
    Late,
    Unread(std::io::Error),
    /// By the visitor.
    Refused(String),
}

fn read_all(
    receiver: &Receiver<Chunk>,
    deadline: Instant,
    lines: &mut [Lines; 2],
    visit: Visit<'_>,
) -> Result<[End; 2], Broken> {
    loop {
        // Also of one that never stops to print.
        let rest = deadline.saturating_duration_since(Instant::now());
        let next = if rest.is_zero() { Err(RecvTimeoutError::Timeout) } else { receiver.recv_timeout(rest) };
        match next {
            Ok((stream, Ok(bytes))) => lines[stream as usize]
                .take(&bytes, &mut |line| visit(stream, line))
                .map_err(Broken::Refused)?,
            Ok((_, Err(error))) => return Err(Broken::Unread(error)),
            Err(RecvTimeoutError::Timeout) => return Err(Broken::Late),
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let mut ends = [End::Whole; 2];
    for (stream, end) in Stream::BOTH.into_iter().zip(&mut ends) {
        let finished = lines[stream as usize].finish(&mut |line| visit(stream, line));
        *end = finished.map_err(Broken::Refused)?;
    }
    Ok(ends)
}

fn end(child: &mut Child) -> Option<ExitStatus> {
    let _ = child.kill();
    child.wait().ok()
}

/// Says in one sentence if the disk of a directory has less room than is wanted.
pub fn expect_room(of: &std::path::Path, wanted_bytes: u64, what_for: &str) -> Result<(), String> {
    let mut free = Command::new("df");
    free.args(["--output=avail", "--block-size=1"]).arg(of);
    let text = run(&mut free, Duration::from_secs(20))?;
    let bytes: Option<u64> = text.lines().nth(1).and_then(|line| line.trim().parse().ok());
    let bytes = bytes.ok_or_else(|| format!("df says of {}: {text}", of.display()))?;
    if bytes >= wanted_bytes {
        return Ok(());
    }
    let tenths = |bytes: u64| format!("{}.{}", bytes / 1_000_000_000, bytes / 100_000_000 % 10);
    let (bytes, wanted) = (tenths(bytes), tenths(wanted_bytes));
    Err(format!("{} has {bytes} GB free, and {what_for} may take {wanted} GB", of.display()))
}
