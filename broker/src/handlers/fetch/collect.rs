//! One fetch over the owners of its partitions (replication.md 12.4): each gives its share, or waits; what might break a
//! limit of the whole is probed, granted and read instead. The answer is the same whatever the number of owners (V-78).
//! Knows no wire format and no session.

use std::rc::Rc;

use futures_util::future::join_all;
use protocol::types::MonoTime;

use super::Waiting;
use super::waits::{OpenWait, Waits};
use crate::partition::ask::{
    FetchAsk, FetchPart, FetchStep, Fetched, Isolation, PartitionAnswer, PartitionAsk, PartitionError,
    ProbedPart, ReadPart, Reader, bytes_of, may_exceed,
};
use crate::partition::service::PartitionService;
use crate::shard::{ShardId, ShardRuntime, Shards};

/// Room at an owner is waited for so long; the client then tries again.
const ASK_MS_MAX: i64 = 10_000;

/// One partition of a fetch and where it is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    pub(super) owner: ShardId,
    pub(super) part: FetchPart,
}

/// Limits of a whole fetch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_bytes: u32,
    pub(super) min_bytes: u64,
    /// When waiting ends; `None` does not wait.
    pub(super) wait_until: Option<MonoTime>,
}

/// What parts gave, in their order; quiet ones are left out.
pub(super) type Outcomes = Vec<ReadPart>;

/// Asks owners on behalf of one fetch.
pub(super) struct Collector<'a, R: ShardRuntime> {
    pub(super) runtime: &'a R,
    pub(super) owners: &'a Shards<R, PartitionService<R>>,
    pub(super) waits: &'a Rc<Waits<R>>,
    pub(super) isolation: Isolation,
    pub(super) reader: Reader,
    pub(super) waiting: Waiting<'a>,
}

/// Parts of one owner: their places in the fetch.
type Group = (ShardId, Vec<usize>);

/// The shares of a fetch might break a limit of the whole: it must be weighed, and may wait until then.
struct MustWeigh(Option<MonoTime>);

impl<R: ShardRuntime> Collector<'_, R> {
    /// Data or errors of the parts, in order. Dropping the future ends its waits.
    pub(super) async fn collect(&self, parts: &[Part], limits: Limits) -> Outcomes {
        let mut groups = group(parts);
        // The others are at work while this shard reads its own.
        groups.sort_by_key(|(owner, _)| *owner == self.runtime.shard());
        match groups.as_slice() {
            [] => Vec::new(),
            [(owner, _)] => self.whole(*owner, parts, limits).await,
            _ => self.scattered(parts, &groups, limits).await,
        }
    }

    /// One owner has everything: it decides.
    async fn whole(&self, owner: ShardId, parts: &[Part], limits: Limits) -> Outcomes {
        let all = || fetch_parts(parts);
        let Limits { max_bytes, min_bytes, wait_until } = limits;
        let mut wait = wait_until.map(|until| self.waits.open(min_bytes, until));
        let armed = wait.as_mut().map(|wait| wait.at(self.runtime, owner, self.owners));
        let fetched = self.ask(owner, all(), FetchStep::Whole { max_bytes, wait: armed }).await;
        if !matches!(fetched, Some(Fetched::Waiting)) {
            return read_outcomes(fetched, parts.len());
        }
        if let Some(wait) = &mut wait {
            self.park(wait).await;
        }
        drop(wait);
        let fetched = self.ask(owner, all(), FetchStep::Read { max_bytes, first_batch_whole: true }).await;
        read_outcomes(fetched, parts.len())
    }

    /// Several owners have parts: mostly each can be asked once.
    async fn scattered(&self, parts: &[Part], groups: &[Group], limits: Limits) -> Outcomes {
        match self.shared(parts, groups, limits).await {
            Ok(outcomes) => outcomes,
            Err(MustWeigh(wait_until)) => self.weighed(parts, groups, Limits { wait_until, ..limits }).await,
        }
    }

    /// Each owner gives its share as soon as one has enough. All have an equal part of the limit, so that together they
    /// keep it; after a wait only who has news is asked again.
    async fn shared(&self, parts: &[Part], groups: &[Group], limits: Limits) -> Result<Outcomes, MustWeigh> {
        let max_bytes = limits.max_bytes / u32::try_from(groups.len()).unwrap_or(u32::MAX).max(1);
        // With enough here nobody need be armed.
        let wait_until = limits.wait_until.filter(|_| !self.has_enough_here(parts, groups, limits.min_bytes));
        let mut wait = wait_until.map(|until| self.waits.open(limits.min_bytes, until));
        let asks = groups.iter().map(|(owner, places)| {
            let wait = wait.as_mut().map(|wait| wait.at(self.runtime, *owner, self.owners));
            self.ask(*owner, pick(parts, places), FetchStep::Share { max_bytes, wait, again: false })
        });
        let shares = join_all(asks).await;
        // A first batch that exceeds its part's limit counts whole, as in Kafka, which counts what it has read.
        if shares.iter().flatten().any(|share| matches!(share, Fetched::Armed(armed) if armed.may_exceed)) {
            return Err(MustWeigh(wait_until));
        }
        if shares.iter().flatten().any(|share| matches!(share, Fetched::TooMuch)) {
            return Err(MustWeigh(None));
        }
        let again = self.waited(groups, &shares, wait).await;
        let step = FetchStep::Share { max_bytes, wait: None, again: true };
        let asked = groups.iter().zip(&again).filter(|(_, again)| **again);
        let asks = asked.map(|((owner, places), _)| self.ask(*owner, pick(parts, places), step));
        let mut news = join_all(asks).await.into_iter();
        let mut outcomes = Vec::with_capacity(parts.len());
        for (((_, places), share), again) in groups.iter().zip(shares).zip(again) {
            match if again { news.next().flatten() } else { share } {
                Some(Fetched::TooMuch) => return Err(MustWeigh(None)),
                Some(Fetched::Armed(armed)) => place(&mut outcomes, places, Some(Fetched::Read(armed.empty))),
                share => place(&mut outcomes, places, share),
            }
        }
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        let first = outcomes.iter().filter_map(|(_, outcome)| outcome.as_ref().ok());
        let mut first = first.filter(|data| data.bytes > 0 || data.held_back);
        if first.next().is_some_and(|data| data.held_back) { Err(MustWeigh(None)) } else { Ok(outcomes) }
    }

    /// Whether the parts of this shard alone call for an answer.
    fn has_enough_here(&self, parts: &[Part], groups: &[Group], min_bytes: u64) -> bool {
        let here = groups.iter().find(|(owner, _)| *owner == self.runtime.shard());
        here.is_some_and(|(_, places)| {
            self.owners.local().has_enough((self.isolation, self.reader), &pick(parts, places), min_bytes)
        })
    }

    /// Waits if all owners do, and ends the wait. Which of them must be asked again: who has data, or had none when it was
    /// asked and has told of something since. Without any news it is all.
    async fn waited(
        &self,
        groups: &[Group],
        shares: &[Option<Fetched>],
        wait: Option<OpenWait<R>>,
    ) -> Vec<bool> {
        let Some(mut wait) = wait else { return vec![false; groups.len()] };
        let all_wait = shares.iter().all(|share| matches!(share, Some(Fetched::Armed(_))));
        if all_wait {
            for ((owner, _), share) in groups.iter().zip(shares) {
                if let Some(Fetched::Armed(armed)) = share {
                    wait.probed(*owner, armed.bytes);
                }
            }
            self.park(&mut wait).await;
        }
        let has_news: Vec<_> = groups.iter().map(|(owner, _)| wait.has_news(*owner)).collect();
        let nothing_new = all_wait && !has_news.contains(&true);
        // A follower's high watermark moves without bytes that would be news to it.
        let is_follower = matches!(self.reader, Reader::Replica { .. });
        let again = |(share, has_news): (&Option<Fetched>, bool)| match share {
            // What is still being loaded may be there by now.
            Some(Fetched::Armed(armed)) => {
                let is_loading = armed.empty.iter().any(|(_, outcome)| outcome.is_err());
                nothing_new || is_follower || has_news || armed.bytes > 0 || is_loading
            }
            _ => false,
        };
        shares.iter().zip(has_news).map(again).collect()
    }

    /// The sum decides here, and then the limits are granted in the order of the parts.
    async fn weighed(&self, parts: &[Part], groups: &[Group], limits: Limits) -> Outcomes {
        let mut wait = limits.wait_until.map(|until| self.waits.open(limits.min_bytes, until));
        let mut probed = self.probe(parts, groups, wait.as_mut()).await;
        let bytes: u64 = probed.iter().map(|part| part.bytes).sum();
        let immediate = probed.iter().any(|part| part.immediate);
        if let Some(open) = &mut wait
            && !immediate
            && bytes < limits.min_bytes
        {
            // A first batch that exceeds its part's limit counts whole, as in Kafka, which counts what it has read.
            if may_exceed(parts.iter().map(|part| &part.part), &probed) {
                let read = self.read(parts, &probed, limits.max_bytes).await;
                if bytes_of(&read) >= limits.min_bytes {
                    return read;
                }
            }
            self.park(open).await;
            // That it is over rides along with what all owners are asked now: quiet ones are not asked to read.
            wait = None;
            probed = self.probe(parts, groups, None).await;
        }
        drop(wait);
        self.read(parts, &probed, limits.max_bytes).await
    }

    async fn park(&self, wait: &mut OpenWait<R>) {
        let began = self.runtime.now();
        wait.enough(self.runtime, self.waiting.patience).await;
        let parked = self.runtime.now().nanos_since(began);
        let parked_nanos = self.waiting.parked_nanos;
        parked_nanos.set(parked_nanos.get().saturating_add(parked));
    }

    /// What each part could give; arms the wait where nothing calls for an answer at once.
    async fn probe(
        &self,
        parts: &[Part],
        groups: &[Group],
        mut wait: Option<&mut OpenWait<R>>,
    ) -> Vec<ProbedPart> {
        let mut asks = Vec::with_capacity(groups.len());
        for (owner, places) in groups {
            let armed = wait.as_mut().map(|wait| wait.at(self.runtime, *owner, self.owners));
            asks.push(self.ask(*owner, pick(parts, places), FetchStep::Probe { wait: armed }));
        }
        let answers = join_all(asks).await;
        // Who cannot be asked is an error that the read will tell.
        let mut probed = vec![ProbedPart::AT_ONCE; parts.len()];
        for ((owner, places), answer) in groups.iter().zip(answers) {
            let Some(Fetched::Probed(here)) = answer else { continue };
            if let Some(wait) = &wait {
                wait.probed(*owner, here.iter().map(|part| part.bytes).sum());
            }
            for (place, part) in places.iter().zip(here) {
                if let Some(slot) = probed.get_mut(*place) {
                    *slot = part;
                }
            }
        }
        probed
    }

    /// Reads in the order of the parts, as one owner would: the first with data may exceed the limits by one batch. One
    /// run of parts of one owner after the other, until what was seen of the rest fits, or nothing does: then all at once.
    async fn read(&self, parts: &[Part], probed: &[ProbedPart], max_bytes: u32) -> Outcomes {
        let moved = || (0..).zip(parts).zip(probed).filter(|(_, probed)| !probed.quiet);
        let places: Vec<usize> = moved().map(|((place, _), _)| place).collect();
        let probed: Vec<_> = moved().map(|(_, probed)| *probed).collect();
        let parts: Vec<_> = moved().map(|((_, part), _)| *part).collect();
        let mut outcomes = self.read_moved(&parts, &probed, max_bytes).await;
        for (at, _) in &mut outcomes {
            *at = places.get(*at).copied().unwrap_or(*at);
        }
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        outcomes
    }

    /// The same for those that are not quiet.
    async fn read_moved(&self, parts: &[Part], probed: &[ProbedPart], max_bytes: u32) -> Outcomes {
        let mut outcomes = Vec::with_capacity(parts.len());
        let first = probed.iter().position(|part| part.has_data);
        // A first batch that exceeds its part's limit counts against the others: its size must be known before.
        let may_exceed = may_exceed(parts.iter().map(|part| &part.part), probed);
        let (mut left, mut first_batch_whole) = (max_bytes, true);
        let seen = |probed: &[ProbedPart]| probed.iter().map(|part| part.bytes).sum::<u64>();
        let mut wanted = seen(probed);
        for (owner, places) in runs(parts) {
            let from = places.first().copied().unwrap_or(0);
            let bounded = !(first_batch_whole && may_exceed);
            if bounded && (left == 0 || wanted <= u64::from(left)) {
                let first = first.filter(|_| first_batch_whole);
                // What came since is for the next fetch: it might not fit.
                let parts: Vec<_> =
                    parts.iter().zip(probed).map(|(part, probed)| up_to(part, probed)).collect();
                self.read_at_once(&parts, from, (left, first), &mut outcomes).await;
                return outcomes;
            }
            let here = probed.get(from..from.saturating_add(places.len())).unwrap_or_default();
            wanted = wanted.saturating_sub(seen(here));
            let step = FetchStep::Read { max_bytes: left, first_batch_whole };
            let answer = self.ask(owner, pick(parts, &places), step).await;
            if let Some(Fetched::Read(here)) = &answer {
                let bytes = bytes_of(here);
                left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
                first_batch_whole &= bytes == 0;
            }
            place(&mut outcomes, &places, answer);
        }
        outcomes
    }

    /// Reads the parts from `from` on at all owners side by side; the owner of `first` may exceed by one batch.
    async fn read_at_once(
        &self,
        parts: &[Part],
        from: usize,
        (max_bytes, first): (u32, Option<usize>),
        outcomes: &mut Outcomes,
    ) {
        let mut groups = group(parts.get(from..).unwrap_or_default());
        for place in groups.iter_mut().flat_map(|(_, places)| places) {
            *place += from;
        }
        let asks = groups.iter().map(|(owner, places)| {
            let first_batch_whole = first.is_some_and(|first| places.contains(&first));
            self.ask(*owner, pick(parts, places), FetchStep::Read { max_bytes, first_batch_whole })
        });
        for ((_, places), answer) in groups.iter().zip(join_all(asks).await) {
            place(outcomes, places, answer);
        }
    }

    /// Asks one owner; `None` when it cannot be asked. The owner on this shard is called, not sent to.
    async fn ask(&self, owner: ShardId, parts: Vec<FetchPart>, step: FetchStep) -> Option<Fetched> {
        let disarm = self.waits.take_over(owner);
        let ask = FetchAsk { isolation: self.isolation, reader: self.reader, parts, step, disarm };
        if owner == self.runtime.shard() {
            return Some(self.owners.local().fetch(owner, ask).await);
        }
        let by = self.runtime.now().plus_ms(ASK_MS_MAX);
        match self.owners.ask(owner, by, PartitionAsk::Fetch(ask)).await {
            Ok(PartitionAnswer::Fetched(fetched)) => Some(fetched),
            Ok(_) | Err(_) => None,
        }
    }
}

/// A part that gives no more than was seen of it.
fn up_to(part: &Part, probed: &ProbedPart) -> Part {
    let max_bytes = part.part.max_bytes.min(u32::try_from(probed.bytes).unwrap_or(u32::MAX));
    Part { part: FetchPart { max_bytes, ..part.part }, ..*part }
}

fn fetch_parts(parts: &[Part]) -> Vec<FetchPart> {
    parts.iter().map(|part| part.part).collect()
}

/// Parts by owner, owners in the order of their first part.
fn group(parts: &[Part]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        match groups.iter_mut().find(|(owner, _)| *owner == part.owner) {
            Some((_, places)) => places.push(place),
            None => groups.push((part.owner, vec![place])),
        }
    }
    groups
}

/// Runs of neighbouring parts with one owner.
fn runs(parts: &[Part]) -> Vec<Group> {
    let mut runs: Vec<Group> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        match runs.last_mut().filter(|(owner, _)| *owner == part.owner) {
            Some((_, places)) => places.push(place),
            None => runs.push((part.owner, vec![place])),
        }
    }
    runs
}

fn pick(parts: &[Part], places: &[usize]) -> Vec<FetchPart> {
    places.iter().filter_map(|place| parts.get(*place)).map(|part| part.part).collect()
}

fn place(outcomes: &mut Outcomes, places: &[usize], answer: Option<Fetched>) {
    let here = read_outcomes(answer, places.len()).into_iter();
    outcomes.extend(here.filter_map(|(at, outcome)| Some((*places.get(at)?, outcome))));
}

/// The outcomes of a read; an owner that could not be asked has none of its partitions.
fn read_outcomes(fetched: Option<Fetched>, parts: usize) -> Outcomes {
    match fetched {
        Some(Fetched::Read(outcomes)) => outcomes,
        _ => (0..parts).map(|place| (place, Err(PartitionError::NotHere))).collect(),
    }
}
