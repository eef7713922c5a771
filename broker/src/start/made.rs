//! What a start makes in its directories before it has begun: where it is refused after that, it goes again, and all that
//! was there before stays. Knows names only; called by the start, under the locks of the log dirs.

use std::io;
use std::path::{Path, PathBuf};

use storage::names::{LOCK, META_PROPERTIES};

use super::dirs::absolute;
use crate::config::broker::BrokerConfig;

/// What was not there before.
#[derive(Debug)]
pub struct Made {
    files: Vec<PathBuf>,
    /// Inner ones before those that they are in.
    dirs: Vec<PathBuf>,
}

impl Made {
    /// Notes what is not there yet.
    pub fn before(config: &BrokerConfig) -> Self {
        let mut homes: Vec<PathBuf> = config.storage.log_dirs.iter().map(|dir| absolute(dir)).collect();
        let of_home = |home: &PathBuf| [home.join(META_PROPERTIES), home.join(LOCK)];
        let mut files: Vec<PathBuf> = homes.iter().flat_map(of_home).collect();
        if config.zookeeper.is_none() {
            let store = absolute(&config.storage.metadata_file);
            homes.extend(store.parent().map(Path::to_owned));
            files.push(store);
        }
        files.retain(|file| is_missing(file));
        let dirs = homes.iter().flat_map(|home| home.ancestors()).filter(|dir| is_missing(dir));
        Self { files, dirs: dirs.map(Path::to_owned).collect() }
    }

    /// Removes what is there now. What cannot be removed stays, as does a directory in which something else is.
    #[allow(clippy::disallowed_methods, reason = "no shard runs any more")]
    pub fn undo(self) {
        for file in &self.files {
            let _ = std::fs::remove_file(file);
        }
        for dir in &self.dirs {
            let _ = std::fs::remove_dir(dir);
        }
    }
}

fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::broker::Surroundings;
    use crate::config::load::{MachineSecrets, load};
    use crate::config::parse::Sources;

    fn config(log_dirs: &[&Path]) -> BrokerConfig {
        let log_dirs: Vec<_> = log_dirs.iter().map(|dir| dir.display().to_string()).collect();
        let overrides = vec![format!("log.dirs={}", log_dirs.join(","))];
        let sources = Sources { overrides, ..Sources::default() };
        load(&sources, &MachineSecrets, &Surroundings::find()).config.unwrap()
    }

    fn fill(dir: &Path, files: &[&str]) {
        std::fs::create_dir_all(dir).unwrap();
        files.iter().for_each(|file| drop(std::os::unix::net::UnixListener::bind(dir.join(file)).unwrap()));
    }

    #[test]
    fn what_was_made_goes_and_what_was_there_stays() {
        let root = tempfile::tempdir().unwrap();
        let (old, new, full) =
            (root.path().join("old"), root.path().join("new/a/logs"), root.path().join("new/b"));
        fill(&old, &[META_PROPERTIES]);
        let made = Made::before(&config(&[&old, &new, &full]));
        for dir in [&old, &new, &full] {
            let missing: Vec<&str> =
                [META_PROPERTIES, LOCK].into_iter().filter(|file| is_missing(&dir.join(file))).collect();
            fill(dir, &missing);
        }
        fill(&old, &["odradek-metadata.redb"]);
        fill(&full, &["somebody-elses"]);
        made.undo();
        assert!(old.join(META_PROPERTIES).exists() && is_missing(&old.join(LOCK)));
        assert!(is_missing(&old.join("odradek-metadata.redb")));
        assert!(is_missing(&root.path().join("new/a")));
        assert!(full.join("somebody-elses").exists() && is_missing(&full.join(LOCK)));
    }
}
