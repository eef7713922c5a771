//! Requests on their way to an ensemble: what the handles send to the session's thread, who waits for which answer, and how
//! an answer gets there. Knows neither connections nor sessions; called by `session`.

use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

use futures_channel::{mpsc, oneshot};

use super::HandleId;
use super::wire::{Ask, Failed, Got};
use crate::store::{FencedError, MultiError, NodeData, Op, OpDone, Session, Stat, StoreError, StoreEvent};

/// What a handle says.
pub(super) enum Message {
    /// A request, and the session that it is bound to.
    Ask { local_epoch: u64, handle: HandleId, ask: Ask, answer: Answer },
    /// Writes, each behind a check of the controller's epoch.
    Fenced { local_epoch: u64, epoch_version: i32, ops: Vec<Op>, answer: FencedAnswer },
    /// A new handle.
    Fork { handle: HandleId, events: mpsc::UnboundedSender<StoreEvent> },
    /// A handle is gone.
    Forget(HandleId),
    /// A new session is wished for.
    Reopen(oneshot::Sender<Session>),
    /// The session shall end.
    Close(oneshot::Sender<Result<(), StoreError>>),
}

/// Who waits for fenced writes.
pub(super) type FencedAnswer = oneshot::Sender<Vec<Result<OpDone, FencedError>>>;

/// Who waits for a request.
pub(super) enum Answer {
    Data(oneshot::Sender<Result<NodeData, StoreError>>),
    Exists(oneshot::Sender<Result<Option<Stat>, StoreError>>),
    Children(oneshot::Sender<Result<(Vec<String>, Stat), StoreError>>),
    Ops(oneshot::Sender<Result<Vec<OpDone>, MultiError>>),
}

/// Fenced writes that belong together.
struct Group {
    done: Vec<Result<OpDone, FencedError>>,
    left: usize,
    answer: Option<FencedAnswer>,
}

/// Where an answer goes.
enum To {
    One(Answer),
    Part(Rc<RefCell<Group>>, usize),
    Nobody,
}

/// A request on its way.
pub(super) struct Queued {
    pub(super) ask: Rc<Ask>,
    /// Who watches, if it watches.
    pub(super) handle: HandleId,
    to: To,
}

impl Queued {
    /// A request of a handle.
    pub(super) fn of(handle: HandleId, ask: Ask, answer: Answer) -> Self {
        Self { ask: Rc::new(ask), handle, to: To::One(answer) }
    }

    /// Fenced writes, in their order; whoever waits for none is answered at once.
    pub(super) fn fenced(
        epoch_version: i32,
        ops: Vec<Op>,
        answer: FencedAnswer,
    ) -> impl Iterator<Item = Self> {
        let count = ops.len();
        let unknown = Err(FencedError::Store(StoreError::ConnectionLoss));
        let mut group = Group { done: vec![unknown; count], left: count, answer: Some(answer) };
        group.answer_if_done();
        let group = Rc::new(RefCell::new(group));
        ops.into_iter().enumerate().map(move |(index, op)| {
            let ask = Rc::new(Ask::Fenced { epoch_version, op });
            Self { ask, handle: 0, to: To::Part(Rc::clone(&group), index) }
        })
    }

    /// A request of the session itself.
    pub(super) fn own(ask: Ask) -> Self {
        Self { ask: Rc::new(ask), handle: 0, to: To::Nobody }
    }

    /// Whether a handle asked it.
    pub(super) const fn is_asked(&self) -> bool {
        !matches!(self.to, To::Nobody)
    }

    /// There will be no answer.
    pub(super) fn fail(self, failed: Failed) {
        self.answer(Err(failed));
    }

    /// Hands an answer on. Whoever has dropped its future wants none.
    pub(super) fn answer(self, got: Result<Got, Failed>) {
        let single = |failed: Failed| failed.error().error();
        match (self.to, got) {
            (To::One(Answer::Data(to)), Ok(Got::Data(found, _))) => drop(to.send(Ok(found))),
            (To::One(Answer::Exists(to)), Ok(Got::Exists(found, _))) => drop(to.send(Ok(found))),
            (To::One(Answer::Children(to)), Ok(Got::Children(found, _))) => drop(to.send(Ok(found))),
            (To::One(Answer::Ops(to)), Ok(Got::Done(done))) => drop(to.send(Ok(done))),
            (To::One(Answer::Data(to)), got) => drop(to.send(Err(single(failure(got))))),
            (To::One(Answer::Exists(to)), got) => drop(to.send(Err(single(failure(got))))),
            (To::One(Answer::Children(to)), got) => drop(to.send(Err(single(failure(got))))),
            (To::One(Answer::Ops(to)), got) => drop(to.send(Err(failure(got).error()))),
            (To::Part(group, index), got) => group.borrow_mut().take(index, got),
            (To::Nobody, _) => {}
        }
    }
}

/// Why there is nothing; an answer of another kind is one that nobody can read.
fn failure(got: Result<Got, Failed>) -> Failed {
    got.err().unwrap_or(Failed::Unreadable)
}

impl Group {
    fn take(&mut self, index: usize, got: Result<Got, Failed>) {
        let done = match got {
            Ok(Got::Done(done)) => {
                done.into_iter().next().ok_or(FencedError::Store(StoreError::ConnectionLoss))
            }
            // The check: another controller, or no controller ever.
            Err(Failed::Refused(0, StoreError::BadVersion | StoreError::NoNode)) => Err(FencedError::Moved),
            got => Err(FencedError::Store(failure(got).error().error())),
        };
        if let Some(place) = self.done.get_mut(index) {
            *place = done;
        }
        self.left = self.left.saturating_sub(1);
        self.answer_if_done();
    }

    fn answer_if_done(&mut self) {
        if self.left == 0
            && let Some(answer) = self.answer.take()
        {
            // Whoever has dropped its future wants no answer.
            let _ = answer.send(mem::take(&mut self.done));
        }
    }
}
