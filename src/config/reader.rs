//! Parses settings one by one, and collects the problems.

use std::fmt;
use std::time::Duration;

use super::units;
use crate::domain::time::duration;

/// A problem of the settings, described for their author. Never holds a secret.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SettingProblem {
    /// The flag, such as `--tick`.
    pub flag: &'static str,
    pub text: String,
}

impl fmt::Display for SettingProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.flag, self.text)
    }
}

/// The range of a flag, both ends included, as its help shows it.
#[derive(Clone, Copy, Debug)]
pub(super) struct FlagRange {
    pub flag: &'static str,
    pub from: &'static str,
    pub to: &'static str,
}

/// Collects problems while settings are read. A setting that could not be read gets a placeholder
/// value, which is never used.
#[derive(Debug, Default)]
pub(super) struct SettingsReader {
    problems: Vec<SettingProblem>,
}

impl SettingsReader {
    /// Reads true or false, as people write them.
    pub fn truth(&mut self, flag: &'static str, text: &str) -> bool {
        match text.trim() {
            "true" | "1" | "yes" => true,
            "false" | "0" | "no" | "" => false,
            other => {
                self.problem(flag, format!("`{other}` is neither true nor false"));
                false
            }
        }
    }

    pub fn problem(&mut self, flag: &'static str, text: impl Into<String>) {
        self.problems.push(SettingProblem { flag, text: text.into() });
    }

    pub fn duration(&mut self, limits: FlagRange, text: &str) -> Duration {
        self.bounded(limits, text, duration::parse)
    }

    pub fn whole_millis(&mut self, limits: FlagRange, text: &str) -> Duration {
        let span = self.duration(limits, text);
        if !span.subsec_nanos().is_multiple_of(1_000_000) {
            self.problem(limits.flag, format!("`{text}` is not a whole number of milliseconds"));
        }
        span
    }

    pub fn size(&mut self, limits: FlagRange, text: &str) -> usize {
        self.bounded(limits, text, units::size)
    }

    pub fn count(&mut self, limits: FlagRange, text: &str) -> usize {
        self.bounded(limits, text, units::count)
    }

    fn bounded<T>(
        &mut self,
        limits: FlagRange,
        text: &str,
        read: fn(&str) -> Result<T, String>,
    ) -> T
    where
        T: PartialOrd + Default,
    {
        let FlagRange { flag, from, to } = limits;
        match (read(text), read(from), read(to)) {
            (Ok(value), Ok(least), Ok(most)) if least <= value && value <= most => return value,
            (Err(reason), ..) => self.problem(flag, reason),
            _ => self.problem(flag, format!("`{text}` is out of range; expected {from} to {to}")),
        }
        T::default()
    }

    /// Returns true when the flag had no problem.
    pub fn took(&self, flag: &str) -> bool {
        self.problems.iter().all(|problem| problem.flag != flag)
    }

    /// Returns `settings`, unless there was a problem.
    pub fn finish<T>(self, settings: T) -> Result<T, Vec<SettingProblem>> {
        if self.problems.is_empty() { Ok(settings) } else { Err(self.problems) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: FlagRange = FlagRange { flag: "--tick", from: "1ms", to: "1s" };

    #[test]
    fn both_ends_of_the_limits_are_taken() {
        let mut reader = SettingsReader::default();
        assert_eq!(reader.duration(TICK, "1ms"), Duration::from_millis(1));
        assert_eq!(reader.duration(TICK, "1s"), Duration::from_secs(1));
        assert!(reader.finish(()).is_ok());
    }

    #[test]
    fn every_problem_is_kept_and_names_its_flag() {
        let mut reader = SettingsReader::default();
        reader.duration(TICK, "2s");
        reader.duration(TICK, "x");
        let problems = reader.finish(()).unwrap_err();
        assert_eq!(problems.len(), 2);
        assert_eq!(problems[0].to_string(), "--tick: `2s` is out of range; expected 1ms to 1s");
    }
}
