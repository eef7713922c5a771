//! The admin endpoint: HTTP/1.1, GET and HEAD only, a short-lived thread per connection. Every bound is small: whoever
//! is slow, or sends too much, or comes in numbers, loses its own connection and nobody else's. Heads are parsed by
//! httparse; no library that serves is used, since tiny_http neither bounds connections nor times slow clients out, and
//! hyper wants an executor. Knows no page.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use socket2::SockRef;

/// Connections at a time: one more closes the oldest that has not sent its request, or is itself closed.
const CONNECTIONS_MAX: usize = 32;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;

/// Header lines of a request.
const HEADERS_MAX: usize = 64;

/// How long a head may take to come, and an idle connection may stay.
const HEAD_TIME: Duration = Duration::from_secs(5);

/// How long an answer may take to be taken.
const ANSWER_TIME: Duration = Duration::from_secs(10);

/// Bytes of answers that are on their way: as long as there are more, no page is made, and each connection that comes
/// closes the oldest that has not taken its answer.
const ANSWERS_BYTES_MAX: usize = 32 << 20;

/// How long, and for how many bytes, a connection that we end is still read from.
const LINGER_TIME: Duration = Duration::from_secs(1);
const LINGER_BYTES_MAX: usize = 64 << 10;

/// Pause after a failed accept: there are no descriptors, most likely.
const BACK_OFF: Duration = Duration::from_millis(100);

/// How often a failed accept is told of.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// Stack of a connection's thread: one head, and one buffer.
const STACK_BYTES: usize = 128 << 10;

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status.
    pub status: u16,
    /// What the body is.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Page {
    /// A line of plain text.
    pub fn text(status: u16, line: &str) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: format!("{line}\n") }
    }
}

/// What is served.
pub trait Pages: Send + Sync + 'static {
    /// The page at a path; `None` when there is none. May be called from many threads.
    fn page(&self, path: &str) -> Option<Page>;
}

/// Serves until it is dropped.
pub struct HttpServer {
    listener: Arc<TcpListener>,
    accepting: Option<JoinHandle<()>>,
    stopping: Arc<AtomicBool>,
}

impl HttpServer {
    /// Starts to serve on a socket that listens.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(listener: TcpListener, pages: Arc<dyn Pages>) -> io::Result<Self> {
        let (listener, stopping) = (Arc::new(listener), Arc::new(AtomicBool::new(false)));
        let (accepted, stop) = (listener.clone(), stopping.clone());
        let accepting =
            Builder::new().name("admin".to_owned()).spawn(move || accept_all(&accepted, &pages, &stop))?;
        Ok(Self { listener, accepting: Some(accepting), stopping })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        // Ends the accept that waits.
        let _ = SockRef::from(&*self.listener).shutdown(Shutdown::Both);
        if let Some(accepting) = self.accepting.take() {
            let _ = accepting.join();
        }
    }
}

/// A connection as the accepting thread knows it.
struct Live {
    /// Gone, and closed, when its thread has ended.
    stream: Weak<TcpStream>,
    /// Its request is there, and is being answered.
    answering: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

fn accept_all(listener: &TcpListener, pages: &Arc<dyn Pages>, stopping: &AtomicBool) {
    let mut live: Vec<Live> = Vec::new();
    let mut told: Option<Instant> = None;
    let on_way = Arc::new(AtomicUsize::new(0));
    while !stopping.load(Ordering::Acquire) {
        match listener.accept() {
            Ok((stream, _)) => {
                live.retain(|connection| !connection.thread.is_finished());
                make_room(&live);
                if on_way.load(Ordering::Relaxed) > ANSWERS_BYTES_MAX {
                    live.iter().find(|connection| connection.answering.load(Ordering::Relaxed)).map(close);
                }
                // Beyond twice the bound its threads do not end as fast as new ones come: this one is not served.
                if live.len() < 2 * CONNECTIONS_MAX {
                    live.extend(serve(stream, pages, &on_way));
                }
            }
            Err(error) if !stopping.load(Ordering::Acquire) => {
                if told.is_none_or(|told| now().duration_since(told) >= TOLD_EVERY) {
                    tracing::warn!(%error, "accepting on the admin endpoint failed");
                    told = Some(now());
                }
                pause(BACK_OFF);
            }
            Err(_) => {}
        }
    }
    for connection in live {
        close(&connection);
        let _ = connection.thread.join();
    }
}

/// Closes the oldest connections that have not sent their request, until one more fits. Their threads end by themselves.
fn make_room(live: &[Live]) {
    let excess = live.len().saturating_sub(CONNECTIONS_MAX - 1);
    let waiting = live.iter().filter(|connection| !connection.answering.load(Ordering::Relaxed));
    waiting.take(excess).for_each(close);
}

fn close(connection: &Live) {
    if let Some(stream) = connection.stream.upgrade() {
        // It may have been closed by its client.
        let _ = stream.shutdown(Shutdown::Both);
    }
}

fn serve(stream: TcpStream, pages: &Arc<dyn Pages>, on_way: &Arc<AtomicUsize>) -> Option<Live> {
    let (stream, answering) = (Arc::new(stream), Arc::new(AtomicBool::new(false)));
    let live = Arc::downgrade(&stream);
    let (pages, on_way) = (pages.clone(), on_way.clone());
    let connection = Connection { stream, pages, answering: answering.clone(), on_way };
    let thread = Builder::new().name("admin-client".to_owned()).stack_size(STACK_BYTES);
    // Failures of a client's socket are the client's.
    let thread = thread.spawn(move || drop(connection.run())).ok()?;
    Some(Live { stream: live, answering, thread })
}

struct Connection {
    stream: Arc<TcpStream>,
    pages: Arc<dyn Pages>,
    answering: Arc<AtomicBool>,
    /// Bytes of answers of all connections.
    on_way: Arc<AtomicUsize>,
}

/// An answer on its way, counted until it is dropped.
struct OnWay<'a> {
    page: Page,
    bytes: &'a AtomicUsize,
}

impl Drop for OnWay<'_> {
    fn drop(&mut self) {
        self.bytes.fetch_sub(self.page.body.len(), Ordering::Relaxed);
    }
}

/// What of an answer is sent, and what comes behind it.
#[derive(Clone, Copy)]
struct Shape {
    /// Also what the head tells of; not to HEAD (RFC 9110, 9.3.2).
    has_body: bool,
    /// The connection stays.
    stays: bool,
}

impl Shape {
    /// The answer is the last one.
    const LAST: Self = Self { has_body: true, stays: false };
}

/// What a head asks for.
enum Asked<'a> {
    /// More bytes are needed.
    More,
    /// An answer; what of it is sent; bytes of the head.
    Answer(OnWay<'a>, Shape, usize),
}

impl Connection {
    fn run(&self) -> io::Result<()> {
        self.stream.set_nodelay(true)?;
        let mut buffer = Vec::new();
        let mut until = now() + HEAD_TIME;
        loop {
            match self.asked(&buffer) {
                Asked::More => {
                    if self.read(&mut buffer, until)? == 0 {
                        return Ok(());
                    }
                }
                Asked::Answer(page, shape, head) => {
                    self.answering.store(true, Ordering::Relaxed);
                    self.write(&page.page, shape)?;
                    drop(page);
                    self.answering.store(false, Ordering::Relaxed);
                    if !shape.stays {
                        return self.linger();
                    }
                    buffer.drain(..head.min(buffer.len()));
                    until = now() + HEAD_TIME;
                }
            }
        }
    }

    fn asked(&self, buffer: &[u8]) -> Asked<'_> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut request = httparse::Request::new(&mut headers);
        let refused = |status, line| Asked::Answer(self.on_way(Page::text(status, line)), Shape::LAST, 0);
        let head = match request.parse(buffer) {
            Ok(httparse::Status::Partial) if buffer.len() < HEAD_BYTES_MAX => return Asked::More,
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return refused(431, "the head is too large");
            }
            Ok(httparse::Status::Complete(head)) => head,
            Err(_) => return refused(400, "this is no HTTP request"),
        };
        let has_body = match request.method {
            Some("GET") => true,
            Some("HEAD") => false,
            _ => return refused(405, "only GET and HEAD are served"),
        };
        let stays = request.version == Some(1) && !closes(request.headers);
        let shape = Shape { has_body, stays };
        let path = match path_of(request.path.unwrap_or_default()) {
            Ok(path) => path,
            Err((status, line)) => {
                let page = self.on_way(Page::text(status, line));
                return Asked::Answer(page, Shape { stays: false, ..shape }, 0);
            }
        };
        self.answering.store(true, Ordering::Relaxed);
        let page = if self.on_way.load(Ordering::Relaxed) > ANSWERS_BYTES_MAX {
            Page::text(503, "others have not taken their answers")
        } else {
            self.pages.page(path).unwrap_or_else(|| Page::text(404, "there is no such page"))
        };
        Asked::Answer(self.on_way(page), shape, head)
    }

    fn on_way(&self, page: Page) -> OnWay<'_> {
        self.on_way.fetch_add(page.body.len(), Ordering::Relaxed);
        OnWay { page, bytes: &self.on_way }
    }

    fn read(&self, buffer: &mut Vec<u8>, until: Instant) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(left(until)?))?;
        let mut chunk = [0; 2048];
        let count = (&*self.stream).read(&mut chunk)?;
        buffer.extend(chunk.iter().take(count));
        Ok(count)
    }

    /// Takes some of what the client still sends: a socket that is closed with unread bytes takes the answer back.
    fn linger(&self) -> io::Result<()> {
        self.stream.shutdown(Shutdown::Write)?;
        let until = now() + LINGER_TIME;
        let mut rest = Vec::new();
        while rest.len() < LINGER_BYTES_MAX && self.read(&mut rest, until)? > 0 {}
        Ok(())
    }

    fn write(&self, page: &Page, shape: Shape) -> io::Result<()> {
        let until = now() + ANSWER_TIME;
        let allow = if page.status == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let connection = if shape.stays { "keep-alive" } else { "close" };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{allow}Connection: {connection}\r\n\r\n",
            page.status,
            reason(page.status),
            page.content_type,
            page.body.len(),
        );
        self.write_all(head.as_bytes(), until)?;
        if shape.has_body { self.write_all(page.body.as_bytes(), until) } else { Ok(()) }
    }

    fn write_all(&self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            self.stream.set_write_timeout(Some(left(until)?))?;
            let written = (&*self.stream).write(bytes)?;
            if written == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            bytes = bytes.get(written..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The path of a request's target, without its query; what to answer where there is none. A target in absolute form, as to
/// a proxy, counts as its path (RFC 9112, 3.2.2): there is one site here, whatever name it was asked for by.
fn path_of(target: &str) -> Result<&str, (u16, &'static str)> {
    let behind = |scheme: &str| {
        let (head, rest) = target.split_at_checked(scheme.len())?;
        head.eq_ignore_ascii_case(scheme).then_some(rest)
    };
    if behind("https://").is_some() {
        // Not on a connection that is not secured (RFC 9110, 7.4).
        return Err((421, "nothing is served by https here"));
    }
    let path = match behind("http://") {
        None => target,
        Some(rest) => {
            let (authority, path) = rest.find(['/', '?']).map_or((rest, ""), |at| rest.split_at(at));
            // An empty host and a user are to be refused (RFC 9110, 4.2.1 and 4.2.4).
            if authority.is_empty() || authority.starts_with(':') || authority.contains('@') {
                return Err((400, "this is no target of HTTP"));
            }
            if path.starts_with('/') { path } else { "/" }
        }
    };
    Ok(path.split_once('?').map_or(path, |(path, _)| path))
}

/// Whether the connection ends after the answer: the client says so, or sends a body, which nobody reads.
fn closes(headers: &[httparse::Header<'_>]) -> bool {
    headers.iter().any(|header| {
        let is = |name: &str| header.name.eq_ignore_ascii_case(name);
        let says_close = || header.value.to_ascii_lowercase().windows(5).any(|word| word == b"close");
        is("transfer-encoding")
            || (is("content-length") && header.value != b"0")
            || (is("connection") && says_close())
    })
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        421 => "Misdirected Request",
        431 => "Request Header Fields Too Large",
        _ => "Service Unavailable",
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

#[allow(clippy::disallowed_methods, reason = "a thread of its own, which no runtime gives the time")]
fn now() -> Instant {
    Instant::now()
}

#[allow(clippy::disallowed_methods, reason = "no shard runs on this thread")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[cfg(test)]
mod tests;
