//! Many connections that never block, with whole requests in and whole answers out. Holds each connection to the order of
//! its requests; knows no message beyond its header, and no load.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::api::{RequestHeader, decode_response_header};
use protocol::codec::{Cursor, Writer};
use protocol::messages::Message;

use crate::clock::Clock;
use crate::poll::{Poller, Ready};
use crate::wire::{Outgoing, Took, Wire, Wrote};

/// An answer that came whole.
#[derive(Debug)]
pub struct Answer {
    /// The connection.
    pub line: usize,
    /// The answer, header included.
    pub frame: Vec<u8>,
    /// When it was read.
    pub at: u64,
}

/// One connection.
#[derive(Debug)]
struct Line {
    wire: Wire,
    outgoing: VecDeque<Outgoing>,
    /// Correlation ids of the requests without an answer.
    asked: VecDeque<i32>,
    next_correlation_id: i32,
}

impl Line {
    fn flush(&mut self) -> Result<()> {
        while let Some(outgoing) = self.outgoing.front_mut() {
            match self.wire.write(outgoing)? {
                Wrote::All => drop(self.outgoing.pop_front()),
                Wrote::Blocked => return Ok(()),
            }
        }
        Ok(())
    }
}

/// The connections; each is named by its place, which is not given twice.
#[derive(Debug)]
pub struct Lines {
    clock: Clock,
    poller: Poller,
    lines: Vec<Option<Line>>,
    ready: Vec<Ready>,
    /// Sockets with more to read.
    again: VecDeque<Ready>,
    unanswered: usize,
    answered_at: u64,
}

impl Lines {
    /// None yet.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(clock: Clock) -> Result<Self> {
        Ok(Self {
            clock,
            poller: Poller::new()?,
            lines: Vec::new(),
            ready: Vec::new(),
            again: VecDeque::new(),
            unanswered: 0,
            answered_at: clock.now(),
        })
    }

    /// Connects; returns the place.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(&mut self, address: SocketAddr, limit: Duration) -> Result<usize> {
        let place = self.lines.len();
        let wire = Wire::connect(address, limit)?;
        self.poller.add(wire.stream(), u64::try_from(place)?)?;
        let line = Line { wire, outgoing: VecDeque::new(), asked: VecDeque::new(), next_correlation_id: 0 };
        self.lines.push(Some(line));
        Ok(place)
    }

    /// Closes a connection; what it was asked is not answered any more.
    pub fn close(&mut self, place: usize) {
        if let Some(line) = self.lines.get_mut(place).and_then(Option::take) {
            self.unanswered -= line.asked.len();
        }
    }

    /// Sends a request; what the socket does not take at once goes when it does.
    ///
    /// # Errors
    /// A connection that is closed or breaks.
    pub fn send<'a, M: Message<'a>>(&mut self, place: usize, version: i16, message: &M) -> Result<()> {
        let line = self.lines.get_mut(place).and_then(Option::as_mut);
        let line = line.context("a connection that was closed is asked")?;
        let correlation_id = line.next_correlation_id;
        line.next_correlation_id = correlation_id.wrapping_add(1);
        let mut writer = Writer::new();
        let client_id = Some("odradek-bench");
        RequestHeader { api_key: M::KEY, api_version: version, correlation_id, client_id }
            .encode(&mut writer);
        message.encode(&mut writer, version);
        line.outgoing.push_back(Outgoing { head: writer.into_frame().to_vec(), ..Outgoing::default() });
        line.asked.push_back(correlation_id);
        self.unanswered += 1;
        line.flush()
    }

    /// Requests without an answer.
    pub fn unanswered(&self) -> usize {
        self.unanswered
    }

    /// When the last answer came.
    pub fn answered_at(&self) -> u64 {
        self.answered_at
    }

    /// Waits for at most so long until something can be read; appends the answers, in the order of each connection.
    ///
    /// # Errors
    /// A connection that breaks, an answer to something else.
    pub fn wait(&mut self, timeout_ns: u64, answers: &mut Vec<Answer>) -> Result<()> {
        let mut ready = std::mem::take(&mut self.ready);
        ready.extend(self.again.drain(..));
        let timeout_ns = if ready.is_empty() { timeout_ns } else { 0 };
        self.poller.wait(timeout_ns, &mut ready)?;
        for event in ready.drain(..) {
            if self.take(event, answers)? == Took::More {
                self.again.push_back(event);
            }
        }
        self.ready = ready;
        Ok(())
    }

    fn take(&mut self, event: Ready, answers: &mut Vec<Answer>) -> Result<Took> {
        let place = usize::try_from(event.token)?;
        // An event of a connection that has been closed since.
        let Some(line) = self.lines.get_mut(place).and_then(Option::as_mut) else { return Ok(Took::Drained) };
        line.flush()?;
        if !event.readable {
            return Ok(Took::Drained);
        }
        if event.hung_up {
            line.wire.set_hung_up();
        }
        let took = line.wire.read()?;
        let at = self.clock.now();
        while let Some(frame) = line.wire.answer()? {
            let Some(asked) = line.asked.pop_front() else {
                bail!("the broker answered something that was not asked");
            };
            let echoed = frame.first_chunk().map(|id| i32::from_be_bytes(*id));
            if echoed != Some(asked) {
                bail!("the broker answered {echoed:?} before request {asked}");
            }
            answers.push(Answer { line: place, frame: frame.to_vec(), at });
            line.wire.done();
            self.unanswered -= 1;
            self.answered_at = at;
        }
        Ok(took)
    }
}

/// Decodes an answer; it borrows from the frame.
///
/// # Errors
/// Bytes that are no such answer.
pub fn decode<'a, M: Message<'a>>(frame: &'a [u8], version: i16) -> Result<M> {
    let mut cursor = Cursor::new(frame);
    decode_response_header(M::KEY, version, &mut cursor)?;
    Ok(M::decode(&mut cursor, version)?)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use protocol::messages::{HeartbeatRequest, HeartbeatResponse};

    use super::*;

    const VERSION: i16 = 4;
    const PATIENCE: Duration = Duration::from_secs(30);

    fn pair() -> (Lines, usize, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let mut lines = Lines::new(Clock::start()).expect("lines");
        let address = listener.local_addr().expect("address");
        let place = lines.open(address, PATIENCE).expect("open");
        (lines, place, listener.accept().expect("accept").0)
    }

    /// Takes a request as the broker does: its correlation id.
    fn asked(peer: &mut TcpStream) -> i32 {
        let mut prefix = [0; 4];
        peer.read_exact(&mut prefix).expect("size");
        let mut frame = vec![0; u32::from_be_bytes(prefix) as usize];
        peer.read_exact(&mut frame).expect("frame");
        RequestHeader::decode(&mut Cursor::new(&frame)).expect("header").correlation_id
    }

    fn answer(peer: &mut TcpStream, correlation_id: i32, error_code: i16) {
        let mut writer = Writer::new();
        protocol::api::response_header(
            protocol::api::ApiKey::Heartbeat,
            VERSION,
            correlation_id,
            &mut writer,
        );
        HeartbeatResponse { error_code, ..HeartbeatResponse::default() }.encode(&mut writer, VERSION);
        peer.write_all(&writer.into_frame()).expect("write");
    }

    fn wait_for(lines: &mut Lines, count: usize) -> Result<Vec<Answer>> {
        let mut answers = Vec::new();
        while answers.len() < count {
            lines.wait(100_000_000, &mut answers)?;
        }
        Ok(answers)
    }

    #[test]
    fn answers_come_in_the_order_of_the_requests_and_no_other() {
        let (mut lines, place, mut peer) = pair();
        for _ in 0..2 {
            lines.send(place, VERSION, &HeartbeatRequest::default()).expect("send");
        }
        assert_eq!(lines.unanswered(), 2);
        let ids = [asked(&mut peer), asked(&mut peer)];
        answer(&mut peer, ids[0], 0);
        answer(&mut peer, ids[1], 27);
        let answers = wait_for(&mut lines, 2).expect("answers");
        let codes: Vec<i16> = answers
            .iter()
            .map(|answer| decode::<HeartbeatResponse>(&answer.frame, VERSION).expect("decode").error_code)
            .collect();
        assert_eq!((codes, lines.unanswered()), (vec![0, 27], 0));
        answer(&mut peer, 7, 0);
        let said = wait_for(&mut lines, 1).expect_err("nobody asked").to_string();
        assert!(said.contains("not asked"), "{said}");
    }

    #[test]
    fn an_answer_out_of_order_is_refused() {
        let (mut lines, place, mut peer) = pair();
        for _ in 0..2 {
            lines.send(place, VERSION, &HeartbeatRequest::default()).expect("send");
        }
        let ids = [asked(&mut peer), asked(&mut peer)];
        answer(&mut peer, ids[1], 0);
        let said = wait_for(&mut lines, 1).expect_err("out of order").to_string();
        assert!(said.contains("before request"), "{said}");
    }

    #[test]
    fn a_closed_connection_is_not_asked_and_owes_nothing() {
        let (mut lines, place, peer) = pair();
        lines.send(place, VERSION, &HeartbeatRequest::default()).expect("send");
        lines.close(place);
        assert_eq!(lines.unanswered(), 0);
        assert!(lines.send(place, VERSION, &HeartbeatRequest::default()).is_err());
        drop(peer);
        lines.wait(0, &mut Vec::new()).expect("nobody is left to break");
    }
}
