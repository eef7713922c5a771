//! Lookups by the offset index that do not believe it blindly: no checksum covers an index, and one that leads behind the batch
//! it tells of would hide records. Such an entry is found where a lookup lands, and the index is built anew from the log;
//! that of the active segment, which grows meanwhile, begins anew. Called by whoever looks for an offset in a segment.

use std::io;

use protocol::types::Offset;

use super::Log;
use super::segment::{Located, Segment};
use crate::index::offset::OffsetPosition;
use crate::io::Runtime;

/// An index that was built from the log leads to its batches; one whose file changes under us is not built for ever.
const TRIES_MAX: u32 = 4;

impl<R: Runtime> Log<R> {
    /// The first batch that ends at or above `offset` in what lies before `end`.
    pub(super) async fn locate_in(
        &self,
        segment: &Segment<R>,
        offset: Offset,
        end: u64,
    ) -> io::Result<Located> {
        for _ in 0..TRIES_MAX {
            segment.load_indexes(&self.runtime, &self.config()).await?;
            match segment.locate(&self.runtime, offset, end).await? {
                Ok(located) => return Ok(located),
                Err(entry) if self.mend_index(segment, &entry).await? => {}
                Err(entry) => return Ok(Located::Bad(entry.position)),
            }
        }
        Ok(Located::Bad(0))
    }

    /// Where to begin looking for `offset`: at or before the batch that holds it. The indexes are in memory.
    pub(super) async fn floor_in(&self, segment: &Segment<R>, offset: Offset) -> io::Result<u64> {
        for _ in 0..TRIES_MAX {
            match segment.check_floor(&self.runtime, offset).await? {
                Ok(position) => return Ok(position),
                Err(entry) if self.mend_index(segment, &entry).await? => {}
                Err(entry) => return Ok(entry.position),
            }
        }
        Ok(0)
    }

    /// Answers `false`, with nothing changed, if the entry is right: then it is the log that is damaged there.
    async fn mend_index(&self, segment: &Segment<R>, entry: &OffsetPosition) -> io::Result<bool> {
        if segment.is_led_to(&self.runtime, entry).await? {
            return Ok(false);
        }
        if segment.removed.get() || !segment.drop_offsets_with(entry) {
            // Its files may be those of another one, or somebody else was faster.
            return Ok(true);
        }
        let (base_offset, offset, position) = (segment.base_offset, entry.offset, entry.position);
        tracing::warn!(partition = %self.partition, %base_offset, %offset, position,
            "an entry of the offset index does not lead to its batch: the index is built anew");
        if base_offset != self.active().base_offset {
            segment.build_indexes(&self.runtime, &self.config()).await?;
        }
        Ok(true)
    }
}
