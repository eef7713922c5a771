//! A connection that never blocks: requests that are written piece by piece around prepared batches, answers that are
//! read piece by piece. Knows no message; producer and consumer speak through it.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::prepared::Prepared;

/// Answers larger than this are not taken.
const ANSWER_BYTES_MAX: usize = 256 << 20;
/// Room for small answers, so that several are taken by one read.
const READ_BYTES_MIN: usize = 16 << 10;
/// Bytes of one read: the schedule is looked at in between.
const READ_BYTES_MAX: usize = 256 << 10;

/// A request on its way: `head` with the batches put in at `cuts`.
#[derive(Debug, Default)]
pub struct Outgoing {
    /// All bytes but those of the batches, the size in front included.
    pub head: Vec<u8>,
    /// Positions in `head` behind which the batches of `batches` go, one each.
    pub cuts: Vec<usize>,
    /// The batches.
    pub batches: Vec<Prepared>,
    /// Bytes that the kernel has taken.
    pub(crate) written: usize,
}

impl Outgoing {
    /// Writes the size of the whole into the first four bytes of `head`.
    pub fn seal(&mut self) {
        self.written = 0;
        let size = i32::try_from(self.len().saturating_sub(4)).unwrap_or(i32::MAX);
        if let Some(prefix) = self.head.first_chunk_mut() {
            *prefix = size.to_be_bytes();
        }
    }

    fn len(&self) -> usize {
        self.head.len() + self.batches.iter().map(|batch| batch.bytes().len()).sum::<usize>()
    }

    /// The pieces in order.
    fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.cuts.iter().copied().chain([self.head.len()]);
        let starts = [0].into_iter().chain(self.cuts.iter().copied());
        let heads = starts.zip(ends).map(|(start, end)| self.head.get(start..end).unwrap_or_default());
        let batches = self.batches.iter().map(Prepared::bytes).map(Some).chain([None]);
        heads.zip(batches).flat_map(|(head, batch)| [Some(head), batch]).flatten()
    }
}

/// How a write ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrote {
    /// Everything is with the kernel.
    All,
    /// The socket takes no more at the moment.
    Blocked,
}

/// How a read ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// There may be more to read.
    More,
    /// Nothing more at the moment.
    Drained,
}

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Where the first answer that was not taken begins.
    start: usize,
    filled: usize,
    /// The peer sends no more; what it sent is still to be read.
    hung_up: bool,
}

impl Wire {
    /// Connects; the connection does not block from then on.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn connect(address: SocketAddr, limit: Duration) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, limit)
            .with_context(|| format!("no connection to {address}"))?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, buffer: Vec::new(), start: 0, filled: 0, hung_up: false })
    }

    /// The socket.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Notes that the peer sends no more.
    pub fn set_hung_up(&mut self) {
        self.hung_up = true;
    }

    /// Writes what is left of a request.
    ///
    /// # Errors
    /// What the socket says.
    pub fn write(&mut self, request: &mut Outgoing) -> Result<Wrote> {
        let total = request.len();
        while request.written < total {
            let mut skip = request.written;
            let mut slices = Vec::with_capacity(2 * request.batches.len() + 1);
            for piece in request.pieces() {
                let rest = piece.get(skip.min(piece.len())..).unwrap_or_default();
                skip -= piece.len() - rest.len();
                if !rest.is_empty() {
                    slices.push(IoSlice::new(rest));
                }
            }
            match self.stream.write_vectored(&slices) {
                Ok(0) => bail!(CLOSED),
                Ok(count) => request.written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Wrote::Blocked),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(broken(error, "sending to the broker failed")),
            }
        }
        Ok(Wrote::All)
    }

    /// Reads once, at most a few hundred KiB.
    ///
    /// # Errors
    /// What the socket says, a closed connection, or an answer of an absurd size.
    pub fn read(&mut self) -> Result<Took> {
        let end = match self.announced()? {
            Some(size) => (self.start + 4 + size).max(self.start + READ_BYTES_MIN),
            None => self.start + READ_BYTES_MIN,
        };
        if self.filled >= end {
            return Ok(Took::More);
        }
        let end = end.min(self.filled + READ_BYTES_MAX);
        if self.buffer.len() < end {
            self.buffer.resize(end, 0);
        }
        let room = self.buffer.get_mut(self.filled..end).unwrap_or_default();
        let wanted = room.len();
        match self.stream.read(room) {
            Ok(0) => bail!(CLOSED),
            Ok(count) => {
                self.filled += count;
                // A short read empties the socket, and an end that came with it makes no further edge.
                Ok(if count < wanted && !self.hung_up { Took::Drained } else { Took::More })
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Took::Drained),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Took::More),
            Err(error) => Err(broken(error, "reading from the broker failed")),
        }
    }

    /// Size of the answer that is being read, once it is known.
    fn announced(&self) -> Result<Option<usize>> {
        let taken = self.buffer.get(self.start..self.filled).unwrap_or_default();
        let Some(prefix) = taken.first_chunk() else { return Ok(None) };
        match usize::try_from(i32::from_be_bytes(*prefix)) {
            Ok(size) if size <= ANSWER_BYTES_MAX => Ok(Some(size)),
            _ => bail!("the broker announced an answer of {} bytes", i32::from_be_bytes(*prefix)),
        }
    }

    /// The next whole answer, without its size; [`Wire::done`] steps behind it.
    ///
    /// # Errors
    /// An answer of an absurd size.
    pub fn answer(&self) -> Result<Option<&[u8]>> {
        let Some(size) = self.announced()? else { return Ok(None) };
        let whole = self.buffer.get(self.start + 4..self.filled).unwrap_or_default();
        Ok(whole.get(..size))
    }

    /// Bytes of the answer at hand, by positions that its reader kept.
    pub fn part(&self, range: std::ops::Range<usize>) -> &[u8] {
        let from = self.start + 4;
        self.buffer.get(from + range.start..from + range.end).unwrap_or_default()
    }

    /// Steps behind the answer at hand.
    pub fn done(&mut self) {
        if let Ok(Some(size)) = self.announced() {
            self.start += 4 + size;
        }
        if self.start >= self.filled {
            (self.start, self.filled) = (0, 0);
        } else if self.start >= READ_BYTES_MIN {
            self.buffer.copy_within(self.start..self.filled, 0);
            (self.start, self.filled) = (0, self.filled - self.start);
        }
    }
}

const CLOSED: &str = "the broker closed the connection";

/// A connection that the peer closed looks different to a writer, to a reader, and when bytes were on their way.
fn broken(error: io::Error, what: &'static str) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => anyhow::Error::msg(CLOSED),
        _ => anyhow::Error::new(error).context(what),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prepared::Shape;
    use std::net::TcpListener;

    fn pair() -> (Wire, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        let wire = Wire::connect(address, Duration::from_secs(5)).expect("connect");
        (wire, listener.accept().expect("accept").0)
    }

    fn answers(wire: &mut Wire, count: usize) -> Vec<Vec<u8>> {
        let mut found = Vec::new();
        while found.len() < count {
            wire.read().expect("read");
            while let Some(answer) = wire.answer().expect("answer") {
                found.push(answer.to_vec());
                wire.done();
            }
        }
        found
    }

    #[test]
    fn answers_come_whole_however_they_arrive() {
        let (mut wire, mut peer) = pair();
        let large = vec![7; 700_000];
        let sent = large.clone();
        let writer = std::thread::spawn(move || {
            for part in
                [&[0, 0, 0, 2, b'o', b'k', 0, 0][..], &[0, 1, b'x'], &700_000_i32.to_be_bytes(), &sent]
            {
                peer.write_all(part).expect("write");
            }
            peer
        });
        assert_eq!(answers(&mut wire, 3), [b"ok".to_vec(), b"x".to_vec(), large]);
        drop(writer.join());
        wire.set_hung_up();
        let closed = (0..1000).find_map(|_| wire.read().err()).expect("the end is seen");
        assert!(closed.to_string().contains("closed"), "{closed}");
    }

    #[test]
    fn an_absurd_size_is_refused() {
        for size in [-1, i32::MAX] {
            let (mut wire, mut peer) = pair();
            peer.write_all(&size.to_be_bytes()).expect("write");
            let refused = (0..1_000_000).find_map(|_| wire.read().err()).expect("refused");
            assert!(refused.to_string().contains("announced"), "{refused}");
        }
    }

    #[test]
    fn a_request_is_written_around_its_batches_through_a_slow_socket() {
        let (mut wire, mut peer) = pair();
        let batch = |seed| Prepared::new(Shape { record_bytes: 1000, keys: 0 }, 4000, seed).expect("batch");
        let batches = vec![batch(1), batch(2)];
        let mut request =
            Outgoing { head: b"....abcdef".to_vec(), cuts: vec![6, 9], batches, ..Outgoing::default() };
        request.seal();
        let [first, second] = request.batches.as_slice() else { panic!("two") };
        let body = [b"ab", first.bytes(), b"cde", second.bytes(), b"f"].concat();
        let size = i32::try_from(body.len()).expect("small").to_be_bytes();
        let expected = [&size, body.as_slice()].concat();
        assert_eq!(wire.write(&mut request).expect("write"), Wrote::Blocked);
        let reader = std::thread::spawn(move || {
            let mut taken = vec![0; expected.len()];
            peer.read_exact(&mut taken).expect("read");
            assert!(taken == expected, "the bytes are not those of the request");
        });
        while wire.write(&mut request).expect("write") == Wrote::Blocked {}
        reader.join().expect("the bytes of the request");
    }
}
