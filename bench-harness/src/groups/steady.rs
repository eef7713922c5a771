//! One thread that sends requests on a schedule, or as fast as answers make room, each for a subject that has its
//! connection: opens and closes the measured part, tells progress, and ends a run that got no answer for too long. What is
//! asked and what is a right answer is `load`'s.

use std::collections::VecDeque;

use anyhow::{Context, Result, bail, ensure};

use super::lines::{Answer, Lines};
use super::pace::Pace;
use crate::clock::{Clock, SECOND_NS, seconds};
use crate::measure::histogram::Times;
use crate::measure::window::{Watch, Window};
use crate::measure::{float, ratio};

/// What is asked.
pub trait Asking {
    /// Subjects; requests go round them.
    fn subjects(&self) -> usize;
    /// The connection of a subject.
    fn line_of(&self, subject: usize) -> usize;
    /// Sends the next request for a subject.
    ///
    /// # Errors
    /// A connection that breaks.
    fn ask(&mut self, lines: &mut Lines, subject: usize) -> Result<()>;
    /// Takes the answer to the oldest request for a subject.
    ///
    /// # Errors
    /// An answer that is not the right one.
    fn take(&mut self, subject: usize, frame: &[u8]) -> Result<()>;
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The schedule; without one, each connection keeps its requests in flight.
    pub pace: Option<Pace>,
    /// End of a run without a schedule.
    pub until_ns: u64,
    /// Not measured at the beginning.
    pub warmup_ns: u64,
    /// How long before a due request nobody sleeps.
    pub spin_ns: u64,
    /// Longest time without any answer.
    pub silence_ns: u64,
    /// Requests without an answer on one connection; what is due beyond waits, and its latency counts.
    pub in_flight: usize,
}

/// One connection: whose requests it carries, and which are due or on their way, with the time that they were due.
#[derive(Debug, Default)]
struct Lane {
    subjects: Vec<usize>,
    turn: usize,
    waiting: VecDeque<(usize, u64)>,
    asked: VecDeque<(usize, u64)>,
}

/// What a run found.
#[derive(Debug)]
pub struct Ran<A> {
    /// What was asked.
    pub asking: A,
    /// The measured part.
    pub window: Window,
    /// Requests that were answered in it.
    pub answered: u64,
    /// From the time that a request was due until its answer.
    pub latency: Times,
    /// How late requests were handed to their connection; empty without a schedule.
    pub lateness: Times,
}

/// A run.
#[derive(Debug)]
pub struct Steady<A> {
    clock: Clock,
    lines: Lines,
    asking: A,
    limits: Limits,
    watch: Watch,
    lanes: Vec<Lane>,
    next: u64,
    waiting: usize,
    started_at: u64,
    measured_from: Option<u64>,
    answered: u64,
    latency: Times,
    lateness: Times,
    alive_at: u64,
    told_at: u64,
    told: u64,
    total: u64,
}

impl<A: Asking> Steady<A> {
    /// A run that has not begun.
    ///
    /// # Errors
    /// Nobody to ask for.
    pub fn new(clock: Clock, lines: Lines, asking: A, limits: Limits, watch: Watch) -> Result<Self> {
        ensure!(asking.subjects() > 0, "there is nobody to ask for");
        let mut lanes: Vec<Lane> = Vec::new();
        for subject in 0..asking.subjects() {
            let line = asking.line_of(subject);
            if lanes.len() <= line {
                lanes.resize_with(line + 1, Lane::default);
            }
            if let Some(lane) = lanes.get_mut(line) {
                lane.subjects.push(subject);
            }
        }
        Ok(Self {
            clock,
            lines,
            asking,
            limits,
            watch,
            lanes,
            next: 0,
            waiting: 0,
            started_at: 0,
            measured_from: None,
            answered: 0,
            latency: Times::new(),
            lateness: Times::new(),
            alive_at: 0,
            told_at: 0,
            told: 0,
            total: 0,
        })
    }

    /// Runs to the end: everything that was asked is answered.
    ///
    /// # Errors
    /// A broken connection, silence, an answer that is not the right one, or none in the measured part.
    pub fn run(mut self) -> Result<Ran<A>> {
        let now = self.clock.now();
        (self.started_at, self.alive_at, self.told_at) = (now, now, now);
        self.begin_measuring(now);
        if self.limits.pace.is_none() {
            (0..self.lanes.len()).try_for_each(|line| self.send(line))?;
        }
        let mut answers = Vec::new();
        loop {
            self.advance()?;
            let now = self.clock.now();
            self.begin_measuring(now);
            self.tell(now);
            self.check_silence(now)?;
            if self.is_over(now) {
                break;
            }
            self.lines.wait(self.sleep_ns(now), &mut answers)?;
            for answer in answers.drain(..) {
                self.take(&answer)?;
                self.advance()?;
            }
        }
        let window = self.watch.end(self.clock.now());
        ensure!(self.answered > 0, "nothing was answered in the measured part");
        let Self { asking, answered, latency, lateness, .. } = self;
        Ok(Ran { asking, window, answered, latency, lateness })
    }

    fn begin_measuring(&mut self, now: u64) {
        let warmup_ns = self.limits.warmup_ns;
        if self.measured_from.is_some() {
            return;
        }
        if now >= self.started_at.saturating_add(warmup_ns / 2) {
            self.watch.prepare();
        }
        if now >= self.started_at.saturating_add(warmup_ns) {
            self.watch.begin(now);
            self.measured_from = Some(now);
        }
    }

    /// With a schedule it decides what belongs to the measured part, not when somebody looked.
    fn is_measured(&self, due: u64) -> bool {
        match self.limits.pace {
            Some(_) => due >= self.started_at.saturating_add(self.limits.warmup_ns),
            None => self.measured_from.is_some_and(|from| due >= from),
        }
    }

    fn is_over(&self, now: u64) -> bool {
        let is_sent = match self.limits.pace {
            Some(pace) => pace.due(self.next).is_none(),
            None => now >= self.started_at.saturating_add(self.limits.until_ns),
        };
        is_sent && self.waiting == 0 && self.lines.unanswered() == 0
    }

    fn sleep_ns(&self, now: u64) -> u64 {
        let due = self.limits.pace.and_then(|pace| pace.due(self.next));
        let mut wake = self.told_at.saturating_add(SECOND_NS);
        if let Some(due) = due {
            wake = wake.min(self.started_at.saturating_add(due).saturating_sub(self.limits.spin_ns));
        }
        if self.measured_from.is_none() {
            wake = wake.min(self.started_at.saturating_add(self.limits.warmup_ns));
        }
        wake.saturating_sub(now)
    }

    /// Sends what is due.
    fn advance(&mut self) -> Result<()> {
        let Some(pace) = self.limits.pace else { return Ok(()) };
        let subjects = u64::try_from(self.asking.subjects())?;
        while let Some(due) = pace.due(self.next) {
            let (due, now) = (self.started_at.saturating_add(due), self.clock.now());
            if due > now {
                break;
            }
            let subject = usize::try_from(self.next % subjects)?;
            self.next += 1;
            if self.is_measured(due) {
                self.lateness.record(now - due);
            }
            let line = self.asking.line_of(subject);
            if let Some(lane) = self.lanes.get_mut(line) {
                lane.waiting.push_back((subject, due));
                self.waiting += 1;
            }
            self.send(line)?;
        }
        Ok(())
    }

    /// Sends on one connection while it has work and room.
    fn send(&mut self, line: usize) -> Result<()> {
        loop {
            let Some(lane) = self.lanes.get_mut(line) else { return Ok(()) };
            if lane.asked.len() >= self.limits.in_flight {
                return Ok(());
            }
            let next = if self.limits.pace.is_some() {
                let next = lane.waiting.pop_front();
                self.waiting -= usize::from(next.is_some());
                next
            } else {
                let now = self.clock.now();
                let is_over = now >= self.started_at.saturating_add(self.limits.until_ns);
                let next = lane.subjects.get(lane.turn).copied().filter(|_| !is_over);
                lane.turn = (lane.turn + 1) % lane.subjects.len().max(1);
                next.map(|subject| (subject, now))
            };
            let Some((subject, due)) = next else { return Ok(()) };
            lane.asked.push_back((subject, due));
            self.asking.ask(&mut self.lines, subject)?;
        }
    }

    fn take(&mut self, answer: &Answer) -> Result<()> {
        let lane = self.lanes.get_mut(answer.line).context("an answer to nobody")?;
        let (subject, due) = lane.asked.pop_front().context("an answer that nobody waits for")?;
        self.asking.take(subject, &answer.frame)?;
        self.total += 1;
        if self.measured_from.is_some() {
            self.answered += 1;
        }
        if self.is_measured(due) {
            self.latency.record(answer.at.saturating_sub(due));
        }
        self.send(answer.line)
    }

    fn check_silence(&mut self, now: u64) -> Result<()> {
        self.alive_at = self.alive_at.max(self.lines.answered_at());
        if self.lines.unanswered() == 0 {
            self.alive_at = now;
        }
        if now.saturating_sub(self.alive_at) > self.limits.silence_ns {
            bail!("no answer from the broker for {:.0} s", seconds(self.limits.silence_ns));
        }
        Ok(())
    }

    /// A line per second on standard error.
    fn tell(&mut self, now: u64) {
        if now < self.told_at.saturating_add(SECOND_NS) {
            return;
        }
        let rate = ratio(float(self.total - self.told), seconds(now - self.told_at));
        (self.told_at, self.told) = (now, self.total);
        let phase = if self.measured_from.is_some() { "" } else { " (warm-up)" };
        eprintln!(
            "{:6.1} s{phase}: {rate:.0} requests/s, p99 {:.3} ms, {} unanswered",
            seconds(now - self.started_at),
            ratio(float(self.latency.at(0.99)), 1e6),
            self.lines.unanswered() + self.waiting,
        );
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::TcpListener;
    use std::time::Duration;

    use protocol::codec::Writer;
    use protocol::messages::{HeartbeatRequest, HeartbeatResponse, Message};

    use super::*;
    use crate::groups::fleet::HEARTBEAT;
    use crate::groups::lines::decode;

    /// Counts what is asked for each of its subjects, and takes what is answered.
    #[derive(Debug)]
    struct Counting {
        lines: usize,
        asked: Vec<u64>,
    }

    impl Asking for Counting {
        fn subjects(&self) -> usize {
            self.asked.len()
        }

        fn line_of(&self, subject: usize) -> usize {
            subject % self.lines
        }

        fn ask(&mut self, lines: &mut Lines, subject: usize) -> Result<()> {
            self.asked[subject] += 1;
            lines.send(self.line_of(subject), HEARTBEAT, &HeartbeatRequest::default())
        }

        fn take(&mut self, _: usize, frame: &[u8]) -> Result<()> {
            let answer: HeartbeatResponse = decode(frame, HEARTBEAT)?;
            ensure!(answer.error_code == 0, "a heartbeat was answered with {}", answer.error_code);
            Ok(())
        }
    }

    /// Answers every heartbeat on so many connections; the one numbered `wrong` with an error, the first one so late.
    fn broker(connections: usize, wrong: Option<u32>, late: Duration) -> std::net::SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
        let address = listener.local_addr().expect("address");
        for _ in 0..connections {
            let listener = listener.try_clone().expect("clone");
            std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().expect("accept");
                let mut prefix = [0; 4];
                let mut number = 0;
                while stream.read_exact(&mut prefix).is_ok() {
                    let mut frame = vec![0; u32::from_be_bytes(prefix) as usize];
                    stream.read_exact(&mut frame).expect("frame");
                    let error_code = if wrong == Some(number) { 25 } else { 0 };
                    if number == 0 {
                        crate::commands::pause(late);
                    }
                    number += 1;
                    let correlation_id = i32::from_be_bytes(frame[4..8].try_into().expect("four"));
                    let mut writer = Writer::new();
                    let key = protocol::api::ApiKey::Heartbeat;
                    protocol::api::response_header(key, HEARTBEAT, correlation_id, &mut writer);
                    HeartbeatResponse { error_code, ..Default::default() }.encode(&mut writer, HEARTBEAT);
                    if stream.write_all(&writer.into_frame()).is_err() {
                        return;
                    }
                }
            });
        }
        address
    }

    const MS: u64 = 1_000_000;

    fn steady(address: std::net::SocketAddr, connections: usize, limits: Limits) -> Steady<Counting> {
        let clock = Clock::start();
        let mut lines = Lines::new(clock).expect("lines");
        for _ in 0..connections {
            lines.open(address, Duration::from_secs(30)).expect("open");
        }
        let asking = Counting { lines: connections, asked: vec![0; 3 * connections] };
        let watch = Watch::new(None, false).expect("watch");
        Steady::new(clock, lines, asking, limits, watch).expect("steady")
    }

    fn limits(pace: Option<Pace>) -> Limits {
        Limits { pace, until_ns: 50 * MS, warmup_ns: 0, spin_ns: 0, silence_ns: 30_000 * MS, in_flight: 1 }
    }

    #[test]
    fn a_schedule_goes_round_and_what_waits_for_a_slow_broker_counts_from_when_it_was_due() {
        let pace = Pace::lasting(600, 1000 * MS, 200 * MS);
        let slow = broker(2, None, Duration::from_millis(300));
        let ran = steady(slow, 2, limits(Some(pace))).run().expect("ran");
        assert_eq!(ran.asking.asked, [20; 6]);
        assert_eq!((ran.answered, ran.latency.count(), ran.lateness.count()), (120, 120, 120));
        // The last one was due at 200 ms, and waited behind the first, which took 300.
        let waited = ran.latency.at(0.5);
        assert!(waited > 100 * MS, "half of them waited less than {waited} ns: omission is not counted");
    }

    #[test]
    fn what_is_due_in_the_warm_up_is_not_measured() {
        let pace = Pace::lasting(600, 1000 * MS, 200 * MS);
        let address = broker(1, None, Duration::ZERO);
        let ran = steady(address, 1, Limits { warmup_ns: 100 * MS, ..limits(Some(pace)) }).run();
        let ran = ran.expect("ran");
        assert_eq!(ran.asking.asked, [40; 3]);
        assert_eq!((ran.latency.count(), ran.lateness.count()), (60, 60));
    }

    #[test]
    fn without_a_schedule_answers_make_room_and_nobody_is_left_out() {
        let ran = steady(broker(2, None, Duration::ZERO), 2, limits(None)).run().expect("ran");
        let (least, most) = (ran.asking.asked.iter().min(), ran.asking.asked.iter().max());
        assert!(least.is_some_and(|least| *least > 0), "{:?}", ran.asking.asked);
        assert_eq!(ran.answered, ran.asking.asked.iter().sum::<u64>(), "least {least:?}, most {most:?}");
        assert_eq!(ran.lateness.count(), 0);
    }

    #[test]
    fn a_wrong_answer_ends_the_run() {
        let pace = Pace::lasting(600, 1000 * MS, 200 * MS);
        let address = broker(1, Some(5), Duration::ZERO);
        let said = steady(address, 1, limits(Some(pace))).run().expect_err("wrong").to_string();
        assert_eq!(said, "a heartbeat was answered with 25");
    }

    #[test]
    fn a_run_of_which_nothing_is_measured_is_none() {
        let pace = Pace::lasting(600, 1000 * MS, 20 * MS);
        let address = broker(1, None, Duration::ZERO);
        let said = steady(address, 1, Limits { warmup_ns: 30_000 * MS, ..limits(Some(pace)) }).run();
        assert!(said.expect_err("nothing").to_string().contains("nothing was answered"));
    }

    #[test]
    fn silence_has_an_end() {
        let address = broker(1, None, Duration::from_secs(20));
        let pace = Pace::lasting(600, 1000 * MS, 20 * MS);
        let said = steady(address, 1, Limits { silence_ns: 50 * MS, ..limits(Some(pace)) }).run();
        assert!(said.expect_err("silence").to_string().contains("no answer from the broker"));
    }
}
