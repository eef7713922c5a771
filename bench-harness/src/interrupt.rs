//! Ctrl-C and SIGTERM as a question: whoever waits asks, fails, and drops what it started. Knows nothing of what that is.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, bail};

use crate::clock::{Clock, saturated_nanos};
use crate::commands::pause;

/// How often who waits asks.
const LOOK: Duration = Duration::from_millis(10);

/// Whether a signal came.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Takes the signals over.
    ///
    /// # Errors
    /// The operating system refuses.
    pub fn install() -> Result<Self> {
        let flag = Self::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            // A second one ends us at once; the death signal then ends the children that have one.
            signal_hook::flag::register_conditional_shutdown(signal, 130, Arc::clone(&flag.0))?;
            signal_hook::flag::register(signal, Arc::clone(&flag.0))?;
        }
        Ok(flag)
    }

    /// As if a signal had come.
    #[cfg(test)]
    pub fn raise(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// # Errors
    /// When a signal came.
    pub fn check(&self) -> Result<()> {
        if self.0.load(Ordering::Relaxed) {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Waits, if no signal comes.
    ///
    /// # Errors
    /// When a signal came.
    pub fn pause(&self, duration: Duration) -> Result<()> {
        let (clock, until) = (Clock::start(), saturated_nanos(duration));
        while clock.now() < until {
            self.check()?;
            pause(LOOK.min(duration));
        }
        self.check()
    }
}
