//! One thread that runs a producer, a consumer, or both: waits for sockets and for the schedule, looks at the schedule
//! between any two slices of work, opens and closes the measured part, tells progress, and ends a run that got no
//! answer for too long. Decides nothing about records.

use std::collections::VecDeque;

use anyhow::{Result, bail};

use crate::clock::{Clock, SECOND_NS, seconds};
use crate::consumer::{Consumer, Found};
use crate::measure::histogram::Times;
use crate::measure::window::{Watch, Window};
use crate::measure::{float, ratio};
use crate::poll::{Poller, Ready};
use crate::producer::Producer;
use crate::verify::Tally;
use crate::wire::Took;

/// When a run begins to be measured and ends.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Not measured at the beginning.
    pub warmup_ns: u64,
    /// End of a run of readers alone.
    pub until_ns: Option<u64>,
    /// Records of a run of readers alone.
    pub records: Option<u64>,
    /// How long before a due batch nobody sleeps.
    pub spin_ns: u64,
    /// Longest time without any answer.
    pub silence_ns: u64,
}

/// A run.
#[derive(Debug)]
pub struct Engine {
    clock: Clock,
    poller: Poller,
    limits: Limits,
    watch: Watch,
    /// The producing side.
    pub producer: Option<Producer>,
    /// The consuming side.
    pub consumer: Option<Consumer>,
    /// What was found of the run that is verified.
    pub tally: Option<Tally>,
    /// From the scheduled time until a record was read.
    pub end_to_end: Times,
    /// Sockets with more to read, to be looked at without waiting.
    again: VecDeque<Ready>,
    progress: Progress,
    started_at: u64,
    /// When something last was as it should be.
    alive_at: u64,
}

#[derive(Debug, Default)]
struct Progress {
    next_at: u64,
    records: u64,
    broker_cpu_seconds: Option<f64>,
}

impl Engine {
    /// A run that has not begun.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn new(clock: Clock, limits: Limits, watch: Watch) -> Result<Self> {
        Ok(Self {
            clock,
            poller: Poller::new()?,
            limits,
            watch,
            producer: None,
            consumer: None,
            tally: None,
            end_to_end: Times::new(),
            again: VecDeque::new(),
            progress: Progress::default(),
            started_at: 0,
            alive_at: 0,
        })
    }

    /// Runs to the end, and tells what the measured part used.
    ///
    /// # Errors
    /// Whatever ends a run early: a broken connection, an error of the broker, silence, a wrong record.
    pub fn run(mut self) -> Result<(Self, Window)> {
        let producers = self.register()?;
        let now = self.clock.now();
        (self.started_at, self.alive_at) = (now, now);
        self.progress.next_at = now + SECOND_NS;
        if let Some(producer) = &mut self.producer {
            producer.start(now);
        }
        self.begin_measuring(now);
        if let Some(consumer) = &mut self.consumer {
            consumer.start(now)?;
        }
        let mut ready = Vec::new();
        while !self.turn(&mut ready, producers)? {}
        let now = self.clock.now();
        self.begin_measuring(now);
        let watch = std::mem::replace(&mut self.watch, Watch::new(None, false)?);
        Ok((self, watch.end(now)))
    }

    /// Producers have the first tokens, consumers those behind: where they begin.
    fn register(&self) -> Result<u64> {
        let sockets = self.producer.iter().flat_map(Producer::sockets);
        let mut producers = 0;
        for (socket, token) in sockets.zip(0..) {
            self.poller.add(socket, token)?;
            producers = token + 1;
        }
        for (socket, token) in self.consumer.iter().flat_map(Consumer::sockets).zip(producers..) {
            self.poller.add(socket, token)?;
        }
        Ok(producers)
    }

    /// One turn; true when the run is over.
    fn turn(&mut self, ready: &mut Vec<Ready>, producers: u64) -> Result<bool> {
        self.advance()?;
        self.check_records()?;
        let now = self.clock.now();
        self.begin_measuring(now);
        self.tell(now);
        self.check_silence(now)?;
        if self.is_over(now) {
            return Ok(true);
        }
        ready.extend(self.again.drain(..));
        let timeout = if ready.is_empty() { self.sleep_ns(now) } else { 0 };
        self.poller.wait(timeout, ready)?;
        for event in ready.drain(..) {
            let took = match event.token.checked_sub(producers) {
                None => match &mut self.producer {
                    Some(producer) => {
                        producer.ready(usize::try_from(event.token)?, event.readable, event.hung_up)?
                    }
                    None => Took::Drained,
                },
                Some(index) => match &mut self.consumer {
                    Some(consumer) => {
                        consumer.ready(usize::try_from(index)?, event.readable, event.hung_up)?
                    }
                    None => Took::Drained,
                },
            };
            if took == Took::More {
                self.again.push_back(event);
            }
            self.advance()?;
        }
        Ok(false)
    }

    fn advance(&mut self) -> Result<()> {
        self.producer.as_mut().map_or(Ok(()), Producer::advance)
    }

    fn check_records(&mut self) -> Result<()> {
        let Self { producer, consumer, tally, end_to_end, .. } = self;
        let Some(consumer) = consumer.as_mut().filter(|consumer| consumer.has_work()) else { return Ok(()) };
        consumer.work(|found: Found| {
            let (Some(tally), Some(stamp)) = (tally.as_mut(), found.stamp) else { return Ok(()) };
            tally.see(stamp.run, found.partition, stamp.number, found.offset)?;
            if let Some(producer) =
                producer.as_mut().filter(|producer| producer.acknowledged.run == stamp.run)
                && let Some(begun) = producer.begun_at(found.partition, stamp.number)
                && producer.is_measured(begun)
            {
                end_to_end.record(found.at.saturating_sub(begun));
            }
            Ok(())
        })
    }

    fn begin_measuring(&mut self, now: u64) {
        let from = self.started_at.saturating_add(self.limits.warmup_ns);
        if self.watch.begun_at().is_some() {
            return;
        }
        if now >= self.started_at.saturating_add(self.limits.warmup_ns / 2) {
            self.watch.prepare();
        }
        if now < from {
            return;
        }
        self.watch.begin(now);
        if let Some(producer) = &mut self.producer {
            // The schedule decides what belongs to the measured part, not when this line is reached.
            producer.measure(if producer.is_open_loop() { from } else { now });
        }
        if let Some(consumer) = &mut self.consumer {
            consumer.measure();
        }
    }

    fn is_over(&self, now: u64) -> bool {
        match (&self.producer, &self.consumer) {
            (Some(producer), None) => producer.is_done(now),
            (Some(producer), Some(_)) => {
                let found = self.tally.as_ref().map_or(0, Tally::found);
                producer.is_done(now) && found >= producer.acknowledged.records()
            }
            (None, Some(consumer)) => {
                let until = self.limits.until_ns.map(|until| self.started_at.saturating_add(until));
                consumer.is_at_end()
                    || until.is_some_and(|until| now >= until)
                    || self.limits.records.is_some_and(|records| consumer.records >= records)
            }
            (None, None) => true,
        }
    }

    /// How long to wait for sockets.
    fn sleep_ns(&self, now: u64) -> u64 {
        if self.consumer.as_ref().is_some_and(Consumer::has_work) {
            return 0;
        }
        let mut wake = self.progress.next_at;
        if self.watch.begun_at().is_none() {
            wake = wake.min(self.started_at.saturating_add(self.limits.warmup_ns));
        }
        if let Some(due) = self.producer.as_ref().and_then(Producer::next_due) {
            wake = wake.min(due.saturating_sub(self.limits.spin_ns));
        }
        if let (None, Some(until)) = (&self.producer, self.limits.until_ns) {
            wake = wake.min(self.started_at.saturating_add(until));
        }
        wake.saturating_sub(now)
    }

    fn check_silence(&mut self, now: u64) -> Result<()> {
        let is_waiting = match (&self.producer, &self.consumer) {
            (Some(producer), Some(_)) if producer.is_done(now) => true,
            (Some(producer), _) => producer.unanswered() > 0,
            (None, _) => true,
        };
        let answered = self.producer.as_ref().map_or(0, |producer| producer.answered_at);
        // A consumer's empty answers do not count once all that is left is to read.
        let read = self.consumer.as_ref().map_or(0, |consumer| match &self.producer {
            Some(_) => consumer.read_at,
            None => consumer.answered_at,
        });
        self.alive_at = self.alive_at.max(answered).max(read);
        if !is_waiting {
            self.alive_at = now;
        }
        if now.saturating_sub(self.alive_at) <= self.limits.silence_ns {
            return Ok(());
        }
        if let (Some(tally), Some(producer)) = (&self.tally, &self.producer)
            && producer.is_done(now)
        {
            tally.finish(&producer.acknowledged)?;
        }
        bail!("no answer from the broker for {:.0} s", seconds(self.limits.silence_ns))
    }

    /// A line per second on standard error.
    fn tell(&mut self, now: u64) {
        if now < self.progress.next_at {
            return;
        }
        self.progress.next_at = now + SECOND_NS;
        let elapsed = seconds(now - self.started_at);
        let phase = if self.watch.begun_at().is_some() { "" } else { " (warm-up)" };
        let sent = self.producer.as_ref().map(|producer| producer.acknowledged.records());
        let read = self.consumer.as_ref().map(|consumer| consumer.records);
        let records = sent.or(read).unwrap_or(0);
        let rate = records.saturating_sub(std::mem::replace(&mut self.progress.records, records));
        let latency = match (&self.producer, self.end_to_end.count()) {
            (Some(producer), 0) => producer.latency.at(0.99),
            (Some(_), _) => self.end_to_end.at(0.99),
            (None, _) => self.consumer.as_ref().map_or(0, |consumer| consumer.fetch.at(0.99)),
        };
        let unanswered = self.producer.as_ref().map_or(0, Producer::unanswered);
        let cpu = self.watch.broker_cpu_seconds();
        let before = std::mem::replace(&mut self.progress.broker_cpu_seconds, cpu);
        let broker = cpu.zip(before).map(|(cpu, before)| format!(", broker {:.2} cores", cpu - before));
        eprintln!(
            "{elapsed:6.1} s{phase}: {rate} records/s, p99 {:.3} ms, {unanswered} unanswered{}",
            ratio(float(latency), 1e6),
            broker.unwrap_or_default()
        );
    }
}
