//! Makes the images of a run, at each of its steps, and judges them; and does the same with a sync left out or a rename
//! made too early.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::path::Path;

use storage::io::sim::{Crash, Step, StepKind};

use crate::known::{Class, Complaint, DIR, Known, OTHER, judge};
use crate::stage::Run;

/// How many images there were.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Different disks.
    pub images: BTreeMap<Class, u64>,
    /// Judgements of a disk: what is known grows while it stays as it is.
    pub judged: u64,
}

/// An image that is not as it should be.
#[derive(Clone, Debug)]
pub struct Failure {
    pub run: &'static str,
    pub step: usize,
    pub mode: Crash,
    pub complaint: Complaint,
}

/// Which images are made.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    /// What a crash leaves; the seed of a torn one is mixed with the step.
    pub modes: &'a [Crash],
    /// Whether the kernel brings pages down between steps, and how.
    pub write_back: Option<u64>,
    /// Of so many images one is started twice.
    pub twice_each: u64,
    /// Of so many images one is made.
    pub one_in: u64,
    /// The steps before are left out: nothing is new there.
    pub from: usize,
}

impl Plan<'_> {
    /// Every image, some of them started twice.
    pub const ALL: Self = Self { modes: &[], write_back: None, twice_each: 16, one_in: 1, from: 0 };
}

/// Judges the images of a run at each step; stops at the first that is wrong.
pub fn examine(run: &Run, plan: Plan<'_>, tally: &mut Tally) -> Result<(), Failure> {
    let order: Vec<usize> = (0..run.trace.steps.len()).collect();
    examine_in(run, &order, plan, tally)
}

/// The same with the steps in another order, or without some of them.
pub fn examine_in(run: &Run, order: &[usize], plan: Plan<'_>, tally: &mut Tally) -> Result<(), Failure> {
    let steps = &run.trace.steps;
    // What is certainly done before each place in the order.
    let mut done = vec![steps.len()];
    done.extend(order.iter().rev().scan(steps.len(), |least, step| {
        *least = (*least).min(*step);
        Some(*least)
    }));
    done.reverse();
    let mut replay = run.trace.replay();
    let mut lessons = run.lessons.iter().peekable();
    let mut judging = Judge { run, plan, known: run.before.clone(), taught: 0, seen: HashSet::new(), tally };
    let is_in_order = order.len() == steps.len() && order.is_sorted();
    for (at, certain) in done.into_iter().enumerate() {
        let mut is_new = true;
        while let Some(lesson) = lessons.next_if(|lesson| lesson.at <= certain) {
            if lesson.loosens && is_new {
                judging.all(&replay, at)?;
                is_new = false;
            }
            (lesson.teach)(&mut judging.known);
            judging.taught += 1;
            is_new |= !lesson.loosens;
        }
        if is_new {
            judging.all(&replay, at)?;
        }
        if let Some(step) = order.get(at).and_then(|step| steps.get(*step)) {
            let applied = replay.apply(step);
            assert!(
                applied.is_ok() || !is_in_order,
                "{}: step {at} cannot be done again: {applied:?}",
                run.name
            );
        }
        if let Some(seed) = plan.write_back
            && mix(seed, at).is_multiple_of(4)
        {
            replay.write_back(mix(seed, at));
        }
    }
    Ok(())
}

fn mix(seed: u64, at: usize) -> u64 {
    let at = u64::try_from(at).unwrap();
    let mixed = (seed ^ at.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 29)
}

struct Judge<'a> {
    run: &'a Run,
    plan: Plan<'a>,
    known: Known,
    taught: usize,
    seen: HashSet<(u64, bool, usize)>,
    tally: &'a mut Tally,
}

impl Judge<'_> {
    fn all(&mut self, replay: &storage::io::sim::Replay, step: usize) -> Result<(), Failure> {
        if step < self.plan.from {
            return Ok(());
        }
        for (at, mode) in self.plan.modes.iter().enumerate() {
            if !mix(7, step * 64 + at).is_multiple_of(self.plan.one_in) {
                continue;
            }
            let mode = match mode {
                Crash::Torn(seed) => Crash::Torn(mix(*seed, step)),
                // Only compaction claims to be ready for it.
                Crash::Scattered(_) if !self.known.is_compacting() => continue,
                Crash::Scattered(seed) => Crash::Scattered(mix(*seed, step)),
                mode => *mode,
            };
            let disk = replay.disk().crash(mode);
            let (print, is_kill) = (disk.fingerprint(), mode == Crash::KeepAll);
            if !self.seen.insert((print, is_kill, self.taught)) {
                continue;
            }
            self.tally.judged += 1;
            // The number that no lesson has stands for the disk alone.
            if self.seen.insert((print, false, usize::MAX)) {
                *self.tally.images.entry(self.known.class).or_default() += 1;
            }
            let twice = self.tally.judged.is_multiple_of(self.plan.twice_each);
            let told = Told { run: self.run.name, step, mode };
            let judged = judge(&disk, &self.known, mode, twice);
            std::mem::forget(told);
            if let Err(complaint) = judged {
                return Err(Failure { run: self.run.name, step, mode, complaint });
            }
        }
        Ok(())
    }
}

/// Tells which image it was when the start panics.
struct Told {
    run: &'static str,
    step: usize,
    mode: Crash,
}

impl Drop for Told {
    fn drop(&mut self) {
        println!("panicked on an image of {:?} at step {}, {:?}", self.run, self.step, self.mode);
    }
}

/// A place in the source that syncs or renames, by what it is done to.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Site {
    pub kind: StepKind,
    /// What is synced or renamed.
    pub of: String,
    pub file: String,
    pub line: u32,
}

/// Names the syncs and renames of some runs: as `sync log, flush.rs`, with a number where a file has several.
pub struct Sites {
    lines: BTreeMap<(StepKind, String, String), BTreeSet<u32>>,
}

impl Sites {
    pub fn of(runs: &[&Run]) -> Self {
        let mut lines: BTreeMap<_, BTreeSet<u32>> = BTreeMap::new();
        for run in runs {
            for at in 0..run.trace.steps.len() {
                if let Some(site) = site(&run.trace.steps, at) {
                    lines.entry((site.kind, site.of, site.file)).or_default().insert(site.line);
                }
            }
        }
        Self { lines }
    }

    fn name(&self, site: &Site) -> String {
        let verb = if site.kind == StepKind::Rename { "rename" } else { "sync" };
        let mut name = format!("{verb} {}, {}", site.of, site.file);
        let lines = self.lines.get(&(site.kind, site.of.clone(), site.file.clone()));
        if let Some(lines) = lines.filter(|lines| lines.len() > 1) {
            let number = lines.iter().position(|line| *line == site.line).unwrap_or(0) + 1;
            name.push_str(&format!(" #{number}"));
        }
        name
    }

    /// The places: file and line.
    pub fn places(&self) -> BTreeSet<(String, u32)> {
        let places = |((_, _, file), lines): (&(StepKind, String, String), &BTreeSet<u32>)| {
            lines.iter().map(|line| (file.clone(), *line)).collect::<Vec<_>>()
        };
        self.lines.iter().flat_map(places).collect()
    }

    /// All names.
    pub fn names(&self) -> BTreeSet<String> {
        let mut names = BTreeSet::new();
        for ((kind, of, file), lines) in &self.lines {
            for line in lines {
                let site = Site { kind: *kind, of: of.clone(), file: file.clone(), line: *line };
                names.insert(self.name(&site));
            }
        }
        names
    }

    /// The order of a run's steps with the syncs of this name left out, or its renames made before the write before them;
    /// `None` if that changes nothing.
    pub fn mutate(&self, run: &Run, name: &str) -> Option<Vec<usize>> {
        let steps = &run.trace.steps;
        let is_it = |at: usize| site(steps, at).is_some_and(|site| self.name(&site) == name);
        let chosen: Vec<usize> = (0..steps.len()).filter(|at| is_it(*at)).collect();
        let first = *chosen.first()?;
        if steps[first].kind != StepKind::Rename {
            return Some((0..steps.len()).filter(|at| !chosen.contains(at)).collect());
        }
        let mut order: Vec<usize> = (0..steps.len()).collect();
        for at in chosen {
            let Some(before) = write_before(steps, at) else { continue };
            let (from, to) = (place_of(&order, at), place_of(&order, before));
            order.remove(from);
            order.insert(to.min(from), at);
        }
        (!order.is_sorted()).then_some(order)
    }
}

fn place_of(order: &[usize], step: usize) -> usize {
    order.iter().position(|one| *one == step).unwrap()
}

/// What a rename is swapped with: the last write of what gets the name. Where that has had another name since, nothing can
/// come between; then what took the name away from another file. Else whatever was written last.
fn write_before(steps: &[Step], at: usize) -> Option<usize> {
    let step = &steps[at];
    let last = |is_it: &dyn Fn(&Step) -> bool| (0..at).rev().find(|from| is_it(&steps[*from]));
    let own = last(&|one| one.kind == StepKind::Write && one.path == step.path);
    let replaces = |one: &Step| {
        matches!(one.kind, StepKind::Rename | StepKind::Remove) && Some(&one.path) == step.to.as_ref()
    };
    if last(&|one| one.to.as_ref() == Some(&step.path)).is_some() {
        own.or_else(|| last(&replaces))
    } else {
        own.or_else(|| last(&|one| one.kind == StepKind::Write))
    }
}

fn site(steps: &[Step], at: usize) -> Option<Site> {
    let step = &steps[at];
    let of = match step.kind {
        StepKind::SyncData => thing(&step.path),
        StepKind::Rename => thing(step.to.as_deref().unwrap_or(&step.path)),
        StepKind::SyncDir => {
            let after = steps[..at].iter().rev().find(|one| one.path.parent() == Some(step.path.as_path()));
            let replaced = after.filter(|one| one.kind == StepKind::Rename && is_tmp(&one.path));
            match replaced.and_then(|one| one.to.as_deref()) {
                Some(to) if step.site.file().ends_with("checkpoint.rs") => format!("dir of {}", thing(to)),
                _ => format!("dir {}", thing(&step.path)),
            }
        }
        _ => return None,
    };
    Some(Site { kind: step.kind, of, file: short(Path::new(step.site.file())), line: step.site.line() })
}

/// A source file without what is above it in the crate.
pub fn short(file: &Path) -> String {
    let parent = file.parent().and_then(Path::file_name).and_then(|name| name.to_str()).unwrap_or("");
    let name = file.file_name().and_then(|name| name.to_str()).unwrap_or("");
    if parent == "src" { name.to_owned() } else { format!("{parent}/{name}") }
}

fn is_tmp(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tmp")
}

/// What a path names, without its numbers.
fn thing(path: &Path) -> String {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("/");
    if path == Path::new(DIR) || path == Path::new(OTHER) {
        return "log dir".to_owned();
    }
    if path.parent() == Some(Path::new("/")) || name == "/" {
        return "parent".to_owned();
    }
    if name.ends_with("-future") {
        return "partition".to_owned();
    }
    for suffix in ["-delete", "-stray"] {
        if name.ends_with(suffix) {
            return format!("partition{suffix}");
        }
    }
    let is_in_dir = [DIR, OTHER].iter().any(|dir| path.parent() == Some(Path::new(dir)));
    if is_in_dir && !name.contains('.') && !name.ends_with("-checkpoint") {
        return "partition".to_owned();
    }
    // Segment files by kind, others by name.
    match name.split_once('.') {
        Some((base, kind)) if base.len() == 20 && base.bytes().all(|byte| byte.is_ascii_digit()) => {
            format!(".{kind}")
        }
        _ => name.to_owned(),
    }
}
