//! InitProducerId (22): producer ids for idempotent producers, from this shard's part of a block; transactional ids have
//! no coordinator yet (coordinators.md 6.5, 6.11).

use std::cell::Cell;
use std::rc::Rc;

use futures_util::lock::Mutex;
use protocol::error::ErrorCode;
use protocol::messages::{InitProducerIdRequest, InitProducerIdResponse};
use protocol::types::{MonoTime, ProducerEpoch, ProducerId};

use super::dispatch::{ASK_MS_MAX, Wiring, deadline, decode, reply};
use super::errors::ToErrorCode;
use super::{Answer, Request};
use crate::admin::ask::{AdminAnswer, AdminAsk, ProducerIdRange};
use crate::admin::service::AdminService;
use crate::shard::{ShardId, ShardRuntime, Shards};

/// The producer ids that this shard may hand out. Clones share them.
#[derive(Clone, Debug)]
pub struct ProducerIds {
    range: Rc<Cell<ProducerIdRange>>,
    /// One request to shard 0 at a time: the others wait for its ids. Lives on one thread; not a lock between shards.
    asking: Rc<Mutex<()>>,
}

impl Default for ProducerIds {
    fn default() -> Self {
        let range = Rc::new(Cell::new(ProducerIdRange { start: 0, count: 0 }));
        Self { range, asking: Rc::new(Mutex::new(())) }
    }
}

impl ProducerIds {
    fn take(&self) -> Option<ProducerId> {
        let ProducerIdRange { start, count } = self.range.get();
        (count > 0).then(|| {
            self.range.set(ProducerIdRange { start: start + 1, count: count - 1 });
            ProducerId::new(start)
        })
    }

    /// The next id. Dropping the future may waste ids, never repeats them.
    ///
    /// # Errors
    /// What the client is told: mostly to try again (KAFKA-14694).
    pub async fn next<R: ShardRuntime>(
        &self,
        admin: &Shards<R, AdminService>,
        by: MonoTime,
    ) -> Result<ProducerId, ErrorCode> {
        if let Some(id) = self.take() {
            return Ok(id);
        }
        let _turn = self.asking.lock().await;
        if let Some(id) = self.take() {
            return Ok(id);
        }
        match admin.ask(ShardId::CONTROL, by, AdminAsk::AllocateProducerIds).await {
            Ok(AdminAnswer::ProducerIds(Ok(range))) => {
                self.range.set(range);
                self.take().ok_or(ErrorCode::CoordinatorLoadInProgress)
            }
            Ok(AdminAnswer::ProducerIds(Err(error))) => Err(error.error_code()),
            Ok(_) | Err(_) => Err(ErrorCode::CoordinatorLoadInProgress),
        }
    }
}

/// Handles one request.
pub async fn handle<R: ShardRuntime>(wiring: &Wiring<R>, request: &Request) -> Answer {
    let wanted = match decode::<InitProducerIdRequest<'_>>(request) {
        Ok(message) => wanted(&message),
        Err(malformed) => return malformed.into(),
    };
    let outcome = match wanted {
        Wanted::Refused(error) => Err(error),
        Wanted::ProducerId => {
            let by = deadline(&wiring.runtime, ASK_MS_MAX);
            wiring.producer_ids.next(&wiring.admin, by).await
        }
    };
    reply(request, &response(outcome))
}

/// What to do with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wanted {
    /// An id for an idempotent producer.
    ProducerId,
    /// Nothing: the request is answered with this.
    Refused(ErrorCode),
}

/// Checks a request, in Kafka's order.
fn wanted(request: &InitProducerIdRequest<'_>) -> Wanted {
    let has_id = request.producer_id != ProducerId::NONE.get();
    let has_epoch = request.producer_epoch != ProducerEpoch::NONE.get();
    if has_id != has_epoch {
        return Wanted::Refused(ErrorCode::InvalidRequest);
    }
    match request.transactional_id.as_deref() {
        None => Wanted::ProducerId,
        Some("") => Wanted::Refused(ErrorCode::InvalidRequest),
        Some(_) => Wanted::Refused(ErrorCode::NotCoordinator),
    }
}

fn response(outcome: Result<ProducerId, ErrorCode>) -> InitProducerIdResponse {
    let (error, id, epoch) = match outcome {
        Ok(id) => (ErrorCode::None, id, ProducerEpoch::new(0)),
        Err(error) => (error, ProducerId::NONE, ProducerEpoch::NONE),
    };
    InitProducerIdResponse {
        throttle_time_ms: 0,
        error_code: error.get(),
        producer_id: id.get(),
        producer_epoch: epoch.get(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(
        transactional_id: Option<&'static str>,
        producer_id: i64,
        producer_epoch: i16,
    ) -> InitProducerIdRequest<'static> {
        let transactional_id = transactional_id.map(Into::into);
        InitProducerIdRequest { transactional_id, transaction_timeout_ms: 0, producer_id, producer_epoch }
    }

    #[test]
    fn an_idempotent_producer_gets_an_id_whatever_its_timeout() {
        assert_eq!(wanted(&request(None, -1, -1)), Wanted::ProducerId);
        assert_eq!(wanted(&request(None, 5, 1)), Wanted::ProducerId);
    }

    #[test]
    fn half_an_identity_and_an_empty_id_are_invalid_requests() {
        for wrong in
            [request(None, 5, -1), request(None, -1, 1), request(Some(""), -1, -1), request(Some("t"), 5, -1)]
        {
            assert_eq!(wanted(&wrong), Wanted::Refused(ErrorCode::InvalidRequest));
        }
    }

    #[test]
    fn a_transactional_id_has_no_coordinator_here() {
        assert_eq!(wanted(&request(Some("t"), -1, -1)), Wanted::Refused(ErrorCode::NotCoordinator));
        let answer = response(Err(ErrorCode::NotCoordinator));
        assert_eq!((answer.error_code, answer.producer_id, answer.producer_epoch), (16, -1, -1));
    }
}
