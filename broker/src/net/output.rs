//! The way back to one client: answers become frames, those that are ready together leave in one call. Small pieces of
//! them are copied next to each other, large ones leave from where they lie. Knows no request; `connection` brings the
//! answers in order.

use std::rc::Rc;

use bytes::{BufMut, BytesMut};
use smallvec::SmallVec;
use storage::io::Span;

use super::connections::State;
use crate::handlers::{Answer, Response};
use crate::shard::{Conn, ShardRuntime};

/// Written without sign of life in between.
const WRITE_BYTES_MAX: usize = 4 << 20;

/// Bytes of a frame's size.
const SIZE_BYTES: usize = 4;

/// Pieces of memory up to this size are copied: cheaper than one more vector of `sendmsg` and one more allocation.
const COPY_BYTES_MAX: usize = 512;

/// The way back to the client.
pub(super) struct Output<R: ShardRuntime> {
    runtime: R,
    id: u64,
    state: Rc<State<R>>,
}

impl<R: ShardRuntime> Output<R> {
    pub(super) fn new(runtime: R, id: u64, state: Rc<State<R>>) -> Self {
        Self { runtime, id, state }
    }

    pub(super) fn state(&self) -> &Rc<State<R>> {
        &self.state
    }

    /// Bytes that an answer takes on the wire.
    pub(super) fn bytes_of(&self, answer: &Answer) -> usize {
        match answer {
            Answer::Reply(response) if !self.state.output_failed.get() && !self.state.closed.get() => {
                response.spans.iter().fold(SIZE_BYTES, |sum, span| sum.saturating_add(span.len()))
            }
            Answer::Reply(_) | Answer::Nothing | Answer::Close(_) => 0,
        }
    }

    /// Writes answers. Once a write has failed, answers go nowhere.
    pub(super) async fn deliver(&self, answers: impl IntoIterator<Item = Answer>) {
        let mut frames = Frames::default();
        for answer in answers {
            match answer {
                Answer::Nothing => {}
                Answer::Close(reason) => {
                    self.flush(&mut frames).await;
                    self.state.close(self.id, reason);
                }
                Answer::Reply(response) => {
                    if !frames.push(response) {
                        self.flush(&mut frames).await;
                        self.state.close(self.id, "answer above 2 GiB");
                    }
                    if frames.bytes >= WRITE_BYTES_MAX {
                        self.flush(&mut frames).await;
                    }
                }
            }
        }
        self.flush(&mut frames).await;
        self.state.activity.set(self.runtime.now());
    }

    async fn flush(&self, frames: &mut Frames) {
        let spans = frames.take();
        if spans.is_empty() || self.state.output_failed.get() || self.state.closed.get() {
            return;
        }
        self.state.writing.set(true);
        if let Err(error) = self.write(spans).await {
            // What has arrived is still read and executed. But a client that is there would wait for the rest of its
            // answer for ever, when it was a file that failed.
            self.state.output_failed.set(true);
            self.state.patience.end();
            self.state.conn.shutdown();
            tracing::debug!(connection = self.id, %error, "write failed");
        }
        self.state.writing.set(false);
    }

    async fn write(&self, spans: SmallVec<[Span; 4]>) -> std::io::Result<()> {
        let mut batch = SmallVec::new();
        let mut bytes = 0usize;
        for span in spans {
            let mut rest = Some(span);
            while let Some(span) = rest {
                let (first, after) = cut(span, WRITE_BYTES_MAX.saturating_sub(bytes));
                bytes = bytes.saturating_add(first.len());
                batch.push(first);
                rest = after;
                if bytes >= WRITE_BYTES_MAX {
                    self.state.activity.set(self.runtime.now());
                    self.state.conn.write(std::mem::take(&mut batch)).await?;
                    bytes = 0;
                }
            }
        }
        self.state.activity.set(self.runtime.now());
        if batch.is_empty() { Ok(()) } else { self.state.conn.write(batch).await }
    }
}

/// Frames on their way out.
#[derive(Default)]
struct Frames {
    spans: SmallVec<[Span; 4]>,
    /// Small pieces that come behind `spans`.
    small: BytesMut,
    bytes: usize,
}

impl Frames {
    /// Adds an answer behind its size; `false` when it is too large for a frame.
    fn push(&mut self, response: Response) -> bool {
        let bytes = response.spans.iter().try_fold(0usize, |sum, span| sum.checked_add(span.len()));
        let Some(size) = bytes.and_then(|bytes| i32::try_from(bytes).ok()) else { return false };
        self.bytes = self.bytes.saturating_add(bytes.unwrap_or(0));
        self.small.put_i32(size);
        for span in response.spans {
            match span {
                Span::Memory(bytes) if bytes.len() <= COPY_BYTES_MAX => self.small.extend_from_slice(&bytes),
                span => {
                    self.close_small();
                    self.spans.push(span);
                }
            }
        }
        true
    }

    fn close_small(&mut self) {
        if !self.small.is_empty() {
            self.spans.push(Span::Memory(self.small.split().freeze()));
        }
    }

    fn take(&mut self) -> SmallVec<[Span; 4]> {
        self.close_small();
        self.bytes = 0;
        std::mem::take(&mut self.spans)
    }
}

/// Cuts a span after `at` bytes, which is at least 1.
fn cut(span: Span, at: usize) -> (Span, Option<Span>) {
    if span.len() <= at {
        return (span, None);
    }
    match span {
        Span::Memory(mut bytes) => {
            let first = bytes.split_to(at);
            (Span::Memory(first), Some(Span::Memory(bytes)))
        }
        Span::File { fd, at: start, len } => {
            let first = u32::try_from(at).unwrap_or(len).min(len);
            let after = Span::File {
                fd: fd.clone(),
                at: start.saturating_add(u64::from(first)),
                len: len.saturating_sub(first),
            };
            (Span::File { fd, at: start, len: first }, Some(after))
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn response(pieces: &[&'static [u8]]) -> Response {
        Response { spans: pieces.iter().map(|piece| Span::Memory(Bytes::from_static(piece))).collect() }
    }

    fn bytes(span: &Span) -> &Bytes {
        let Span::Memory(bytes) = span else { panic!("{span:?}") };
        bytes
    }

    #[test]
    fn small_answers_leave_as_one_piece() {
        let mut frames = Frames::default();
        assert!(frames.push(response(&[b"head", b"body"])) && frames.push(response(&[b"next"])));
        let spans = frames.take();
        assert_eq!(spans.len(), 1);
        assert_eq!(bytes(&spans[0]), &b"\0\0\0\x08headbody\0\0\0\x04next"[..]);
        assert!(frames.take().is_empty());
    }

    #[test]
    fn large_pieces_leave_from_where_they_lie_and_in_order() {
        static RECORDS: [u8; COPY_BYTES_MAX + 1] = [7; COPY_BYTES_MAX + 1];
        let mut frames = Frames::default();
        assert!(frames.push(response(&[b"head", &RECORDS, b"end"])) && frames.push(response(&[])));
        let spans: SmallVec<[Span; 4]> = frames.take();
        let expected: [&[u8]; 3] = [b"\0\0\x02\x08head", &RECORDS, b"end\0\0\0\0"];
        assert!(spans.iter().map(|span| &bytes(span)[..]).eq(expected));
        assert_eq!(bytes(&spans[1]).as_ptr(), RECORDS.as_ptr());
    }
}
