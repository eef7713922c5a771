//! One side against another: warm-up, rehearsal, pairs in turn, and what of a warm-up a run may know. Knows how a contrast
//! is played; what is done in a run, and what it is held against, is given.

use anyhow::{Context, Result};

use super::figures::{self, Target};
use super::options::Compare;
use super::promise::Promises;
use super::report::{Contrast, Pair, Run, WarmUp};
use super::servers::{Broker, Plan};
use super::stage::{Found, Home, Stage, judged};
use super::stats::{Better, Warmth};

/// Windows of Kafka's warm-up at most: with 1 GiB of heap its rate was found to rise for more than 200 s on one processor.
/// Where it is still moving then, no claim is made against it.
const WINDOWS_MAX: usize = 40;
/// Of a trial, and of ours, which compiles nothing while it runs.
const WINDOWS_MAX_FEW: usize = 3;

/// What most warm-ups count.
pub const RECORDS: &str = "records";

/// What a run may know of the warm-up.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known {
    /// Records per second of the faster Kafka at its highest.
    pub kafka_max: Option<f64>,
    /// What its topics have to promise.
    pub promises: Promises,
}

/// One run of one side.
pub type Act<'a> = &'a mut dyn FnMut(&Home, &Broker, Known) -> Result<Found>;
/// One window of a warm-up; returns records per second.
pub type Warm<'a> = &'a mut dyn FnMut(&Home, &Broker) -> Result<f64>;

/// What is compared.
#[derive(Debug)]
pub struct Sides {
    /// A sentence for the report.
    pub what: String,
    /// What the figures are held against.
    pub targets: Vec<Target>,
    /// The figure by which the better heap is chosen.
    pub primary: &'static str,
    /// Records per second that a Kafka reached at this load before, closed loop.
    pub kafka_highest: Option<f64>,
    /// What a window of the warm-up counts.
    pub counts: &'static str,
}

/// Ours against the better Kafka, or alone, on topics that promise this.
///
/// # Errors
/// A broker or a run fails.
pub fn against_kafka(
    home: &Home,
    compare: &Compare,
    (sides, promises): (Sides, Promises),
    mut warm: Option<Warm<'_>>,
    act: Act<'_>,
) -> Result<Contrast> {
    let mut stage = home.stage();
    let ours = stage.add(compare.common.odradek(1))?;
    let mut kafkas = Vec::new();
    for plan in compare.kafkas()? {
        kafkas.push(stage.add(plan)?);
    }
    let mut contrast = Contrast { what: sides.what, targets: sides.targets, promises, ..Contrast::default() };
    contrast.first = stage.broker(ours)?.name();
    if let Some(warm) = &mut warm {
        for place in std::iter::once(ours).chain(kafkas.iter().copied()) {
            let few = place == ours || home.common.quick;
            let bound = if few { WINDOWS_MAX_FEW } else { WINDOWS_MAX };
            contrast.warm_ups.push(warm_up(&mut stage, place, bound, sides.counts, *warm)?);
        }
    }
    let known = Known { kafka_max: higher(contrast.kafka_highest(), sides.kafka_highest), promises };
    if let Some(highest) = known.kafka_max {
        contrast.notes.push(format!(
            "Kafka's highest is {highest:.0} {}/s: the most that any of its heaps reached in a closed loop so far",
            sides.counts
        ));
    }
    let mut one = |stage: &mut Stage<'_>, place: usize, pair: u32| -> Result<Run> {
        let name = stage.broker(place)?.name();
        home.say(&format!("pair {pair}: {name}"));
        stage
            .run(place, &mut |home, broker| act(home, broker, known))
            .with_context(|| format!("{name}, pair {pair}"))
    };
    let first = one(&mut stage, ours, 0)?;
    let rehearsed =
        kafkas.iter().map(|place| Ok((*place, one(&mut stage, *place, 0)?))).collect::<Result<Vec<_>>>()?;
    let chosen = choose(&rehearsed, sides.primary);
    for (place, run) in &rehearsed {
        let name = stage.broker(*place)?.name();
        let found = run.figures.get(sides.primary).copied().unwrap_or(f64::NAN);
        contrast.notes.push(format!("{name} rehearsed: {} {found:.3}", figures::label(sides.primary)));
        if Some(*place) == chosen {
            contrast.second = Some(name);
        } else {
            stage.dismiss(*place)?;
        }
    }
    let second = rehearsed.into_iter().find(|(place, _)| Some(*place) == chosen).map(|(_, run)| run);
    contrast.pairs.push(Pair { first, second });
    for pair in 1..compare.pairs()? {
        let first = one(&mut stage, ours, pair)?;
        let second = chosen.map(|place| one(&mut stage, place, pair)).transpose()?;
        contrast.pairs.push(Pair { first, second });
    }
    stage.close()?;
    Ok(contrast)
}

/// Two sides of one kind of broker, each with its own act.
///
/// # Errors
/// A broker or a run fails.
pub fn within(
    home: &Home,
    pairs: u32,
    sides: Sides,
    first: (&str, &Plan, Act<'_>),
    second: (&str, &Plan, Act<'_>),
) -> Result<Contrast> {
    let mut stage = home.stage();
    let first_place = stage.add(first.1.clone())?;
    // Sides of the same plan share the broker: they differ in what is done to it.
    let second_place = if first.1 == second.1 { first_place } else { stage.add(second.1.clone())? };
    let mut contrast = Contrast { what: sides.what, targets: sides.targets, ..Contrast::default() };
    contrast.first = first.0.to_owned();
    contrast.second = Some(second.0.to_owned());
    for pair in 0..pairs {
        let mut one = |place, name: &str, act: &mut dyn FnMut(&Home, &Broker, Known) -> Result<Found>| {
            home.say(&format!("pair {pair}: {name}"));
            let run = stage.run(place, &mut |home, broker| act(home, broker, Known::default()));
            run.with_context(|| format!("{name}, pair {pair}"))
        };
        let run = one(first_place, first.0, &mut *first.2)?;
        let other = one(second_place, second.0, &mut *second.2)?;
        contrast.pairs.push(Pair { first: run, second: Some(other) });
    }
    stage.close()?;
    Ok(contrast)
}

/// A run that starts and ends its broker itself, by the name of its side.
pub type Named<'a> = (&'a str, &'a mut dyn FnMut(&Home) -> Result<Found>);

/// Sides that start and end their brokers in each run; the second one may be missing.
///
/// # Errors
/// A run fails.
pub fn from_scratch(
    home: &Home,
    pairs: u32,
    sides: Sides,
    first: Named<'_>,
    mut second: Option<Named<'_>>,
) -> Result<Contrast> {
    let mut contrast = Contrast { what: sides.what, targets: sides.targets, ..Contrast::default() };
    first.0.clone_into(&mut contrast.first);
    contrast.second = second.as_ref().map(|(name, _)| (*name).to_owned());
    for pair in 0..pairs {
        let one = |name: &str, act: &mut dyn FnMut(&Home) -> Result<Found>| {
            home.say(&format!("pair {pair}: {name}"));
            judged(home, &mut || act(home)).with_context(|| format!("{name}, pair {pair}"))
        };
        let run = one(first.0, &mut *first.1)?;
        let other = second.as_mut().map(|(name, act)| one(name, &mut **act)).transpose()?;
        contrast.pairs.push(Pair { first: run, second: other });
    }
    Ok(contrast)
}

/// Runs windows until the side is warm, a bounded number of times.
fn warm_up(
    stage: &mut Stage<'_>,
    place: usize,
    bound: usize,
    counts: &str,
    warm: &mut dyn FnMut(&Home, &Broker) -> Result<f64>,
) -> Result<WarmUp> {
    stage.only(place)?;
    let (home, broker) = (stage.home, stage.broker(place)?);
    let side = broker.name();
    let mut windows = Vec::new();
    while windows.len() < bound && Warmth::of(&windows) == Warmth::Moving {
        home.say(&format!("warming {side}, window {}", windows.len() + 1));
        windows.push(warm(home, broker).with_context(|| format!("warming {side}"))?);
    }
    Ok(WarmUp { side, windows, counts: counts.to_owned() })
}

/// The higher one of those that are there.
fn higher(one: Option<f64>, other: Option<f64>) -> Option<f64> {
    one.into_iter().chain(other).max_by(f64::total_cmp)
}

/// The place whose primary figure is the best; the first of equals.
fn choose(rehearsed: &[(usize, Run)], primary: &str) -> Option<usize> {
    let better = figures::kind(primary).map_or(Better::Lower, |kind| kind.better);
    let cost = |run: &Run| {
        let found = run.figures.get(primary).copied().unwrap_or(f64::INFINITY);
        if better == Better::Higher { -found } else { found }
    };
    rehearsed.iter().min_by(|(_, a), (_, b)| cost(a).total_cmp(&cost(b))).map(|(place, _)| *place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(name: &str, value: f64) -> Run {
        Run { figures: [(name.to_owned(), value)].into(), ..Run::default() }
    }

    #[test]
    fn the_heap_that_does_better_counts() {
        let costs = [(1, run("cpu_s_per_gb", 3.0)), (2, run("cpu_s_per_gb", 2.0))];
        assert_eq!(choose(&costs, "cpu_s_per_gb"), Some(2));
        let rates = [(1, run("mb_per_s", 3.0)), (2, run("mb_per_s", 2.0))];
        assert_eq!(choose(&rates, "mb_per_s"), Some(1));
        assert_eq!(choose(&[], "mb_per_s"), None);
    }

    #[test]
    fn what_kafka_reached_in_an_earlier_scenario_counts_too() {
        assert_eq!(higher(Some(111_441.0), Some(230_508.0)), Some(230_508.0));
        assert_eq!(higher(Some(2.0), None), Some(2.0));
        assert_eq!(higher(None, None), None);
    }
}
