//! The control group of this process (cgroup v2), as far as it limits memory: a group that may hold little memory may have
//! few dirty pages too, and the kernel slows its writers down by its own share, long before those of the whole machine.
//! Knows no file system: whoever asks reads files for it. Called by `glommio` for the pace of writes, and by the start of
//! the broker for what memory there is.

use std::path::{Path, PathBuf};

use super::pace::{DirtyPages, counter};

/// Where the groups are.
const ROOT: &str = "/sys/fs/cgroup";

/// Groups within groups that are looked at: nobody nests them as deep.
const LEVELS_MAX: usize = 16;

/// A control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its directory, and those of the groups it is in: each may have a limit.
    dirs: Vec<PathBuf>,
}

impl Group {
    /// The group of the process whose `/proc/self/cgroup` this is; `None` where memory is not counted by cgroup v2.
    pub fn of(own: &str) -> Option<Self> {
        let mut lines = own.lines().filter_map(|line| line.split_once(':')?.1.split_once(':'));
        if lines.clone().any(|(controllers, _)| controllers.split(',').any(|name| name == "memory")) {
            return None;
        }
        let (_, path) = lines.find(|(controllers, _)| controllers.is_empty())?;
        let path = Path::new(path.strip_prefix('/')?);
        // Outside of what is mounted here.
        if path.components().any(|part| part.as_os_str() == "..") {
            return None;
        }
        let dirs = path.ancestors().map(|dir| Path::new(ROOT).join(dir)).take(LEVELS_MAX).collect();
        Some(Self { dirs })
    }

    /// Bytes that the group may hold; `None` if it has no limit. `read` gives the content of a file, if there is one.
    pub fn limit_bytes(&self, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
        self.dirs.iter().filter_map(|dir| limit_of(dir, &read)).min()
    }

    /// Dirty pages of the group and its share of the machine's limits, by the kernel's rule (`domain_dirty_limits` in
    /// `mm/page-writeback.c`); `None` if it has no limit: then it is slowed down with all others only.
    pub(super) fn dirty_pages(
        &self,
        vmstat: &str,
        page_bytes: u64,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Option<DirtyPages> {
        let mut headroom: Option<u64> = None;
        for dir in &self.dirs {
            let Some(limit) = limit_of(dir, &read) else { continue };
            let used = number(&read(&dir.join("memory.current"))?)?;
            let left = limit.saturating_sub(used);
            headroom = Some(headroom.map_or(left, |least| least.min(left)));
        }
        let headroom = headroom? / page_bytes.max(1);
        // A group that does not count for itself counts with the one it is in.
        let stat = self.dirs.iter().find_map(|dir| read(&dir.join("memory.stat")))?;
        let pages = |name| counter(&stat, name).map(|bytes| bytes / page_bytes.max(1));
        let dirty = pages("file_dirty")?.saturating_add(pages("file_writeback")?);
        let file = pages("inactive_file")?.saturating_add(pages("active_file")?);
        let all = DirtyPages::parse(vmstat)?;
        // What the machine's limits are parts of.
        let available = ["nr_free_pages", "nr_inactive_file", "nr_active_file"]
            .iter()
            .try_fold(0_u64, |sum, name| Some(sum.saturating_add(counter(vmstat, name)?)))?;
        let clean_elsewhere = available.saturating_sub(all.now).saturating_sub(file.saturating_sub(dirty));
        let own = file.saturating_add(headroom.min(clean_elsewhere));
        let part = |limit: u64| {
            let part = u128::from(limit) * u128::from(own) / u128::from(available.max(1));
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Some(DirtyPages { now: dirty, background: part(all.background), throttled: part(all.throttled) })
    }
}

/// The limit of one group: above `memory.high` it is slowed down, above `memory.max` it is killed.
fn limit_of(dir: &Path, read: impl Fn(&Path) -> Option<String>) -> Option<u64> {
    ["memory.max", "memory.high"].iter().filter_map(|name| number(&read(&dir.join(name))?)).min()
}

/// A number, as the only content of a file; `None` for `max`.
fn number(text: &str) -> Option<u64> {
    text.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const PAGE: u64 = 4096;

    /// A machine of 1,000,000 pages that may be dirty, 1,000 of which are.
    const VMSTAT: &str = "nr_free_pages 600000\nnr_inactive_file 300000\nnr_active_file 100000\nnr_dirty 600\n\
                          nr_writeback 400\nnr_dirty_threshold 200000\nnr_dirty_background_threshold 100000\n";

    const STAT: &str = "anon 4096000\nfile 81920000\nfile_mapped 0\nfile_dirty 2048000\nfile_writeback 409600\n\
                        inactive_anon 1\ninactive_file 40960000\nactive_file 20480000\n";

    fn read(files: &[(&str, &str)]) -> impl Fn(&Path) -> Option<String> {
        let files: BTreeMap<PathBuf, String> =
            files.iter().map(|(name, text)| (Path::new(ROOT).join(name), (*text).to_owned())).collect();
        move |path| files.get(path).cloned()
    }

    #[test]
    fn the_group_is_found_where_memory_is_counted_by_the_second_version() {
        let dirs = |own| Group::of(own).map(|group| group.dirs);
        let own = "0::/system.slice/odradek.service\n";
        let expected =
            ["system.slice/odradek.service", "system.slice", ""].map(|dir| Path::new(ROOT).join(dir));
        assert_eq!(dirs(own), Some(expected.to_vec()));
        // In a container it sees itself as the root.
        assert_eq!(dirs("0::/\n"), Some(vec![PathBuf::from("/sys/fs/cgroup/")]));
        let hybrid = "4:memory:/docker/7fdd\n1:cpu,cpuacct:/\n0::/docker/7fdd\n";
        assert_eq!(dirs(hybrid), None);
        assert_eq!(dirs("5:cpu,memory:/x\n"), None);
        for odd in ["", "0::\n", "0::/../other\n", "nonsense", ":::", "1:name=systemd:/x\n"] {
            assert_eq!(dirs(odd), None, "{odd}");
        }
        let deep = format!("0::{}\n", "/a".repeat(100_000));
        assert_eq!(dirs(&deep).map(|dirs| dirs.len()), Some(LEVELS_MAX));
    }

    #[test]
    fn the_limit_is_the_least_of_all_groups_around() {
        let group = Group::of("0::/outer/inner\n").unwrap();
        let with = |files| group.limit_bytes(read(files));
        assert_eq!(with(&[]), None, "no such files in the root");
        assert_eq!(with(&[("outer/inner/memory.max", "max\n"), ("outer/memory.max", "max\n")]), None);
        let both = [("outer/inner/memory.max", "900\n"), ("outer/memory.max", "800\n")];
        assert_eq!(with(&both), Some(800));
        let high = [("outer/inner/memory.max", "900\n"), ("outer/inner/memory.high", "700\n")];
        assert_eq!(with(&high), Some(700));
        assert_eq!(with(&[("outer/inner/memory.max", "-1\n")]), None);
    }

    #[test]
    fn a_group_has_its_share_of_the_machines_limits() {
        let group = Group::of("0::/outer/inner\n").unwrap();
        let dirty = |files| group.dirty_pages(VMSTAT, PAGE, read(files));
        let limited = [
            ("outer/inner/memory.stat", STAT),
            ("outer/inner/memory.max", "163840000\n"),
            ("outer/inner/memory.high", "max\n"),
            ("outer/inner/memory.current", "143360000\n"),
        ];
        // 15,000 pages of files and room for 5,000 more are a fiftieth of what the machine has.
        let expected = DirtyPages { now: 600, background: 2000, throttled: 4000 };
        assert_eq!(dirty(&limited), Some(expected));
        // The group around it has less room.
        let outer = [("outer/memory.max", "4096000\n"), ("outer/memory.current", "99999999\n")];
        let both: Vec<_> = limited.into_iter().chain(outer).collect();
        let expected = DirtyPages { now: 600, background: 1500, throttled: 3000 };
        assert_eq!(dirty(&both), Some(expected));
        // Its own group is not counted apart.
        let above = [
            ("outer/memory.stat", STAT),
            ("outer/memory.max", "163840000\n"),
            ("outer/memory.current", "143360000\n"),
        ];
        assert_eq!(dirty(&above).map(|pages| pages.throttled), Some(4000));
    }

    #[test]
    fn without_a_limit_or_with_half_the_files_nothing_is_said() {
        let group = Group::of("0::/g\n").unwrap();
        let dirty = |files| group.dirty_pages(VMSTAT, PAGE, read(files));
        assert_eq!(dirty(&[]), None);
        assert_eq!(
            dirty(&[("g/memory.stat", STAT), ("g/memory.max", "max\n"), ("g/memory.current", "1\n")]),
            None
        );
        assert_eq!(dirty(&[("g/memory.stat", STAT), ("g/memory.max", "1000\n")]), None);
        assert_eq!(dirty(&[("g/memory.max", "1000\n"), ("g/memory.current", "1\n")]), None);
        let short = [("g/memory.stat", "anon 1\n"), ("g/memory.max", "1000\n"), ("g/memory.current", "1\n")];
        assert_eq!(dirty(&short), None);
        let huge = [
            ("g/memory.stat", STAT),
            ("g/memory.max", "18446744073709551615\n"),
            ("g/memory.current", "0\n"),
        ];
        let all = group.dirty_pages(VMSTAT, PAGE, read(&huge)).unwrap();
        assert!(all.throttled <= 200_000, "never more than the machine's: {all:?}");
        assert_eq!(group.dirty_pages("nr_dirty 1\n", PAGE, read(&huge)), None);
        assert!(group.dirty_pages(VMSTAT, 0, read(&huge)).is_some());
    }
}
