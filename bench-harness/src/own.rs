//! Directories that this program makes for itself below one that belongs to others too, such as `/tmp`. Each bears a mark, a
//! file, and only what bears it is removed: when its value goes, or by a later run when its process was killed.
#![allow(clippy::disallowed_methods, reason = "a harness makes and removes its directories")]

use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The file that says whose a directory is.
const MARK: &str = ".odradek-bench";

/// A directory of ours; it goes with the value.
#[derive(Debug)]
pub struct Own {
    path: PathBuf,
}

impl Own {
    /// Makes it.
    ///
    /// # Errors
    /// What the operating system says, also that it is there already.
    pub fn make(path: PathBuf) -> Result<Self> {
        std::fs::create_dir(&path).with_context(|| format!("{}", path.display()))?;
        // From here on it goes, whatever fails.
        let own = Self { path };
        let text = format!("made by odradek-bench, process {}, which removes it\n", std::process::id());
        std::fs::write(own.path.join(MARK), text).with_context(|| format!("{}", own.path.display()))?;
        Ok(own)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // What cannot be removed now is by a later run.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes what killed processes left below `parent`: directories named `prefix`, a process id that is nobody's, and
/// anything behind a dash, that bear the mark.
///
/// # Errors
/// What the operating system says.
pub fn sweep(parent: &Path, prefix: &str) -> Result<()> {
    for entry in std::fs::read_dir(parent).with_context(|| format!("{}", parent.display()))? {
        let entry = entry?;
        let name = entry.file_name();
        let rest = name.to_str().and_then(|name| name.strip_prefix(prefix)).unwrap_or_default();
        let process = rest.split('-').next().and_then(|id| id.parse::<u32>().ok());
        let is_dead = process.is_some_and(|id| !Path::new(&format!("/proc/{id}")).exists());
        // A link to a directory is no directory here.
        if is_dead && entry.file_type()?.is_dir() && entry.path().join(MARK).is_file() {
            // That of another user stays his.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    Ok(())
}

/// Whether a file can be made in a directory, or, if it is missing, in the nearest one above it that is there; nothing is
/// left of it.
///
/// # Errors
/// Why not.
pub fn try_dir(dir: &Path) -> io::Result<()> {
    let there = dir.ancestors().find(|above| above.symlink_metadata().is_ok());
    try_file(there.unwrap_or(Path::new(".")))
}

/// Whether a file can be made in a directory that is there; nothing is left of it.
///
/// # Errors
/// Why not.
pub fn try_file(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!("{MARK}-{}", std::process::id()));
    std::fs::OpenOptions::new().write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(parent: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(parent).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_directory_goes_with_its_value_and_is_not_taken_from_somebody_else() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("x-1");
        let own = Own::make(path.clone()).unwrap();
        std::fs::write(own.path().join("file"), "x").unwrap();
        assert!(Own::make(path.clone()).is_err() && path.join("file").exists(), "it is there already");
        drop(own);
        assert_eq!(names(parent.path()), Vec::<String>::new());
    }

    #[test]
    fn only_marked_directories_of_dead_processes_are_swept() {
        let parent = tempfile::tempdir().unwrap();
        let at = |name: &str| parent.path().join(name);
        for marked in ["x-4294967295", "x-4294967294-0", "x-1", "y-4294967295", "x-notes"] {
            std::mem::forget(Own::make(at(marked)).unwrap());
        }
        // Of the name, and made by somebody else.
        std::fs::create_dir(at("x-4294967293")).unwrap();
        std::fs::write(at("x-4294967292"), "a file").unwrap();
        std::os::unix::fs::symlink(at("y-4294967295"), at("x-4294967291")).unwrap();
        sweep(parent.path(), "x-").unwrap();
        let left = ["x-1", "x-4294967291", "x-4294967292", "x-4294967293", "x-notes", "y-4294967295"];
        assert_eq!(names(parent.path()), left);
        assert!(at("y-4294967295").join(MARK).is_file());
        assert!(sweep(&at("nowhere"), "x-").is_err());
    }
}
