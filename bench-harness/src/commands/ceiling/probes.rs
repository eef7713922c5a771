//! The single measurements of `ceiling`. CPU of a thread where the work is the thread's; of the whole process where the
//! kernel may give it to workers of the ring (a buffered write), with nothing else running in it.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use protocol::records::crc::crc32c;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use super::ring::Ring;
use crate::clock::{Clock, seconds};
use crate::measure::histogram::Times;
use crate::measure::{float, machine, ratio, rounded};

/// Bytes of one append before a sync, and how many syncs.
const SYNC_BYTES: usize = 16 << 10;
const SYNCS: u64 = 500;
/// The file that sendfile sends again and again: larger than a core's cache.
const SENDFILE_BYTES: u64 = 64 << 20;
/// Where copies go: the append buffers of a broker take turns as well.
const COPY_BYTES: usize = 8 << 20;
/// Checksums and copies are many times faster than the rest: so many passes make a measurable time.
const MEMORY_PASSES: u64 = 4;

/// What a step costs.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    gb_per_second: f64,
    /// The figure that adds up.
    pub cpu_seconds_per_gb: f64,
}

impl Cost {
    /// As it stands in a report.
    pub fn to_json(self) -> Value {
        json!({
            "gb_per_second": rounded(self.gb_per_second, 3),
            "cpu_seconds_per_gb": rounded(self.cpu_seconds_per_gb, 4),
        })
    }
}

/// A running measurement.
struct Meter {
    clock: Clock,
    id: ClockId,
    cpu: f64,
}

impl Meter {
    fn thread() -> Self {
        Self::of(ClockId::ThreadCPUTime)
    }

    fn process() -> Self {
        Self::of(ClockId::ProcessCPUTime)
    }

    fn of(id: ClockId) -> Self {
        Self { clock: Clock::start(), id, cpu: cpu_of(id) }
    }

    fn cost(&self, bytes: u64) -> Cost {
        let gigabytes = float(bytes) / 1e9;
        Cost {
            gb_per_second: ratio(gigabytes, seconds(self.clock.now())),
            cpu_seconds_per_gb: ratio(cpu_of(self.id) - self.cpu, gigabytes),
        }
    }
}

#[allow(clippy::cast_precision_loss, reason = "CPU time of a probe is below 2^53 ns")]
fn cpu_of(id: ClockId) -> f64 {
    let time = clock_gettime(id);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// What the probes share.
pub struct Probe {
    ring: Ring,
    chunk: Vec<u8>,
    chunks: u64,
    directory: PathBuf,
    peer_cpu: Option<usize>,
}

impl Probe {
    /// Prepares chunks of random bytes.
    ///
    /// # Errors
    /// A machine without io_uring.
    pub fn new(chunk_bytes: usize, chunks: u64, directory: &Path, peer_cpu: Option<usize>) -> Result<Self> {
        let ring = Ring::new().context("this machine does not allow io_uring")?;
        let chunk = crate::content::payload(1, chunk_bytes);
        Ok(Self { ring, chunk, chunks, directory: directory.to_path_buf(), peer_cpu })
    }

    fn bytes(&self) -> u64 {
        self.chunks * length_of(&self.chunk)
    }

    /// A file that is gone as soon as it is closed.
    #[allow(clippy::disallowed_methods, reason = "the probe measures files themselves")]
    fn file(&self) -> Result<File> {
        let path = self.directory.join(format!("odradek-bench-ceiling-{}", std::process::id()));
        let refused = || format!("{} cannot be written", path.display());
        let mut options = std::fs::OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(&path).with_context(refused)?;
        std::fs::remove_file(&path)?;
        Ok(file)
    }

    /// Appends through the ring; its workers count.
    ///
    /// # Errors
    /// What the disk says.
    pub fn append_by_ring(&mut self) -> Result<Cost> {
        let file = self.file()?;
        let meter = Meter::process();
        let mut position = 0;
        for _ in 0..self.chunks {
            let mut rest = self.chunk.as_slice();
            while !rest.is_empty() {
                let count = self.ring.write_at(&file, rest, position).context("an append failed")?;
                position += u64::try_from(count)?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        Ok(meter.cost(self.bytes()))
    }

    /// Appends by a plain system call.
    ///
    /// # Errors
    /// What the disk says.
    pub fn append_by_pwrite(&mut self) -> Result<Cost> {
        let file = self.file()?;
        let meter = Meter::process();
        let mut position = 0;
        for _ in 0..self.chunks {
            file.write_all_at(&self.chunk, position).context("an append failed")?;
            position += length_of(&self.chunk);
        }
        Ok(meter.cost(self.bytes()))
    }

    /// CRC-32C of a chunk that was just received: it is in the cache.
    pub fn checksum(&self) -> Cost {
        let meter = Meter::thread();
        for _ in 0..self.chunks * MEMORY_PASSES {
            std::hint::black_box(crc32c(std::hint::black_box(&self.chunk)));
        }
        meter.cost(self.bytes() * MEMORY_PASSES)
    }

    /// One copy in memory, from the cache into buffers that take turns.
    pub fn copy(&self) -> Cost {
        let mut into = vec![0; COPY_BYTES.max(self.chunk.len())];
        let mut places = into.chunks_exact_mut(self.chunk.len()).collect::<Vec<_>>();
        let meter = Meter::thread();
        let mut turn = 0;
        for _ in 0..self.chunks * MEMORY_PASSES {
            if let Some(place) = places.get_mut(turn) {
                place.copy_from_slice(std::hint::black_box(&self.chunk));
            }
            turn = if turn + 1 < places.len() { turn + 1 } else { 0 };
        }
        std::hint::black_box(&places);
        meter.cost(self.bytes() * MEMORY_PASSES)
    }

    /// Receives over loopback what another thread sends.
    ///
    /// # Errors
    /// What the socket says.
    pub fn receive(&mut self) -> Result<Cost> {
        let (chunk, chunks) = (self.chunk.clone(), self.chunks);
        let (socket, peer) = self.peer(move |mut stream| {
            for _ in 0..chunks {
                stream.write_all(&chunk)?;
            }
            Ok(())
        })?;
        let mut into = vec![0; self.chunk.len()];
        let meter = Meter::thread();
        let mut received = 0;
        while received < self.bytes() {
            match self.ring.receive(&socket, &mut into).context("a receive failed")? {
                0 => break,
                count => received += u64::try_from(count)?,
            }
        }
        let cost = meter.cost(received);
        join(peer)?;
        Ok(cost)
    }

    /// Sends over loopback what another thread receives.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send(&mut self) -> Result<Cost> {
        let (socket, peer) = self.peer(discard)?;
        let meter = Meter::thread();
        for _ in 0..self.chunks {
            let mut rest = self.chunk.as_slice();
            while !rest.is_empty() {
                let count = self.ring.send(&socket, rest).context("a send failed")?;
                rest = rest.get(count..).unwrap_or_default();
            }
        }
        let cost = meter.cost(self.bytes());
        drop(socket);
        join(peer)?;
        Ok(cost)
    }

    /// Sends a file of the page cache over loopback.
    ///
    /// # Errors
    /// What the file or the socket says.
    pub fn sendfile(&mut self) -> Result<Cost> {
        let file = self.file()?;
        let chunk_bytes = length_of(&self.chunk);
        let size = SENDFILE_BYTES.max(chunk_bytes) / chunk_bytes * chunk_bytes;
        for position in (0..size).step_by(self.chunk.len()) {
            file.write_all_at(&self.chunk, position)?;
        }
        let (socket, peer) = self.peer(discard)?;
        let meter = Meter::thread();
        let mut position = 0;
        for _ in 0..self.chunks {
            let mut rest = self.chunk.len();
            while rest > 0 {
                let count = rustix::fs::sendfile(&socket, &file, Some(&mut position), rest)
                    .context("a sendfile failed")?;
                if count == 0 {
                    position = 0;
                }
                rest -= count;
            }
            if position >= size {
                position = 0;
            }
        }
        let cost = meter.cost(self.bytes());
        drop(socket);
        join(peer)?;
        Ok(cost)
    }

    /// Times of fdatasync, each behind an append.
    ///
    /// # Errors
    /// What the disk says.
    pub fn fdatasync(&mut self) -> Result<Times> {
        let file = self.file()?;
        let bytes = crate::content::payload(2, SYNC_BYTES);
        let clock = Clock::start();
        let mut times = Times::new();
        for index in 0..SYNCS {
            file.write_all_at(&bytes, index * length_of(&bytes))?;
            let from = clock.now();
            self.ring.sync_data(&file).context("an fdatasync failed")?;
            times.record(clock.now() - from);
        }
        Ok(times)
    }

    /// A loopback connection whose other end a thread serves, on a CPU of its own.
    fn peer(
        &self,
        work: impl FnOnce(TcpStream) -> std::io::Result<()> + Send + 'static,
    ) -> Result<(TcpStream, JoinHandle<Result<()>>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let socket = TcpStream::connect(listener.local_addr()?)?;
        let (stream, _) = listener.accept()?;
        let cpu = self.peer_cpu;
        let peer = std::thread::spawn(move || {
            cpu.map_or(Ok(()), machine::pin)?;
            Ok(work(stream)?)
        });
        Ok((socket, peer))
    }
}

fn discard(mut stream: TcpStream) -> std::io::Result<()> {
    let mut into = vec![0; 256 << 10];
    while stream.read(&mut into)? > 0 {}
    Ok(())
}

fn join(peer: JoinHandle<Result<()>>) -> Result<()> {
    peer.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the other end panicked")))
}

fn length_of(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_has_a_cost() {
        let directory = std::env::temp_dir();
        let Ok(mut probe) = Probe::new(64 << 10, 64, &directory, None) else { return };
        let costs = [
            probe.append_by_ring(),
            probe.append_by_pwrite(),
            Ok(probe.checksum()),
            Ok(probe.copy()),
            probe.receive(),
            probe.send(),
            probe.sendfile(),
        ];
        for (step, cost) in costs.into_iter().enumerate() {
            let cost = cost.expect("a cost");
            assert!(cost.gb_per_second > 0.0 && cost.cpu_seconds_per_gb > 0.0, "step {step}: {cost:?}");
        }
        assert_eq!(probe.fdatasync().expect("times").count(), SYNCS);
    }
}
