//! Waiting for sockets: epoll, edge-triggered, with timeouts below a millisecond. Knows tokens, not what they stand for.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use crate::clock::SECOND_NS;

/// What happened to a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The token it was registered with.
    pub token: u64,
    /// There are bytes to read, or the peer is gone.
    pub readable: bool,
    /// The peer sends no more.
    pub hung_up: bool,
}

/// A set of sockets.
pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

/// Events taken by one wait.
const EVENTS: usize = 256;

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new() -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Self { epoll, events: Vec::with_capacity(EVENTS) })
    }

    /// Tells of each change of a socket from here on, and once of its state.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn add(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let flags = Flags::IN | Flags::OUT | Flags::RDHUP | Flags::ET;
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), flags)?)
    }

    /// Waits for at most `timeout_ns`, 0 for a look; appends to `ready`.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn wait(&mut self, timeout_ns: u64, ready: &mut Vec<Ready>) -> io::Result<()> {
        use epoll::EventFlags as Flags;
        let timeout = Timespec {
            tv_sec: i64::try_from(timeout_ns / SECOND_NS).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(timeout_ns % SECOND_NS).unwrap_or_default(),
        };
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), Some(&timeout)) {
            Ok(_) => {}
            Err(rustix::io::Errno::INTR) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| {
            // The struct is packed: its fields are copied out.
            let (flags, data) = (event.flags, event.data);
            let hung_up = flags.intersects(Flags::RDHUP | Flags::HUP | Flags::ERR);
            Ready { token: data.u64(), readable: hung_up || flags.contains(Flags::IN), hung_up }
        }));
        Ok(())
    }
}

impl std::fmt::Debug for Poller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Poller").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Clock;

    #[test]
    fn a_wait_below_a_millisecond_is_not_rounded_up_to_one() {
        let (clock, mut poller) = (Clock::start(), Poller::new().unwrap());
        let mut shortest = u64::MAX;
        for _ in 0..200 {
            let before = clock.now();
            poller.wait(100_000, &mut Vec::new()).unwrap();
            shortest = shortest.min(clock.now() - before);
        }
        assert!((100_000..1_000_000).contains(&shortest), "{shortest} ns");
    }
}
