//! A TCP connection on a shard: plain non-blocking calls on the socket, and glommio's poll when they would wait. Spans
//! in memory leave by `sendmsg`, spans of files by `sendfile` where they are in the page cache and through the ring
//! where they are not. Knows no frames; used by `net` through [`Conn`].

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::{AsyncRead, AsyncWrite};
use glommio::GlommioError;
use glommio::net::{TcpListener, TcpStream};
use smallvec::SmallVec;
use socket2::SockRef;
use storage::io::glommio::GlommioRuntime;
use storage::io::{Runtime, Span};

use super::resident::{FileSends, Found, Look, Residency, read_resident, residency};
use super::{Acceptor, Conn};

/// So much is asked for when a reader comes to what is not in memory, of which the kernel takes as much as the disk's
/// settings say: what it will ask for next comes along, and the disk's queue is not filled for long.
const AHEAD_BYTES: u64 = 2 << 20;

/// A read that fills this much goes on directly into its frame.
pub(super) const SCRATCH_BYTES: usize = 16 << 10;

/// Where more than a scratch buffer is expected, so much of it is waited for, and the rest read to where it stays.
const PROBE_BYTES: usize = 256;

/// A frame's buffer grows by this much ahead of what has arrived.
const READ_AHEAD_BYTES: usize = 64 << 10;

/// After so many bytes of memory to a socket that takes everything, the others of the shard have their turn.
const TURN_BYTES: usize = 1 << 20;

/// The same for bytes of files, some 160 µs: who reads the tail beside readers of old records waits for so much of each.
const FILE_TURN_BYTES: usize = FILE_PIECE_BYTES;

/// File ranges go out in such pieces; a cold one is brought into memory before.
const FILE_PIECE_BYTES: usize = 256 << 10;

/// So much of a file is looked at in the page cache at once, where most is likely to be there.
const LOOK_BYTES: usize = 1 << 20;

/// What is copied to wait for room in a socket after `sendfile` found none.
const WAIT_BYTES: usize = 4 << 10;

/// Most pieces of memory in one `sendmsg`.
const VECTORS_MAX: usize = 64;

/// A connection. Clones share it; it closes with the last.
#[derive(Clone)]
pub struct TcpConn(Rc<Inner>);

struct Inner {
    stream: RefCell<TcpStream>,
    /// The stream's descriptor, open as long as the stream.
    raw: RawFd,
    runtime: GlommioRuntime,
    scratch: Rc<RefCell<Vec<u8>>>,
    sends: Rc<FileSends>,
    peer: SocketAddr,
    /// The last call got all it asked for: there is more, and glommio's poll need not be asked.
    has_more: Cell<bool>,
}

impl TcpConn {
    pub(super) fn new(
        socket: OwnedFd,
        runtime: GlommioRuntime,
        scratch: Rc<RefCell<Vec<u8>>>,
        sends: Rc<FileSends>,
    ) -> io::Result<Self> {
        let settings = SockRef::from(&socket);
        // sendfile has no flag against waiting.
        settings.set_nonblocking(true)?;
        let peer = settings.peer_addr()?.as_socket().ok_or(io::ErrorKind::Unsupported)?;
        let raw = socket.into_raw_fd();
        // SAFETY: the descriptor was owned by `socket`, is a connected socket, and belongs to the stream from here on.
        let stream = unsafe { TcpStream::from_raw_fd(raw) };
        let stream = RefCell::new(stream);
        let has_more = Cell::new(false);
        Ok(Self(Rc::new(Inner { stream, raw, runtime, scratch, sends, peer, has_more })))
    }

    fn with_socket<T>(&self, work: impl FnOnce(&SockRef<'_>) -> io::Result<T>) -> io::Result<T> {
        // SAFETY: the stream, which `self` holds, keeps the descriptor open over the borrow.
        let fd = unsafe { BorrowedFd::borrow_raw(self.0.raw) };
        work(&SockRef::from(&fd))
    }

    /// Waits for bytes and appends up to a scratch buffer full, or, where more is expected, only the first of them.
    async fn read_some(&self, into: &mut BytesMut, limit: usize) -> io::Result<usize> {
        poll_fn(|context| {
            let mut scratch = self.0.scratch.borrow_mut();
            let len = if limit > scratch.len() { PROBE_BYTES.min(scratch.len()) } else { limit };
            let buffer = scratch.get_mut(..len).unwrap_or_default();
            let mut stream = self.0.stream.borrow_mut();
            let polled = Pin::new(&mut *stream).poll_read(context, buffer);
            polled.map_ok(|count| {
                let has_more = count == len;
                self.0.has_more.set(has_more);
                if has_more {
                    // Also for what is read next.
                    into.reserve(count.saturating_add(limit.saturating_sub(count).min(READ_AHEAD_BYTES)));
                }
                into.extend_from_slice(buffer.get(..count).unwrap_or_default());
                count
            })
        })
        .await
    }

    /// Appends what is there without waiting; 0 when nothing is, or the stream has ended. Takes `ahead` bytes of memory
    /// at most beyond what the buffer has.
    fn read_now(&self, into: &mut BytesMut, limit: usize, ahead: usize) -> io::Result<usize> {
        into.reserve(limit.min(ahead));
        let (asked, received) = self.with_socket(|socket| {
            let spare = into.spare_capacity_mut();
            let len = limit.min(spare.len());
            let spare = spare.get_mut(..len).unwrap_or_default();
            Ok((len, socket.recv_with_flags(spare, libc::MSG_DONTWAIT)))
        })?;
        match received {
            Ok(count) => {
                self.0.has_more.set(count == asked);
                let len = into.len().saturating_add(count);
                // SAFETY: the kernel has filled `count` bytes from the start of the spare capacity.
                unsafe { into.set_len(len) };
                Ok(count)
            }
            Err(error) if is_later(&error) => {
                self.0.has_more.set(false);
                Ok(0)
            }
            Err(error) => Err(error),
        }
    }

    /// Waits until the socket takes a part of the bytes.
    async fn write_some(&self, bytes: &[u8]) -> io::Result<usize> {
        poll_fn(|context| {
            let mut stream = self.0.stream.borrow_mut();
            Pin::new(&mut *stream).poll_write(context, bytes)
        })
        .await
    }

    async fn send_memory(&self, pieces: &mut SmallVec<[Bytes; 4]>, more: bool) -> io::Result<()> {
        let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL | if more { libc::MSG_MORE } else { 0 };
        let mut turns = Turns::new(TURN_BYTES);
        loop {
            pieces.retain(|piece| !piece.is_empty());
            if !pieces.is_empty() && turns.is_due() {
                self.0.runtime.turn().await;
            }
            let Some(first) = pieces.first() else { return Ok(()) };
            let tried = {
                let vectors: SmallVec<[IoSlice<'_>; 8]> =
                    pieces.iter().take(VECTORS_MAX).map(|piece| IoSlice::new(piece)).collect();
                self.with_socket(|socket| socket.send_vectored_with_flags(&vectors, flags))
            };
            let sent = match tried {
                Ok(sent) => sent,
                Err(error) if is_later(&error) => self.write_some(first).await?,
                Err(error) => return Err(error),
            };
            advance(pieces, sent);
            turns.sent(sent);
        }
    }

    /// Sends a range of a file; `turns` are those of the whole answer.
    async fn send_file(&self, fd: &Arc<OwnedFd>, at: u64, len: usize, turns: &mut Turns) -> io::Result<()> {
        let mut done = 0usize;
        let mut found = Found::NOTHING;
        while done < len {
            if turns.is_due() {
                self.0.runtime.turn().await;
            }
            let from = at.saturating_add(as_u64(done));
            let rest = len.saturating_sub(done);
            let piece = rest.min(FILE_PIECE_BYTES);
            let sent = match self.look(fd, from, rest, &mut found) {
                Residency::Resident => self.send_resident(fd, from, piece).await?,
                // On the heap: each connection has room for what it may wait in, and most never send what is not in memory.
                Residency::Cold => Box::pin(self.send_cold(fd, from, piece)).await?,
                Residency::Unknown => Box::pin(self.send_copy(fd, from, piece, true)).await?,
            };
            if sent == 0 {
                // Cut after the span was handed out; the frame has promised more bytes than there are.
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            done = done.saturating_add(sent);
            turns.sent(sent);
        }
        Ok(())
    }

    /// Whether the next piece of what is left of a range is in memory. Where nothing speaks against it, what comes behind
    /// the piece is looked at with it.
    fn look(&self, fd: &OwnedFd, at: u64, rest: usize, found: &mut Found) -> Residency {
        let Inner { runtime, sends, .. } = &*self.0;
        let (now, piece) = (runtime.now(), as_u64(rest.min(FILE_PIECE_BYTES)));
        if found.covers(at, piece, now) && !sends.is_wary() {
            return Residency::Resident;
        }
        if sends.look(now, runtime.last_disk_read()) == Look::Counted {
            let range = as_u64(rest.min(LOOK_BYTES));
            if let Residency::Resident = residency(fd, at, range, Look::Counted) {
                *found = Found::new(at, range, now);
                return Residency::Resident;
            }
            // Something is missing, maybe behind the piece.
        }
        let residency = residency(fd, at, piece, Look::Probed);
        if let Residency::Cold = residency {
            sends.found_cold();
        }
        residency
    }

    async fn send_resident(&self, fd: &Arc<OwnedFd>, at: u64, len: usize) -> io::Result<usize> {
        let mut offset = libc::off_t::try_from(at).map_err(|_| io::ErrorKind::InvalidInput)?;
        let began = self.0.runtime.now();
        // SAFETY: both descriptors are open, and `offset` lives over the call.
        let sent = unsafe { libc::sendfile(self.0.raw, fd.as_raw_fd(), &raw mut offset, len) };
        self.0.sends.sent(began, self.0.runtime.now());
        if let Ok(sent) = usize::try_from(sent) {
            return Ok(sent);
        }
        let error = io::Error::last_os_error();
        if !is_later(&error) {
            return Err(error);
        }
        // The socket is full. Only a write knows how to wait for it: give it a little to write.
        let copy = read_resident(fd, at, len.min(WAIT_BYTES))?;
        if copy.is_empty() {
            Box::pin(self.send_copy(fd, at, len, false)).await
        } else {
            self.write_some(&copy).await
        }
    }

    /// Has a piece brought into the page cache, and sends it from there without a copy.
    async fn send_cold(&self, fd: &Arc<OwnedFd>, at: u64, len: usize) -> io::Result<usize> {
        let len_in_file = as_u64(len);
        self.0.runtime.read_ahead(fd, at, len_in_file, AHEAD_BYTES).await?;
        match residency(fd, at, len_in_file, Look::Probed) {
            Residency::Resident => self.send_resident(fd, at, len).await,
            // The advice was not taken, or memory is so short that it is gone again.
            Residency::Cold | Residency::Unknown => self.send_copy(fd, at, len, false).await,
        }
    }

    /// Sends a piece by way of memory: from the page cache if asked to try that, else through the ring.
    async fn send_copy(&self, fd: &Arc<OwnedFd>, at: u64, len: usize, try_cache: bool) -> io::Result<usize> {
        let mut copy = if try_cache { read_resident(fd, at, len)? } else { BytesMut::new() };
        if copy.is_empty() {
            copy = self.0.runtime.read_span(fd, at, len).await?;
        }
        let sent = copy.len();
        self.send_memory(&mut SmallVec::from_iter([copy.freeze()]), false).await?;
        Ok(sent)
    }
}

/// When the others of the shard have their turn beside what is sent: before a piece and not behind one. With the last piece it
/// is out, and whoever sent it looks at the time itself.
struct Turns {
    /// Bytes between two turns.
    every: usize,
    sent: usize,
}

impl Turns {
    fn new(every: usize) -> Self {
        Self { every, sent: 0 }
    }

    /// Whether a turn is due before the next piece; if so, it is taken.
    fn is_due(&mut self) -> bool {
        let is_due = self.sent >= self.every;
        if is_due {
            self.sent = 0;
        }
        is_due
    }

    fn sent(&mut self, bytes: usize) {
        self.sent = self.sent.saturating_add(bytes);
    }
}

/// Who sends little, or nothing, holds little (F11).
fn shrink(buffer: &mut BytesMut) {
    if buffer.capacity() > SCRATCH_BYTES && buffer.len().saturating_mul(4) < buffer.capacity() {
        *buffer = BytesMut::from(&buffer[..]);
    }
}

fn as_u64(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn is_later(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn advance(pieces: &mut SmallVec<[Bytes; 4]>, mut sent: usize) {
    for piece in pieces {
        let part = sent.min(piece.len());
        piece.advance(part);
        sent = sent.saturating_sub(part);
    }
}

impl Conn for TcpConn {
    async fn read(&self, into: &mut BytesMut, limit: usize) -> io::Result<usize> {
        if limit == 0 {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        if self.0.has_more.get() && limit > SCRATCH_BYTES {
            // A stream of large frames: directly to where they stay. An empty buffer takes what the caller expects.
            let ahead = if into.is_empty() { limit } else { READ_AHEAD_BYTES };
            let count = self.read_now(into, limit, ahead)?;
            shrink(into);
            if count > 0 {
                return Ok(count);
            }
        }
        let mut total = self.read_some(into, limit).await?;
        while self.0.has_more.get() && total < limit {
            let count = self.read_now(into, limit.saturating_sub(total), READ_AHEAD_BYTES)?;
            if count == 0 {
                break;
            }
            total = total.saturating_add(count);
        }
        shrink(into);
        Ok(total)
    }

    async fn write(&self, spans: SmallVec<[Span; 4]>) -> io::Result<()> {
        let mut memory = SmallVec::new();
        let mut turns = Turns::new(FILE_TURN_BYTES);
        for span in spans {
            match span {
                Span::Memory(bytes) => memory.push(bytes),
                Span::File { fd, at, len } => {
                    let len = usize::try_from(len).unwrap_or(usize::MAX);
                    self.send_memory(&mut memory, len > 0).await?;
                    self.send_file(&fd, at, len, &mut turns).await?;
                }
            }
        }
        self.send_memory(&mut memory, false).await
    }

    fn has_ended(&self) -> bool {
        // glommio's poll does not ask for the end alone, and tells nothing of it while bytes are unread.
        let mut asked = libc::pollfd { fd: self.0.raw, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: `asked` is one structure of the kernel's, which lives over the call; the call does not wait.
        let count = unsafe { libc::poll(&raw mut asked, 1, 0) };
        count > 0 && asked.revents != 0
    }

    fn shutdown(&self) {
        // Fails only when the other side has done it already.
        let _ = self.with_socket(|socket| socket.shutdown(std::net::Shutdown::Both));
    }

    fn peer(&self) -> SocketAddr {
        self.0.peer
    }

    fn socket(&self) -> io::Result<OwnedFd> {
        // glommio gives no descriptor away: a copy goes, and the connection stays open when this one is dropped.
        // SAFETY: the stream, which `self` holds, keeps the descriptor open over the borrow.
        unsafe { BorrowedFd::borrow_raw(self.0.raw) }.try_clone_to_owned()
    }
}

/// A listening socket.
pub struct TcpAcceptor(TcpListener);

impl TcpAcceptor {
    pub(super) fn new(socket: OwnedFd) -> Self {
        // SAFETY: the descriptor was owned by `socket`, and belongs to the listener from here on.
        Self(unsafe { TcpListener::from_raw_fd(socket.into_raw_fd()) })
    }
}

impl Acceptor for TcpAcceptor {
    async fn accept(&self) -> io::Result<OwnedFd> {
        let stream = self.0.accept().await.map_err(|error| match error {
            GlommioError::IoError(error) | GlommioError::EnhancedIoError { source: error, .. } => error,
            other => io::Error::other(other.to_string()),
        })?;
        // The connection may move to another shard, and glommio gives no descriptor away: a copy goes, the poll that
        // glommio has prepared is not submitted.
        // SAFETY: the stream keeps its descriptor open over the borrow.
        unsafe { BorrowedFd::borrow_raw(stream.as_raw_fd()) }.try_clone_to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVERY: usize = 256 << 10;

    /// Turns beside an answer of these pieces.
    fn turns(pieces: &[usize]) -> usize {
        let mut turns = Turns::new(EVERY);
        let mut count = 0;
        for piece in pieces {
            count += usize::from(turns.is_due());
            turns.sent(*piece);
        }
        count
    }

    #[test]
    fn the_others_have_their_turn_between_the_pieces_of_an_answer_and_not_at_its_end() {
        assert_eq!(turns(&[]), 0);
        assert_eq!(turns(&[EVERY]), 0, "its only piece fills the turn");
        assert_eq!(turns(&[EVERY; 4]), 3);
        assert_eq!(turns(&[EVERY / 4; 16]), 3, "small pieces count together");
        assert_eq!(turns(&[EVERY - 1, 1, 1]), 1, "a socket that was full took less");
    }
}
