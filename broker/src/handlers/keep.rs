//! What a request brings that is kept beyond it: the metadata and assignments of the members of groups, which may be as
//! large as a frame. Where they are most of their frame they stay in its memory, and are not copied at all; else they are
//! copied a piece at a time. Knows no message; `groups` uses it.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use protocol::codec::{Blob, Str};
use storage::io::Runtime;

use super::Request;
use crate::shard::pace::{BYTES_A_TURN, Pace};

/// Less than this is copied: it costs little.
const STAYS_MIN: usize = 16 << 10;

/// What stays is at least this part of the memory that it keeps.
const STAYS_SHARE: usize = 4;

/// The body of a request of which parts are kept.
pub(super) struct Keep {
    body: Bytes,
    /// Memory that is there as long as a part of the body is.
    memory: usize,
}

impl Keep {
    /// Takes the body out of a request.
    pub(super) fn of(request: &mut Request) -> Self {
        Self { memory: request.memory, body: std::mem::take(&mut request.body).freeze() }
    }

    /// The body.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Keeps parts of the body, by name.
    pub(super) async fn all<'a, R: Runtime>(
        &self,
        parts: impl ExactSizeIterator<Item = (&'a Str<'a>, &'a Blob<'a>)> + Clone,
        pace: &mut Pace<'_, R>,
    ) -> Vec<(Arc<str>, Bytes)> {
        let mut bytes = 0_usize;
        for (_, part) in parts.clone() {
            bytes = bytes.saturating_add(part.len());
            pace.step().await;
        }
        let are_most = bytes >= self.memory / STAYS_SHARE;
        let mut all = Vec::with_capacity(parts.len());
        for (name, part) in parts {
            let kept = match part {
                Blob::Borrowed(part) if are_most && part.len() >= STAYS_MIN => self.body.slice_ref(part),
                part => copied(part, pace).await,
            };
            all.push((Arc::from(&**name), kept));
            pace.bytes(name.len()).await;
            pace.step().await;
        }
        all
    }
}

async fn copied<R: Runtime>(part: &[u8], pace: &mut Pace<'_, R>) -> Bytes {
    if part.len() <= BYTES_A_TURN {
        pace.bytes(part.len()).await;
        return Bytes::copy_from_slice(part);
    }
    let mut copy = BytesMut::with_capacity(part.len());
    for piece in part.chunks(BYTES_A_TURN) {
        copy.extend_from_slice(piece);
        pace.bytes(piece.len()).await;
    }
    copy.freeze()
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use storage::io::sim::SimRuntime;

    use super::*;
    use crate::shard::pace::turns_of;

    /// Keeps parts of so many bytes of a frame; what is kept, and how often the shard had its turn meanwhile.
    fn keep(parts: &[usize], memory: usize) -> (Bytes, Vec<Bytes>, usize) {
        let body = Bytes::from(vec![7; parts.iter().sum::<usize>() + 10]);
        let keep = Keep { body: body.clone(), memory };
        let name = Str::from("name");
        let mut from = 10;
        let mut blobs = Vec::new();
        for bytes in parts {
            blobs.push(Cow::Borrowed(&body[from..from + bytes]));
            from += bytes;
        }
        let (kept, turns) = {
            let runtime = SimRuntime::new(1);
            let mut pace = Pace::new(&runtime);
            turns_of(&runtime, keep.all(blobs.iter().map(|blob| (&name, blob)), &mut pace))
        };
        assert!(kept.iter().zip(&blobs).all(|((of, kept), part)| &**of == "name" && **kept == **part));
        (body, kept.into_iter().map(|(_, kept)| kept).collect(), turns)
    }

    fn is_within(kept: &Bytes, body: &Bytes) -> bool {
        body.as_ptr_range().contains(&kept.as_ptr())
    }

    #[test]
    fn what_is_most_of_its_frame_is_not_copied() {
        let (body, kept, turns) = keep(&[9 << 20, 100, 20_000], 10 << 20);
        let within: Vec<bool> = kept.iter().map(|kept| is_within(kept, &body)).collect();
        assert_eq!((within, turns), (vec![true, false, true], 0), "a small part is copied");
    }

    #[test]
    fn what_would_keep_far_more_memory_than_it_has_is_copied() {
        for memory in [usize::MAX, 4 * 60_000 + 8] {
            let (body, kept, _) = keep(&[20_000, 40_000], memory);
            assert!(kept.iter().all(|kept| !is_within(kept, &body)));
        }
    }

    #[test]
    fn what_is_copied_lets_the_shard_have_a_turn_after_each_quarter_of_a_mebibyte() {
        for parts in [&[8 << 20][..], &[1 << 20; 8], &[15 << 10; 547]] {
            let bytes = parts.iter().sum::<usize>();
            let (_, kept, turns) = keep(parts, usize::MAX);
            assert_eq!(kept.iter().map(Bytes::len).sum::<usize>(), bytes);
            // A turn comes with the part that makes it full: the parts are up to 15 KiB longer.
            assert!((bytes / (BYTES_A_TURN + (15 << 10))..=bytes / BYTES_A_TURN).contains(&turns), "{turns}");
        }
    }
}
