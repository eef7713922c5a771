//! What `groups` takes, which of it belongs to which load, and what is the default there.

use std::time::Duration;

use anyhow::Result;
use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{Creation, Output, Rate, Sampled, Target, duration, not_negative, rate, refuse};

/// What the groups do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum GroupLoad {
    /// Members of one group join, and are restarted one after the other.
    Join,
    /// Members commit offsets on a schedule.
    Commit,
    /// Members of many groups say that they are alive.
    Heartbeat,
}

/// `groups`.
#[derive(Clone, Debug, Args, Serialize)]
pub struct Groups {
    #[command(flatten)]
    #[serde(flatten)]
    pub output: Output,
    #[command(flatten)]
    #[serde(flatten)]
    pub sampled: Sampled,
    #[command(flatten)]
    #[serde(flatten)]
    pub target: Target,
    /// What the groups do.
    #[arg(long, value_enum)]
    pub load: GroupLoad,
    /// Partitions of the topic, which is created if missing.
    #[arg(long, default_value_t = 100)]
    pub partitions: i32,
    /// Groups; join: 1, commit: 100, heartbeat: 1000.
    #[arg(long, value_name = "N")]
    pub groups: Option<usize>,
    /// Members of each group; join: 100, commit: 1, heartbeat: 10.
    #[arg(long, value_name = "N")]
    pub members: Option<usize>,
    /// Members give themselves a name (KIP-345); a restarted one comes back under it without a rebalance.
    #[arg(long)]
    pub static_members: bool,
    /// join: how many members are restarted; as many as there are.
    #[arg(long, value_name = "N")]
    pub restarts: Option<u64>,
    /// Time between two heartbeats of a member, in milliseconds. heartbeat: 0 is as fast as answers come.
    #[arg(long, value_name = "MS", default_value_t = 3000.0, value_parser = not_negative)]
    pub heartbeat_ms: f64,
    /// Time without a heartbeat after which a member is gone, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 45_000)]
    pub session_timeout_ms: i32,
    /// Time that a rebalance waits for a member, in milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 300_000)]
    pub rebalance_timeout_ms: i32,
    /// commit: commits per second, or `max`.
    #[arg(long, value_name = "N|max", default_value = "10000", value_parser = rate)]
    pub rate: Rate,
    /// commit: partitions of each commit.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub commit_partitions: i32,
    /// commit: connections; the groups are dealt out among them.
    #[arg(long, default_value_t = 10)]
    pub connections: usize,
    /// commit: requests without an answer on one connection.
    #[arg(long, default_value_t = 5)]
    pub in_flight: usize,
    /// commit and heartbeat: seconds of the run, warm-up included.
    #[arg(long, value_name = "S", default_value_t = 10.0, value_parser = not_negative)]
    pub duration: f64,
    /// commit and heartbeat: seconds at the beginning that are not measured.
    #[arg(long, value_name = "S", default_value_t = 0.0, value_parser = not_negative)]
    pub warmup: f64,
    /// How long before a due request the generator stops sleeping, in microseconds.
    #[arg(long, value_name = "US", default_value_t = 60)]
    pub spin_us: u64,
}

impl Groups {
    /// With what was not given, and checked for what clap cannot.
    ///
    /// # Errors
    /// The first argument that cannot be.
    pub fn resolved(mut self) -> Result<Self> {
        let (groups, members) = match self.load {
            GroupLoad::Join => (1, 100),
            GroupLoad::Commit => (100, 1),
            GroupLoad::Heartbeat => (1000, 10),
        };
        let groups = *self.groups.get_or_insert(groups);
        let members = *self.members.get_or_insert(members);
        if self.load == GroupLoad::Join {
            self.restarts.get_or_insert(u64::try_from(members)?);
        }
        if !(1..=100_000).contains(&groups) || !(1..=10_000).contains(&members) || groups * members > 100_000
        {
            refuse!("--groups and --members are at least 1, and at most 100000 members in all");
        }
        self.creation().check()?;
        if !(1..=86_400_000).contains(&self.session_timeout_ms)
            || !(1..=86_400_000).contains(&self.rebalance_timeout_ms)
        {
            refuse!("--session-timeout-ms and --rebalance-timeout-ms are from 1 to a day");
        }
        if self.heartbeat_ms * 3.0 > f64::from(self.session_timeout_ms) {
            refuse!(
                "--heartbeat-ms is at most a third of --session-timeout-ms, or members are lost by chance"
            );
        }
        duration("duration", self.duration)?;
        duration("warmup", self.warmup)?;
        match self.load {
            GroupLoad::Join => self.check_join(groups)?,
            GroupLoad::Commit => self.check_commit(groups, members)?,
            GroupLoad::Heartbeat => self.check_heartbeat()?,
        }
        Ok(self)
    }

    fn check_join(&self, groups: usize) -> Result<()> {
        if groups != 1 {
            refuse!("--load join has one group");
        }
        if self.heartbeat_ms < 1.0 {
            refuse!("--load join: --heartbeat-ms is at least 1");
        }
        if self.restarts.is_some_and(|restarts| restarts > 100_000) {
            refuse!("--restarts is at most 100000");
        }
        Ok(())
    }

    fn check_commit(&self, groups: usize, members: usize) -> Result<()> {
        if members != 1 {
            refuse!("--load commit has one member in each group");
        }
        if !(1..=self.partitions).contains(&self.commit_partitions) {
            refuse!("--commit-partitions is from 1 to --partitions");
        }
        if !(1..=100_000).contains(&self.connections) || !(1..=1000).contains(&self.in_flight) {
            refuse!("--connections is a number from 1 to 100000, --in-flight from 1 to 1000");
        }
        if groups < self.connections {
            refuse!("a group has one connection: --groups is at least --connections");
        }
        self.check_lengths()?;
        // Commits are all that tells the coordinator that a member is alive.
        let between_ms = match self.rate {
            Rate::PerSecond(rate) => 1000 * u64::try_from(groups)? / rate,
            Rate::Max => 0,
        };
        if between_ms.saturating_mul(3) > u64::from(self.session_timeout_ms.unsigned_abs()) {
            refuse!("a group commits every {between_ms} ms: too seldom to stay within --session-timeout-ms");
        }
        Ok(())
    }

    fn check_heartbeat(&self) -> Result<()> {
        self.check_lengths()?;
        if (self.duration - self.warmup) * 1000.0 < self.heartbeat_ms {
            refuse!("every member beats at least once: --duration is --warmup and --heartbeat-ms at least");
        }
        Ok(())
    }

    fn check_lengths(&self) -> Result<()> {
        if self.duration <= self.warmup {
            refuse!("--duration includes --warmup and must be longer");
        }
        Ok(())
    }

    /// The topic.
    pub fn creation(&self) -> Creation {
        Creation { partitions: self.partitions, topic_config: Vec::new() }
    }

    /// Time between two heartbeats.
    ///
    /// # Errors
    /// A number that is no duration.
    pub fn heartbeat(&self) -> Result<Duration> {
        duration("heartbeat-ms", self.heartbeat_ms / 1e3)
    }
}

#[cfg(test)]
mod tests {
    use anyhow::bail;
    use clap::Parser;

    use super::super::{Arguments, Command, Refused};
    use super::*;

    fn groups(words: &[&str]) -> Result<Groups> {
        let all = ["odradek-bench", "groups"].iter().chain(words);
        match Arguments::try_parse_from(all)?.command {
            Command::Groups(groups) => groups.resolved(),
            other => bail!("{other:?}"),
        }
    }

    #[test]
    fn each_load_has_its_own_numbers_and_a_report_shows_them() {
        let inputs =
            |load| serde_json::to_value(groups(&["--load", load]).expect("arguments")).expect("JSON");
        let join = inputs("join");
        assert_eq!(
            (&join["load"], &join["groups"], &join["members"], &join["restarts"]),
            (&"join".into(), &1.into(), &100.into(), &100.into())
        );
        let commit = inputs("commit");
        assert_eq!(
            (&commit["rate"], &commit["groups"], &commit["members"]),
            (&10_000.into(), &100.into(), &1.into())
        );
        let beat = inputs("heartbeat");
        assert_eq!(
            (&beat["groups"], &beat["members"], &beat["heartbeat_ms"]),
            (&1000.into(), &10.into(), &3000.0.into())
        );
        assert!(groups(&[]).is_err(), "there is no load that is meant without a word");
    }

    #[test]
    fn what_cannot_be_is_said_in_a_sentence() {
        for (words, part) in [
            (&["--load", "join", "--groups", "2"][..], "one group"),
            (&["--load", "join", "--heartbeat-ms", "0"][..], "--heartbeat-ms"),
            (&["--load", "join", "--members", "0"][..], "--members"),
            (&["--load", "heartbeat", "--groups", "20000"][..], "100000 members in all"),
            (&["--load", "heartbeat", "--duration", "2"][..], "beats at least once"),
            (&["--load", "heartbeat", "--heartbeat-ms", "20000", "--duration", "99"][..], "third"),
            (&["--load", "commit", "--members", "2"][..], "one member"),
            (&["--load", "commit", "--commit-partitions", "101"][..], "--commit-partitions"),
            (&["--load", "commit", "--groups", "5"][..], "at least --connections"),
            (&["--load", "commit", "--rate", "5"][..], "too seldom"),
            (&["--load", "commit", "--duration", "5", "--warmup", "5"][..], "--warmup"),
            (&["--load", "commit", "--partitions", "0"][..], "--partitions"),
            (&["--load", "commit", "--warmup", "NaN"][..], "--warmup"),
        ] {
            let error = groups(words).expect_err("refused");
            assert!(error.is::<Refused>() || error.is::<clap::Error>(), "{words:?} is exit code 2");
            let said = error.to_string();
            assert!(said.contains(part), "{words:?}: {said}");
        }
    }
}
