//! One request over several owners: its parts go out grouped, and what comes back stands in the order of the request.
//! For what is asked once and answered once; Produce and Fetch have ways of their own.

use std::future::Future;
use std::pin::pin;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream;
use protocol::error::ErrorCode;
use protocol::types::MonoTime;
use storage::io::Runtime;

use super::dispatch::Wiring;
use super::errors::ToErrorCode;
use crate::partition::ask::{PartitionAnswer, PartitionAsk};
use crate::shard::pace::Pace;
use crate::shard::{ShardId, ShardRuntime};

/// Groups that one request waits for at a time.
const GROUPS_AT_A_TIME: usize = 16;

/// Asks for many groups, some at a time, and gives what they answer, in order. Where one is slow the others go on: as soon
/// as one has answered, the next is asked. (`buffered` would keep an answer, and its place, until those before it are
/// there.) The shard has its turns in between: where the coordinators are here, no ask waits for anything, and a request
/// may name hundreds of thousands.
pub(super) async fn ask_all<R: Runtime, F: Future>(
    asks: impl Iterator<Item = F>,
    pace: &mut Pace<'_, R>,
) -> Vec<F::Output> {
    let mut answers: Vec<Option<F::Output>> = Vec::with_capacity(asks.size_hint().0);
    let asks = asks.enumerate().map(|(place, ask)| async move { (place, ask.await) });
    let mut asked = pin!(stream::iter(asks).buffer_unordered(GROUPS_AT_A_TIME));
    while let Some((place, answer)) = pace.wait_for(asked.next()).await {
        if place >= answers.len() {
            answers.resize_with(place + 1, || None);
        }
        if let Some(slot) = answers.get_mut(place) {
            *slot = Some(answer);
        }
        pace.look().await;
    }
    let mut all = Vec::with_capacity(answers.len());
    for answer in answers {
        all.extend(answer);
        pace.step().await;
    }
    all
}

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

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::task::{Context, Poll, Waker};

    use futures_channel::oneshot;
    use storage::io::sim::SimRuntime;

    use super::*;
    use crate::shard::pace::turns_of;

    #[test]
    fn asks_that_are_answered_at_once_let_the_shard_have_its_turns() {
        let runtime = &SimRuntime::new(1);
        let mut pace = Pace::new(runtime);
        // Each takes a millisecond, and waits for nothing.
        let asks = (0..160).map(|number| async move {
            runtime.advance_ms(1);
            number
        });
        let (all, turns) = turns_of(runtime, ask_all(asks, &mut pace));
        assert_eq!((all, turns), ((0..160).collect::<Vec<_>>(), 159), "the first look only sees the time");
    }

    #[test]
    fn one_slow_coordinator_holds_one_place_and_its_answer_stands_where_it_was_asked() {
        let runtime = &SimRuntime::new(1);
        let mut pace = Pace::new(runtime);
        let (answer, slow) = oneshot::channel();
        let (begun, mut slow) = (Cell::new(0), Some(slow));
        let asks = (0..160).map(|number| {
            let (begun, waits_for) = (&begun, slow.take_if(|_| number == 3));
            async move {
                begun.set(begun.get() + 1);
                match waits_for {
                    Some(answer) => answer.await.unwrap(),
                    None => number,
                }
            }
        });
        let mut asking = pin!(ask_all(asks, &mut pace));
        let mut context = Context::from_waker(Waker::noop());
        assert!(asking.as_mut().poll(&mut context).is_pending());
        assert_eq!(begun.get(), 160, "all others were asked meanwhile");
        answer.send(1_000).unwrap();
        let Poll::Ready(all) = asking.as_mut().poll(&mut context) else { panic!("all have answered") };
        assert_eq!(all, (0..160).map(|number| if number == 3 { 1_000 } else { number }).collect::<Vec<_>>());
    }

    #[test]
    fn no_more_are_asked_than_have_a_place() {
        let runtime = &SimRuntime::new(1);
        let mut pace = Pace::new(runtime);
        let begun = Cell::new(0);
        let asks = (0..160).map(|_| async {
            begun.set(begun.get() + 1);
            std::future::pending::<()>().await;
        });
        let mut asking = pin!(ask_all(asks, &mut pace));
        assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        assert_eq!(begun.get(), GROUPS_AT_A_TIME);
    }
}
