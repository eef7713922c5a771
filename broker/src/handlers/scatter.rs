//! One request over several owners: its parts go out grouped, and what comes back stands in the order of the request.
//! For what is asked once and answered once; Produce and Fetch have ways of their own.

use futures_util::future::join_all;
use protocol::error::ErrorCode;
use protocol::types::MonoTime;

use super::dispatch::Wiring;
use super::errors::ToErrorCode;
use crate::partition::ask::{PartitionAnswer, PartitionAsk};
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime};

/// Asks each owner for its parts, and gives the outcome of each part, in order. Parts that were refused before stay so.
///
/// `ask` makes the question from an owner's parts; `results` takes the answer apart, one result per part, or says that
/// it is not the answer to the question.
pub(super) async fn scatter<R: ShardRuntime, P, T, E: ToErrorCode>(
    wiring: &Wiring<R>,
    parts: Vec<Result<(ShardId, P), ErrorCode>>,
    by: MonoTime,
    ask: impl Fn(Vec<P>) -> PartitionAsk,
    results: impl Fn(PartitionAnswer) -> Option<Vec<Result<T, E>>>,
) -> Vec<Result<T, ErrorCode>> {
    let mut pace = Pace::new(&wiring.runtime);
    let mut outcomes = Vec::with_capacity(parts.len());
    let mut groups: Vec<(ShardId, Vec<usize>, Vec<P>)> = Vec::new();
    for (place, part) in parts.into_iter().enumerate() {
        pace.step().await;
        let (owner, part) = match part {
            Ok(part) => part,
            Err(code) => {
                outcomes.push(Err(code));
                continue;
            }
        };
        outcomes.push(Err(ErrorCode::NotLeaderOrFollower));
        match groups.iter_mut().find(|(to, ..)| *to == owner) {
            Some((_, places, parts)) => {
                places.push(place);
                parts.push(part);
            }
            None => groups.push((owner, vec![place], vec![part])),
        }
    }
    let asked = groups.into_iter().map(|(owner, places, parts)| {
        let ask = ask(parts);
        async move { (places, wiring.partitions.ask(owner, by, ask).await) }
    });
    for (places, answer) in join_all(asked).await {
        let (mut answered, failure) = match answer {
            Ok(answer) => (results(answer).unwrap_or_default().into_iter(), ErrorCode::NotLeaderOrFollower),
            Err(error) => (Vec::new().into_iter(), error.error_code()),
        };
        for place in places {
            pace.step().await;
            let outcome = answered.next().map_or(Err(failure), |result| result.map_err(|e| e.error_code()));
            if let Some(slot) = outcomes.get_mut(place) {
                *slot = outcome;
            }
        }
    }
    outcomes
}
