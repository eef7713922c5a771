//! One fetch over the owners of its partitions (replication.md 12.4): each gives its share, or waits; what might break a
//! limit of the whole is probed, granted and read instead; what was read by then is kept where it fits. The answer is the
//! same whatever the number of owners (V-78). Knows no wire format and no session.

use std::rc::Rc;

use futures_util::future::join_all;
use protocol::types::MonoTime;

use super::Waiting;
use super::kept::{Kept, MustWeigh};
use super::waits::{OpenWait, Waits};
use crate::partition::ask::{
    FetchAsk, FetchPart, FetchStep, Fetched, Isolation, PartitionAnswer, PartitionAsk, PartitionError,
    ProbedPart, ReadPart, Reader, bytes_of, calls_for_an_answer, may_exceed, sum,
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
pub(super) type Group = (ShardId, Vec<usize>);

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
            Err(MustWeigh { wait_until, kept }) => {
                self.weighed(parts, groups, Limits { wait_until, ..limits }, kept).await
            }
        }
    }

    /// Each owner gives its share as soon as one has enough. All have an equal part of the limit, so that together they
    /// keep it; after a wait only who has news is asked again.
    async fn shared(&self, parts: &[Part], groups: &[Group], limits: Limits) -> Result<Outcomes, MustWeigh> {
        let max_bytes = limits.max_bytes / u32::try_from(groups.len()).unwrap_or(u32::MAX).max(1);
        // With enough here nobody need be armed.
        let mut here = limits.wait_until.and_then(|_| self.arrive_here(parts, groups));
        let enough_here = here.as_ref().is_some_and(|found| calls_for_an_answer(found, limits.min_bytes));
        let wait_until = limits.wait_until.filter(|_| !enough_here);
        let mut wait = wait_until.map(|until| self.waits.open(limits.min_bytes, until));
        let asks = groups.iter().map(|(owner, places)| {
            let wait = wait.as_mut().map(|wait| wait.at(self.runtime, *owner, self.owners));
            let found = if *owner == self.runtime.shard() { here.take() } else { None };
            let step = FetchStep::Share { max_bytes, wait, again: false };
            self.ask_with(*owner, pick(parts, places), step, found)
        });
        // All of them begin in this turn: what was found here still holds.
        let mut shares = join_all(asks).await;
        // A first batch that exceeds its part's limit counts whole, as in Kafka, which counts what it has read.
        if shares.iter().flatten().any(|share| matches!(share, Fetched::Armed(armed) if armed.may_exceed)) {
            return Err(MustWeigh::after(groups, shares, wait_until));
        }
        if is_too_much(&shares) {
            return Err(MustWeigh::after(groups, shares, None));
        }
        let again = self.waited(groups, &shares, wait).await;
        let step = FetchStep::Share { max_bytes, wait: None, again: true };
        let asked = groups.iter().zip(&again).filter(|(_, again)| **again);
        let asks = asked.map(|((owner, places), _)| self.ask(*owner, pick(parts, places), step));
        let mut news = join_all(asks).await.into_iter();
        for (share, _) in shares.iter_mut().zip(&again).filter(|(_, again)| **again) {
            *share = news.next().flatten();
        }
        if is_too_much(&shares) || is_held_back(groups, &shares) {
            return Err(MustWeigh::after(groups, shares, None));
        }
        let mut outcomes = Vec::with_capacity(parts.len());
        for ((_, places), share) in groups.iter().zip(shares) {
            match share {
                Some(Fetched::Armed(armed)) => place(&mut outcomes, places, Some(Fetched::Read(armed.empty))),
                share => place(&mut outcomes, places, share),
            }
        }
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        Ok(outcomes)
    }

    /// Notes the fetch at the parts of this shard; what these could give.
    fn arrive_here(&self, parts: &[Part], groups: &[Group]) -> Option<Vec<ProbedPart>> {
        let (_, places) = groups.iter().find(|(owner, _)| *owner == self.runtime.shard())?;
        Some(self.owners.local().arrive((self.isolation, self.reader), &pick(parts, places)))
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
    async fn weighed(&self, parts: &[Part], groups: &[Group], limits: Limits, kept: Kept) -> Outcomes {
        let mut wait = limits.wait_until.map(|until| self.waits.open(limits.min_bytes, until));
        let mut probed = self.probe(parts, groups, wait.as_mut(), &kept).await;
        if let Some(open) = &mut wait
            && !calls_for_an_answer(&probed, limits.min_bytes)
        {
            let mut parts = parts.to_vec();
            // A first batch that exceeds its part's limit counts whole, as in Kafka, which counts what it has read.
            if may_exceed(parts.iter().map(|part| &part.part), &probed) {
                let read = self.read(&parts, &probed, limits.max_bytes, kept).await;
                if bytes_of(&read) >= limits.min_bytes {
                    return read;
                }
                // More may have come when the wait is over: these are read again.
                for (place, read) in read {
                    if let (Some(part), Ok(data)) = (parts.get_mut(place), read) {
                        part.part.discarded = data.bytes;
                    }
                }
            }
            self.park(open).await;
            // That it is over rides along with what all owners are asked now: quiet ones are not asked to read.
            drop(wait);
            probed = self.probe(&parts, groups, None, &Kept::default()).await;
            return self.read(&parts, &probed, limits.max_bytes, Kept::default()).await;
        }
        drop(wait);
        self.read(parts, &probed, limits.max_bytes, kept).await
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
        kept: &Kept,
    ) -> Vec<ProbedPart> {
        let (known, groups): (Vec<_>, Vec<_>) =
            groups.iter().partition(|(owner, _)| kept.owners.contains(owner));
        let mut asks = Vec::with_capacity(groups.len());
        for (owner, places) in &groups {
            let armed = wait.as_mut().map(|wait| wait.at(self.runtime, *owner, self.owners));
            asks.push(self.ask(*owner, pick(parts, places), FetchStep::Probe { wait: armed }));
        }
        let answers = join_all(asks).await;
        // Who cannot be asked is an error that the read will tell.
        let mut probed = vec![ProbedPart::AT_ONCE; parts.len()];
        for place in known.into_iter().flat_map(|(_, places)| places) {
            if let (Some(slot), Some(part)) = (probed.get_mut(*place), parts.get(*place)) {
                *slot = kept.probed(*place, &part.part);
            }
        }
        for ((owner, places), answer) in groups.iter().zip(answers) {
            let Some(Fetched::Probed(here)) = answer else { continue };
            if let Some(wait) = &wait {
                wait.probed(*owner, sum(&here));
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
    async fn read(&self, parts: &[Part], probed: &[ProbedPart], max_bytes: u32, mut kept: Kept) -> Outcomes {
        let moved = || (0..).zip(parts).zip(probed).filter(|(_, probed)| !probed.quiet);
        let places: Vec<usize> = moved().map(|((place, _), _)| place).collect();
        let probed: Vec<_> = moved().map(|(_, probed)| *probed).collect();
        let mut parts: Vec<_> = moved().map(|((_, part), _)| *part).collect();
        let reads = places.iter().enumerate().filter_map(|(at, place)| Some((at, kept.reads.remove(place)?)));
        kept.reads = reads.collect();
        for (at, part) in parts.iter_mut().enumerate() {
            part.part.discarded = part.part.discarded.max(kept.discarded(at));
        }
        let mut outcomes = self.read_moved(&parts, &probed, max_bytes, kept).await;
        for (at, _) in &mut outcomes {
            *at = places.get(*at).copied().unwrap_or(*at);
        }
        outcomes.sort_unstable_by_key(|(place, _)| *place);
        outcomes
    }

    /// The same for those that are not quiet.
    async fn read_moved(
        &self,
        parts: &[Part],
        probed: &[ProbedPart],
        max_bytes: u32,
        mut kept: Kept,
    ) -> Outcomes {
        let mut outcomes = Vec::with_capacity(parts.len());
        let first = probed.iter().position(|part| part.has_data);
        // A first batch that exceeds its part's limit counts against the others: its size must be known before.
        let may_exceed = may_exceed(parts.iter().map(|part| &part.part), probed);
        let (mut left, mut first_batch_whole) = (max_bytes, true);
        let mut wanted = sum(probed);
        let mut from = 0;
        while from < parts.len() {
            let bounded = !(first_batch_whole && may_exceed);
            if bounded && (left == 0 || wanted <= u64::from(left)) {
                let first = first.filter(|_| first_batch_whole);
                // What came since is for the next fetch: it might not fit.
                let parts: Vec<_> =
                    parts.iter().zip(probed).map(|(part, probed)| up_to(part, probed)).collect();
                self.read_at_once(&parts, from, (left, first), kept, &mut outcomes).await;
                return outcomes;
            }
            let (answer, places) = if kept.fits(from, (left, first_batch_whole)) {
                (kept.reads.remove(&from).map(|read| Fetched::Read(vec![(0, read)])), vec![from])
            } else {
                let (owner, places) = run(parts, from, |place| kept.fits(place, (left, first_batch_whole)));
                let step = FetchStep::Read { max_bytes: left, first_batch_whole };
                (self.ask(owner, pick(parts, &places), step).await, places)
            };
            let next = from.saturating_add(places.len());
            wanted = wanted.saturating_sub(sum(probed.get(from..next).unwrap_or_default()));
            if let Some(Fetched::Read(here)) = &answer {
                let bytes = bytes_of(here);
                left = left.saturating_sub(u32::try_from(bytes).unwrap_or(u32::MAX));
                first_batch_whole &= bytes == 0;
            }
            place(&mut outcomes, &places, answer);
            from = next;
        }
        outcomes
    }

    /// Reads the parts from `from` on at all owners side by side, but for those whose read is kept; the owner of `first`
    /// may exceed by one batch.
    async fn read_at_once(
        &self,
        parts: &[Part],
        from: usize,
        (max_bytes, first): (u32, Option<usize>),
        mut kept: Kept,
        outcomes: &mut Outcomes,
    ) {
        let mut groups: Vec<Group> = Vec::new();
        for (place, part) in parts.iter().enumerate().skip(from) {
            if kept.fits(place, (max_bytes, first.is_some())) {
                outcomes.extend(kept.reads.remove(&place).map(|read| (place, read)));
            } else {
                add(&mut groups, part.owner, place);
            }
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
        self.ask_with(owner, parts, step, None).await
    }

    /// The same, with what was found when the fetch arrived if that is this shard.
    async fn ask_with(
        &self,
        owner: ShardId,
        parts: Vec<FetchPart>,
        step: FetchStep,
        found: Option<Vec<ProbedPart>>,
    ) -> Option<Fetched> {
        let disarm = self.waits.take_over(owner);
        let ask = FetchAsk { isolation: self.isolation, reader: self.reader, parts, step, disarm };
        if owner == self.runtime.shard() {
            return Some(self.owners.local().fetch(owner, ask, found).await);
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

/// Whether an owner has more than its share.
fn is_too_much(shares: &[Option<Fetched>]) -> bool {
    shares.iter().flatten().any(|share| matches!(share, Fetched::TooMuch))
}

/// Whether the first part with data was given none: its first batch exceeds its limit, and is to be given whole.
fn is_held_back(groups: &[Group], shares: &[Option<Fetched>]) -> bool {
    let data = groups.iter().zip(shares).flat_map(|((_, places), share)| {
        let read = if let Some(Fetched::Read(read)) = share { read.as_slice() } else { &[] };
        read.iter().filter_map(move |(at, outcome)| Some((places.get(*at)?, outcome.as_ref().ok()?)))
    });
    let with_data = data.filter(|(_, data)| data.bytes > 0 || data.held_back);
    with_data.min_by_key(|(place, _)| **place).is_some_and(|(_, data)| data.held_back)
}

fn fetch_parts(parts: &[Part]) -> Vec<FetchPart> {
    parts.iter().map(|part| part.part).collect()
}

/// Parts by owner, owners in the order of their first part.
fn group(parts: &[Part]) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    for (place, part) in parts.iter().enumerate() {
        add(&mut groups, part.owner, place);
    }
    groups
}

fn add(groups: &mut Vec<Group>, part_of: ShardId, place: usize) {
    match groups.iter_mut().find(|(owner, _)| *owner == part_of) {
        Some((_, places)) => places.push(place),
        None => groups.push((part_of, vec![place])),
    }
}

/// A part and its neighbours with the same owner, up to one that need not be asked.
fn run(parts: &[Part], from: usize, is_known: impl Fn(usize) -> bool) -> Group {
    let owner = parts.get(from).map_or(ShardId::CONTROL, |part| part.owner);
    let behind = parts.iter().enumerate().skip(from.saturating_add(1));
    let neighbours = behind.take_while(|(place, part)| part.owner == owner && !is_known(*place));
    (owner, std::iter::once(from).chain(neighbours.map(|(place, _)| place)).collect())
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
