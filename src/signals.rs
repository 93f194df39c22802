//! Signals that end the process, and signals inherited as ignored.
//!
//! A process that listens for a signal replaces the inherited behaviour. `nohup`, and a shell with
//! a command in the background, pass SIGHUP or SIGINT to the command as ignored. Both stay ignored
//! here. SIGTERM always counts, because supervisors end a process by it. The kernel does not
//! deliver a signal without a handler to the first process of a container, so every command needs
//! handlers there.

use std::io;

use tokio::signal::unix::{Signal, SignalKind, signal};

/// A signal that ends processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EndSignal {
    /// The terminal is closed.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    Terminate,
}

impl EndSignal {
    pub const ALL: [Self; 3] = [Self::Hangup, Self::Interrupt, Self::Terminate];

    fn kind(self) -> SignalKind {
        match self {
            Self::Hangup => SignalKind::hangup(),
            Self::Interrupt => SignalKind::interrupt(),
            Self::Terminate => SignalKind::terminate(),
        }
    }

    /// Returns the exit code of a shell for a process killed by a signal: 128 plus the signal's
    /// number.
    pub fn exit_code(self) -> i32 {
        128 + self.kind().as_raw_value()
    }
}

/// Listens for signals from [`Self::listen`] on. A signal between two waits is not missed.
#[derive(Debug, Default)]
pub struct Signals {
    /// `None` when the signal was inherited as ignored, and stays ignored.
    hangup: Option<Signal>,
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Signals {
    /// Listens for `endings`, unless they were inherited as ignored. Other signals keep their
    /// behaviour. Only the first listener of a process sees the inherited state.
    ///
    /// # Errors
    /// When the system does not accept a handler.
    pub fn listen(endings: &[EndSignal]) -> io::Result<Self> {
        // Without /proc, no signal is known to be ignored.
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let ignored = ignored_mask(&status);
        let listen = |ending: EndSignal| {
            let is_ignored = ending != EndSignal::Terminate && has(ignored, ending.kind());
            (endings.contains(&ending) && !is_ignored).then(|| signal(ending.kind())).transpose()
        };
        Ok(Self {
            hangup: listen(EndSignal::Hangup)?,
            interrupt: listen(EndSignal::Interrupt)?,
            terminate: listen(EndSignal::Terminate)?,
        })
    }

    /// Waits for the next signal. Cancel-safe: a cancelled wait has taken no signal.
    pub async fn next(&mut self) -> EndSignal {
        tokio::select! {
            () = heard(self.hangup.as_mut()) => EndSignal::Hangup,
            () = heard(self.interrupt.as_mut()) => EndSignal::Interrupt,
            () = heard(self.terminate.as_mut()) => EndSignal::Terminate,
        }
    }
}

async fn heard(signal: Option<&mut Signal>) {
    let heard = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if heard.is_none() {
        std::future::pending::<()>().await;
    }
}

/// Returns true for the first process of a container, on which a signal without a handler has no
/// effect.
pub fn needs_handlers() -> bool {
    std::process::id() == 1
}

/// Returns the signals that `/proc/self/status` lists as ignored, one bit each. Returns 0 when the
/// list is missing.
fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

fn has(mask: u64, kind: SignalKind) -> bool {
    let bit = u32::try_from(kind.as_raw_value() - 1).unwrap_or(u32::MAX);
    mask.checked_shr(bit).is_some_and(|mask| mask & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_ignored_is_read_from_the_mask_of_the_kernel() {
        let status = "Name:\tpunctual\n\
                      SigBlk:\t0000000000000000\n\
                      SigIgn:\t0000000000001001\n\
                      SigCgt:\t0000000000000002\n";
        let mask = ignored_mask(status);
        assert_eq!(EndSignal::ALL.map(|ending| has(mask, ending.kind())), [true, false, false]);
        assert_eq!(
            EndSignal::ALL.map(|ending| has(ignored_mask("SigIgn:\t2"), ending.kind())),
            [false, true, false]
        );
        assert_eq!((ignored_mask(""), ignored_mask("SigIgn:\tx")), (0, 0));
    }

    #[test]
    fn exit_codes_are_those_of_a_process_that_was_killed() {
        assert_eq!(EndSignal::ALL.map(EndSignal::exit_code), [129, 130, 143]);
    }
}
