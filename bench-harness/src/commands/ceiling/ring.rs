//! An io_uring that does one thing at a time and waits for it. The only unsafe code of this crate: a probe of what the
//! kernel can do has to speak to it directly. Knows no probe.
#![allow(unsafe_code, reason = "operations of a ring name memory by address")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use io_uring::{IoUring, opcode, squeue, types};

/// A ring with one operation in it at most.
pub struct Ring(IoUring);

impl Ring {
    /// A ring.
    ///
    /// # Errors
    /// A kernel without io_uring, or one that does not allow it.
    pub fn new() -> io::Result<Self> {
        IoUring::new(8).map(Self)
    }

    /// Receives once.
    ///
    /// # Errors
    /// What the socket says.
    pub fn receive(&mut self, socket: impl AsFd, buffer: &mut [u8]) -> io::Result<usize> {
        let fd = types::Fd(socket.as_fd().as_raw_fd());
        self.run(&opcode::Recv::new(fd, buffer.as_mut_ptr(), length(buffer)).build())
    }

    /// Sends once.
    ///
    /// # Errors
    /// What the socket says.
    pub fn send(&mut self, socket: impl AsFd, bytes: &[u8]) -> io::Result<usize> {
        let fd = types::Fd(socket.as_fd().as_raw_fd());
        self.run(&opcode::Send::new(fd, bytes.as_ptr(), length(bytes)).build())
    }

    /// Writes once at a position.
    ///
    /// # Errors
    /// What the file says.
    pub fn write_at(&mut self, file: impl AsFd, bytes: &[u8], position: u64) -> io::Result<usize> {
        let fd = types::Fd(file.as_fd().as_raw_fd());
        self.run(&opcode::Write::new(fd, bytes.as_ptr(), length(bytes)).offset(position).build())
    }

    /// Waits until the data of a file is on the disk.
    ///
    /// # Errors
    /// What the file says.
    pub fn sync_data(&mut self, file: impl AsFd) -> io::Result<()> {
        let fd = types::Fd(file.as_fd().as_raw_fd());
        self.run(&opcode::Fsync::new(fd).flags(types::FsyncFlags::DATASYNC).build()).map(drop)
    }

    /// Submits one operation and waits for its end.
    fn run(&mut self, entry: &squeue::Entry) -> io::Result<usize> {
        // SAFETY: the buffer and the descriptor of `entry` are borrowed by the caller of this method, all of which are
        // above, until it returns; and it returns only after the completion, when the kernel has let go of both. The
        // one way out before is a refused submission, of which the kernel took nothing.
        let pushed = unsafe { self.0.submission().push(entry) };
        pushed.map_err(|_| io::Error::from(io::ErrorKind::WouldBlock))?;
        loop {
            match self.0.submit_and_wait(1) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Nothing may return while the kernel could still hold the buffer.
                Err(error) => panic!("io_uring refused to wait: {error}"),
            }
            if let Some(done) = self.0.completion().next() {
                return usize::try_from(done.result())
                    .map_err(|_| io::Error::from_raw_os_error(done.result().wrapping_neg()));
            }
        }
    }
}

fn length(bytes: &[u8]) -> u32 {
    u32::try_from(bytes.len()).unwrap_or(u32::MAX)
}
