//! How much memory the groups take: what clients bring as it is long, and the rest by the piece, as about what it costs. It
//! is reckoned and not measured, so that the same events give the same numbers. What is on its way into the log has a bound
//! of its own (`write`), as have requests that wait (`service`). Called by the rest of `group`.

/// A group, with its place among the others.
pub(super) const GROUP_BYTES: usize = 512;

/// A member, with its timer and its places.
pub(super) const MEMBER_BYTES: usize = 512;

/// A protocol that a member offers.
pub(super) const PROTOCOL_BYTES: usize = 128;

/// An id that was handed out, with its timer.
pub(super) const PENDING_BYTES: usize = 256;

/// An offset.
pub(super) const OFFSET_BYTES: usize = 128;

/// What few offsets have, beside their metadata.
pub(super) const EXTRA_BYTES: usize = 80;

/// Bytes that a request adds to what is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// By who is not there yet.
    OfNewcomer(usize),
    /// By who is.
    OfKnown(usize),
}
