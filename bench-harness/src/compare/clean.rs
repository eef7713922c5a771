//! When a log is clean, seen from outside and alike for every broker: its checkpoint has reached the active segment of each
//! partition, and its segments have stopped changing. Knows names, sizes and places of files; who cleans is not asked.
#![allow(clippy::disallowed_methods, reason = "a harness looks at the files of a broker")]

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use anyhow::{Context, Result};

/// The file that says how far each log is clean.
const CHECKPOINT: &str = "cleaner-offset-checkpoint";
/// How long the segments of a clean log have not changed, in seconds.
const QUIET: f64 = 0.5;

/// Segments by base offset: bytes, and the number of the file, which is another one when it was written anew.
type Segments = BTreeMap<i64, (u64, u64)>;

/// One look at the partitions of a topic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Look {
    /// Of each partition; the last one is active.
    segments: BTreeMap<i32, Segments>,
    /// Files of a cleaning that is not over.
    unfinished: usize,
    /// Below which offset each partition is clean, as the checkpoint says.
    clean_to: BTreeMap<i32, i64>,
}

impl Look {
    /// Looks now.
    ///
    /// # Errors
    /// The directory cannot be read, or its checkpoint is none.
    pub fn take(logs: &Path, topic: &str) -> Result<Self> {
        let mut look = Self::default();
        for entry in std::fs::read_dir(logs).with_context(|| format!("{}", logs.display()))? {
            let entry = entry?;
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix(topic)?.strip_prefix('-'));
            if let Some(partition) = number.and_then(|number| number.parse().ok()) {
                let (segments, unfinished) = segments_in(&entry.path())?;
                look.segments.insert(partition, segments);
                look.unfinished += unfinished;
            }
        }
        let path = logs.join(CHECKPOINT);
        look.clean_to = match std::fs::read_to_string(&path) {
            Ok(text) => {
                clean_to(&text, topic).with_context(|| format!("{} says {text:?}", path.display()))?
            }
            Err(why) if why.kind() == ErrorKind::NotFound => BTreeMap::new(),
            Err(why) => return Err(why).with_context(|| format!("{}", path.display())),
        };
        Ok(look)
    }

    /// The base offset of the active segment of each partition.
    pub fn active(&self) -> BTreeMap<i32, i64> {
        let last = |(partition, segments): (&i32, &Segments)| {
            segments.last_key_value().map(|(base, _)| (*partition, *base))
        };
        self.segments.iter().filter_map(last).collect()
    }

    /// Bytes of all segments but the active ones: what there is to clean, or what is left of it.
    pub fn cleanable_bytes(&self) -> u64 {
        self.cleanable().map(|(_, _, (bytes, _))| bytes).sum()
    }

    /// Bytes of those of them that were replaced until a later look.
    pub fn replaced_bytes(&self, later: &Self) -> u64 {
        let is_replaced = |(partition, base, found): &(i32, i64, (u64, u64))| {
            later.segments.get(partition).and_then(|segments| segments.get(base)) != Some(found)
        };
        self.cleanable().filter(is_replaced).map(|(_, _, (bytes, _))| bytes).sum()
    }

    /// Whether the checkpoint says of a later look that all of this is clean, and nothing is on its way.
    pub fn is_clean(&self, later: &Self) -> bool {
        let reached = |(partition, segments): (&i32, &Segments)| {
            // Where the active segment is the only one there is nothing to say.
            let first = segments.first_key_value().map(|(base, _)| base);
            let clean_to = later.clean_to.get(partition).or(first);
            clean_to >= segments.last_key_value().map(|(base, _)| base)
        };
        later.unfinished == 0 && self.segments.iter().all(reached)
    }

    fn cleanable(&self) -> impl Iterator<Item = (i32, i64, (u64, u64))> {
        self.segments.iter().flat_map(|(partition, segments)| {
            let below = segments.len().saturating_sub(1);
            segments.iter().take(below).map(|(base, found)| (*partition, *base, *found))
        })
    }
}

/// The segments in a directory of a partition, and how many files of an unfinished cleaning. What vanishes meanwhile is not
/// there.
fn segments_in(directory: &Path) -> Result<(Segments, usize)> {
    let (mut segments, mut unfinished) = (Segments::new(), 0);
    for entry in std::fs::read_dir(directory).with_context(|| format!("{}", directory.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_str().unwrap_or_default();
        if name.ends_with(".cleaned") || name.ends_with(".swap") {
            unfinished += 1;
        }
        let base = name.strip_suffix(".log").and_then(|stem| stem.parse().ok());
        if let Some((base, found)) = base.zip(entry.metadata().ok()) {
            segments.insert(base, (found.len(), found.ino()));
        }
    }
    Ok((segments, unfinished))
}

/// What a checkpoint says of the partitions of a topic: version 0, the number of entries, and a line `topic partition offset`
/// for each; or nothing at all, as Kafka makes the file first. `None` for any other text.
fn clean_to(text: &str, topic: &str) -> Option<BTreeMap<i32, i64>> {
    if text.is_empty() {
        return Some(BTreeMap::new());
    }
    let mut lines = text.lines();
    if lines.next()? != "0" {
        return None;
    }
    let count: usize = lines.next()?.parse().ok()?;
    let (mut found, mut entries) = (BTreeMap::new(), 0);
    for line in lines {
        let mut fields = line.split_ascii_whitespace();
        let (name, partition, offset) = (fields.next()?, fields.next()?, fields.next()?);
        let (partition, offset) = (partition.parse().ok()?, offset.parse().ok()?);
        if fields.next().is_some() {
            return None;
        }
        entries += 1;
        if name == topic {
            found.insert(partition, offset);
        }
    }
    (entries == count).then_some(found)
}

/// What a look told of a cleaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A segment was replaced since the look before.
    Changed,
    /// Nothing new.
    Nothing,
    /// All is clean, and was at the last change.
    Clean,
}

/// A cleaning that is watched. Times are seconds since it was begun.
#[derive(Clone, Debug)]
pub struct Cleaning {
    dirty: Look,
    segments: BTreeMap<i32, Segments>,
    changed_at: f64,
    has_changed: bool,
}

impl Cleaning {
    /// Begins to watch, at 0.
    pub fn new(dirty: Look) -> Self {
        Self { segments: dirty.segments.clone(), dirty, changed_at: 0.0, has_changed: false }
    }

    /// Takes a look in.
    pub fn see(&mut self, at: f64, look: Look) -> Seen {
        if look.segments != self.segments {
            self.segments = look.segments;
            self.changed_at = at;
            self.has_changed = true;
            return Seen::Changed;
        }
        let is_quiet = self.has_changed && at - self.changed_at >= QUIET;
        if is_quiet && self.dirty.is_clean(&look) { Seen::Clean } else { Seen::Nothing }
    }

    /// When a segment was last replaced: once it is clean, that is its end.
    pub fn changed_at(&self) -> f64 {
        self.changed_at
    }

    /// What there was to clean.
    pub fn dirty(&self) -> &Look {
        &self.dirty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two partitions with segments of 100 bytes at 0 and 10, and an active one at 20.
    fn dirty() -> Look {
        let segments: Segments = [(0, (100, 1)), (10, (100, 2)), (20, (5, 3))].into();
        Look { segments: [(0, segments.clone()), (1, segments)].into(), ..Look::default() }
    }

    /// The same where this many of the first segments were written anew, and the checkpoint says this of both.
    fn cleaned(segments: i64, offset: Option<i64>) -> Look {
        let mut look = dirty();
        for found in look.segments.values_mut().flat_map(|all| all.iter_mut()) {
            if *found.0 < segments * 10 {
                *found.1 = (7, found.1.1 + 100);
            }
        }
        look.clean_to = offset.into_iter().flat_map(|offset| [(0, offset), (1, offset)]).collect();
        look
    }

    #[test]
    fn a_log_is_clean_when_the_checkpoint_says_so_and_nothing_changes_any_more() {
        let mut cleaning = Cleaning::new(dirty());
        let mut see = |at, look| cleaning.see(at, look);
        assert_eq!(see(1.0, dirty()), Seen::Nothing);
        assert_eq!(see(2.0, cleaned(1, None)), Seen::Changed);
        assert_eq!(see(3.0, cleaned(1, None)), Seen::Nothing, "as long as the checkpoint does not say so");
        assert_eq!(see(3.5, cleaned(2, Some(20))), Seen::Changed);
        assert_eq!(see(3.6, cleaned(2, Some(20))), Seen::Nothing, "it may change again");
        let mut on_its_way = cleaned(2, Some(20));
        on_its_way.unfinished = 1;
        assert_eq!(see(4.1, on_its_way), Seen::Nothing);
        assert_eq!(see(4.2, cleaned(2, Some(19))), Seen::Nothing, "the checkpoint is behind");
        assert_eq!(see(4.3, cleaned(2, Some(20))), Seen::Clean);
        assert_eq!(cleaning.changed_at(), 3.5, "the end is the last change, not the look that tells");
    }

    #[test]
    fn a_checkpoint_alone_makes_no_log_clean() {
        let mut cleaning = Cleaning::new(dirty());
        let mut said = dirty();
        said.clean_to = [(0, 20), (1, 20)].into();
        assert_eq!(cleaning.see(5.0, said), Seen::Nothing);
    }

    #[test]
    fn what_there_is_to_clean_is_all_but_the_active_segments() {
        let dirty = dirty();
        assert_eq!((dirty.cleanable_bytes(), dirty.active()), (400, [(0, 20), (1, 20)].into()));
        assert_eq!(dirty.replaced_bytes(&dirty), 0);
        assert_eq!(dirty.replaced_bytes(&cleaned(1, None)), 200);
        let mut merged = cleaned(1, None);
        merged.segments.values_mut().for_each(|segments| assert!(segments.remove(&10).is_some()));
        assert_eq!(dirty.replaced_bytes(&merged), 400, "a segment that went into another one");
        assert_eq!(Look::default().cleanable_bytes(), 0);
    }

    #[test]
    fn a_checkpoint_is_read_line_by_line() {
        let text = "0\n3\nrun-1 0 20\nrun-10 1 7\nrun-1 12 -1\n";
        assert_eq!(clean_to(text, "run-1"), Some([(0, 20), (12, -1)].into()));
        assert_eq!(clean_to("0\n0\n", "run-1"), Some(BTreeMap::new()));
        assert_eq!(clean_to("", "run-1"), Some(BTreeMap::new()), "as Kafka makes it");
        for wrong in
            ["0", "1\n0\n", "0\nx\n", "0\n2\nt 0 1\n", "0\n1\nt 0\n", "0\n1\nt 0 1 2\n", "0\n1\nt x 1\n"]
        {
            assert_eq!(clean_to(wrong, "t"), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_look_finds_the_segments_of_its_topic_only() {
        let logs = tempfile::tempdir().unwrap();
        for directory in ["run-1-0", "run-1-12", "run-11-0", "run-1-0.deadbeef-delete"] {
            std::fs::create_dir(logs.path().join(directory)).unwrap();
        }
        let write =
            |name: &str, bytes: usize| std::fs::write(logs.path().join(name), vec![0; bytes]).unwrap();
        write("run-1-0/00000000000000000000.log", 30);
        write("run-1-0/00000000000000000000.index", 8);
        write("run-1-0/00000000000000000010.log", 1);
        write("run-1-0/00000000000000000000.log.deleted", 50);
        write("run-1-0/00000000000000000000.log.cleaned", 50);
        write("run-1-12/00000000000000000000.log", 9);
        write("run-11-0/00000000000000000000.log", 9);
        let look = Look::take(logs.path(), "run-1").unwrap();
        assert_eq!((look.active(), look.cleanable_bytes()), ([(0, 10), (12, 0)].into(), 30));
        assert_eq!((look.unfinished, look.clean_to.len()), (1, 0));
        write(CHECKPOINT, 3);
        assert!(Look::take(logs.path(), "run-1").is_err(), "zeros are no checkpoint");
        std::fs::write(logs.path().join(CHECKPOINT), "0\n1\nrun-1 0 10\n").unwrap();
        let later = Look::take(logs.path(), "run-1").unwrap();
        assert_eq!(later.clean_to, [(0, 10)].into());
        std::fs::rename(
            logs.path().join("run-1-0/00000000000000000000.log.cleaned"),
            logs.path().join("run-1-0/00000000000000000000.log"),
        )
        .unwrap();
        let replaced = Look::take(logs.path(), "run-1").unwrap();
        assert_eq!(look.replaced_bytes(&replaced), 30);
        assert!(look.is_clean(&replaced), "partition 12 has nothing to clean, and no entry");
    }
}
