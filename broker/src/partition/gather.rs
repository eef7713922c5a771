//! Collects what becomes of the parts of one append ask, and answers it when the last part is done.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use protocol::types::Offset;
use smallvec::SmallVec;

use super::ask::{AppendFailure, AppendRefusal, Appended, PartitionAnswer};
use crate::shard::Reply;

/// What became of one part.
pub(super) type Outcome = Result<Appended, Box<AppendFailure>>;

/// The parts of one ask.
pub(super) struct Gather {
    outcomes: RefCell<SmallVec<[Option<Outcome>; 1]>>,
    left: Cell<usize>,
    reply: Cell<Option<Reply<PartitionAnswer>>>,
}

impl Gather {
    pub(super) fn new(parts: usize, reply: Reply<PartitionAnswer>) -> Rc<Self> {
        let outcomes = RefCell::new(std::iter::repeat_with(|| None).take(parts).collect());
        Rc::new(Self { outcomes, left: Cell::new(parts), reply: Cell::new(Some(reply)) })
    }
}

/// The duty to say what became of one part. Dropped, it leaves the ask unanswered, which tells the asker that the shard
/// has ended.
pub(super) struct Ticket {
    gather: Rc<Gather>,
    index: usize,
}

impl Ticket {
    /// One ticket per part, in order.
    pub(super) fn all(gather: &Rc<Gather>) -> impl Iterator<Item = Self> + use<> {
        let gather = gather.clone();
        (0..gather.left.get()).map(move |index| Self { gather: gather.clone(), index })
    }

    pub(super) fn appended(self, appended: Appended) {
        self.done(Ok(appended));
    }

    /// The part was refused; nothing was appended.
    pub(super) fn refused(self, error: AppendRefusal, log_start_offset: Offset) {
        self.done(Err(Box::new(AppendFailure { error, log_start_offset, appended: None })));
    }

    /// The part was appended, but is not acknowledged.
    pub(super) fn unacknowledged(self, error: AppendRefusal, appended: Appended) {
        let log_start_offset = appended.log_start_offset;
        self.done(Err(Box::new(AppendFailure { error, log_start_offset, appended: Some(appended) })));
    }

    fn done(self, outcome: Outcome) {
        let Self { gather, index } = self;
        if let Some(place) = gather.outcomes.borrow_mut().get_mut(index) {
            *place = Some(outcome);
        }
        gather.left.set(gather.left.get().saturating_sub(1));
        if gather.left.get() == 0
            && let Some(reply) = gather.reply.take()
        {
            // No outcome is missing.
            let outcomes = gather.outcomes.take().into_iter().map_while(|outcome| outcome).collect();
            reply.send(PartitionAnswer::Appended(outcomes));
        }
    }
}
