//! The two log dirs of brokers that take turns: where each partition is, and moves between the dirs by whichever broker has
//! them (KIP-113), finished by it or left to the next one. Knows no particular broker: ours and Kafka are held to it in
//! turns. `interop.rs` takes it in by path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bench_harness::client::{Client, error_name};
use protocol::messages::*;

use crate::load::Random;

/// Whatever is waited for comes long before, also on two slow cores.
const LIMIT: Duration = Duration::from_secs(120);

/// Unknown, led elsewhere, replica not available, not available yet: each passes soon after a start.
const PASSING: [i16; 4] = [3, 6, 9, 15];

/// A partition by topic and index.
pub type Key = (String, i32);

/// Where a partition is, and where it goes to if it moves: indexes of log dirs.
type Place = (Option<usize>, Option<usize>);

/// Both log dirs.
pub struct DirTurns {
    dirs: [PathBuf; 2],
    random: Random,
    /// Where partitions go to that were left on their way.
    left: BTreeMap<Key, usize>,
    moved: usize,
    found: usize,
    twice: usize,
}

impl DirTurns {
    /// Those of a broker of ours that uses `first`, and one beside it.
    pub fn new(first: &Path, seed: u64) -> Self {
        let dirs = [first.to_owned(), first.with_file_name("more-logs")];
        let (left, random) = (BTreeMap::new(), Random(seed));
        Self { dirs, random, left, moved: 0, found: 0, twice: 0 }
    }

    /// `log.dirs`.
    pub fn names(&self) -> String {
        self.dirs.each_ref().map(|dir| dir.display().to_string()).join(",")
    }

    /// Both.
    pub fn each(&self) -> &[PathBuf; 2] {
        &self.dirs
    }

    /// What has been seen.
    pub fn told(&self) -> String {
        let Self { moved, found, twice, .. } = self;
        format!("{moved} moves, {found} of them left to the next broker, {twice} logs found twice")
    }

    /// The log dir that a partition is in, while none moves. One that has arrived may be in both for a moment.
    pub fn home_of(&self, partition: &str) -> Result<&Path, String> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let mut homes = self.dirs.iter().filter(|dir| dir.join(partition).is_dir());
            match (homes.next(), homes.next()) {
                (Some(home), None) => return Ok(home),
                (None, _) => return Err(format!("{partition} is in no log dir")),
                _ if Instant::now() > deadline => return Err(format!("{partition} is in both log dirs")),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Waits until what the broker before has left on its way has arrived.
    pub fn await_settled(&mut self, at: &str) -> Result<(), String> {
        self.found += self.names_in().filter(|(_, name)| name.ends_with("-future")).count();
        self.left.clear();
        let is_settled = |(here, future): &Place| here.is_some() && future.is_none();
        self.await_places(at, &mut |places| places.values().all(is_settled))
    }

    /// Has about half of the partitions moved to the other dir, and tells which.
    pub fn begin(&mut self, at: &str) -> Result<BTreeMap<Key, usize>, String> {
        let places = self.places(&mut connect(at)?)?;
        let mut wanted = BTreeMap::new();
        for (key, (here, _)) in places {
            // The topics that come and go do so while others move.
            if let Some(here) = here.filter(|_| !key.0.starts_with("made-"))
                && self.random.below(2) == 0
            {
                wanted.insert(key, 1 - here);
            }
        }
        self.alter(&mut connect(at)?, &wanted)?;
        self.moved += wanted.len();
        Ok(wanted)
    }

    /// The same, just before the broker ends: who comes next finishes what is not done.
    pub fn leave_some(&mut self, at: &str) -> Result<(), String> {
        self.left = self.begin(at)?;
        std::thread::sleep(Duration::from_millis(self.random.below(40)));
        Ok(())
    }

    /// Waits until they have arrived.
    pub fn await_arrived(&self, at: &str, wanted: &BTreeMap<Key, usize>) -> Result<(), String> {
        let has_arrived = |places: &BTreeMap<Key, Place>| {
            wanted.iter().all(|(key, dir)| places.get(key) == Some(&(Some(*dir), None)))
        };
        self.await_places(at, &mut |places| has_arrived(places))
    }

    /// Partitions of which both directories have the name of the replica: the broker was killed between two renames.
    pub fn twice(&mut self) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        let all: Vec<_> = self.names_in().filter(|(_, name)| !name.contains("-delete")).collect();
        let twice: BTreeSet<String> =
            all.into_iter().map(|(_, name)| name).filter(|name| !seen.insert(name.clone())).collect();
        self.twice += twice.len();
        twice
    }

    /// What an operator of Kafka does about those, who does not start on them: what was moved away goes. Kafka gives the
    /// copy its name when it is complete.
    pub fn remove_what_was_moved_away(&mut self) -> Result<(), String> {
        for name in self.twice() {
            let to = self.left.iter().find(|((topic, index), _)| format!("{topic}-{index}") == name);
            let (_, to) = to.ok_or_else(|| format!("{name} is there twice, and was not moved"))?;
            let from = self.dirs.iter().enumerate().find(|(dir, _)| dir != to);
            let from = from.map(|(_, dir)| dir.join(&name)).unwrap_or_default();
            std::fs::remove_dir_all(&from).map_err(|error| format!("{}: {error}", from.display()))?;
        }
        Ok(())
    }

    /// Directories of partitions, each with its log dir.
    fn names_in(&self) -> impl Iterator<Item = (&Path, String)> {
        self.dirs.iter().flat_map(|dir| {
            let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
            let dirs = entries.filter(|entry| entry.path().is_dir());
            dirs.map(move |entry| (dir.as_path(), entry.file_name().to_string_lossy().into_owned()))
        })
    }

    fn await_places(
        &self,
        at: &str,
        are_good: &mut dyn FnMut(&BTreeMap<Key, Place>) -> bool,
    ) -> Result<(), String> {
        let (mut client, deadline) = (connect(at)?, Instant::now() + LIMIT);
        loop {
            let places = self.places(&mut client)?;
            if are_good(&places) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("partitions do not arrive where they go to: {places:?}"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn places(&self, client: &mut Client) -> Result<BTreeMap<Key, Place>, String> {
        let reply =
            client.call(4, &DescribeLogDirsRequest { topics: None }).map_err(|error| error.to_string())?;
        let answer: DescribeLogDirsResponse<'_> = reply.message().map_err(|error| error.to_string())?;
        let mut places: BTreeMap<Key, Place> = BTreeMap::new();
        for told in &answer.results {
            let dir = self.dirs.iter().position(|dir| dir.as_os_str() == &*told.log_dir);
            let Some(dir) = dir.filter(|_| told.error_code == 0) else {
                return Err(format!("{} is described with {}", told.log_dir, error_name(told.error_code)));
            };
            for (topic, part) in told.topics.iter().flat_map(|t| t.partitions.iter().map(move |p| (t, p))) {
                let place = places.entry((topic.name.to_string(), part.partition_index)).or_default();
                let place = if part.is_future_key { &mut place.1 } else { &mut place.0 };
                *place = Some(dir);
            }
        }
        Ok(places)
    }

    fn alter(&self, client: &mut Client, wanted: &BTreeMap<Key, usize>) -> Result<(), String> {
        let dirs = self.dirs.iter().enumerate().map(|(to, dir)| AlterReplicaLogDir {
            path: dir.display().to_string().into(),
            topics: wanted
                .iter()
                .filter(|(_, wanted)| **wanted == to)
                .map(|((topic, index), _)| AlterReplicaLogDirTopic {
                    name: topic.clone().into(),
                    partitions: vec![*index],
                })
                .collect(),
        });
        let request = AlterReplicaLogDirsRequest { dirs: dirs.collect() };
        let deadline = Instant::now() + LIMIT;
        loop {
            let reply = client.call(2, &request).map_err(|error| error.to_string())?;
            let answer: AlterReplicaLogDirsResponse<'_> =
                reply.message().map_err(|error| error.to_string())?;
            let parts = answer.results.iter().flat_map(|topic| &topic.partitions);
            match parts.map(|part| part.error_code).find(|code| *code != 0) {
                None => return Ok(()),
                Some(code) if PASSING.contains(&code) && Instant::now() < deadline => {}
                Some(code) => return Err(format!("a move was answered with {}", error_name(code))),
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn connect(at: &str) -> Result<Client, String> {
    Client::connect(at, LIMIT).map_err(|error| error.to_string())
}
