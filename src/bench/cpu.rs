//! Reads the cost of processes from `/proc`: CPU time with that of their children, and memory.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use az::SaturatingAs as _;
use procfs::process::{Process, Stat};

use super::results::report::Usage;
use super::results::{float, ratio};

/// A watched process: a name for people, and the process id or a file that holds it. The file is
/// read at each sample, because the process may start later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedProcess {
    pub name: String,
    pub process: WatchedId,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchedId {
    Number(u32),
    File(PathBuf),
}

/// CPU time and memory of all watched processes at one moment.
#[derive(Clone, Debug, Default)]
pub struct CpuSample {
    used: Vec<Option<Used>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    cpu: Duration,
    bytes: u64,
}

impl std::str::FromStr for WatchedProcess {
    type Err = String;

    /// Parses `node=123`, or `node=FILE` with a file holding the process id.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "write it like node=123, or node=FILE with a file that has the process id".to_owned()
        };
        let (name, process) = text
            .split_once('=')
            .filter(|(name, rest)| !name.is_empty() && !rest.is_empty())
            .ok_or_else(wrong)?;
        let process = process
            .parse()
            .map_or_else(|_no_number| WatchedId::File(process.into()), WatchedId::Number);
        Ok(Self { name: name.to_owned(), process })
    }
}

impl WatchedProcess {
    fn number(&self) -> Option<u32> {
        match &self.process {
            WatchedId::Number(number) => Some(*number),
            WatchedId::File(path) => fs::read_to_string(path).ok()?.trim().parse().ok(),
        }
    }

    /// Returns true when the process exists now.
    pub fn is_there(&self) -> bool {
        self.number().is_some_and(|number| process_of(number).is_some())
    }
}

impl CpuSample {
    /// Takes a sample. A process that does not exist has none.
    pub fn take(watched: &[WatchedProcess]) -> Self {
        let children = if watched.is_empty() { HashMap::new() } else { cpu_of_children() };
        let used = |watched: &WatchedProcess| {
            let number = watched.number()?;
            let process = process_of(number)?;
            let own = cpu_of(&process.stat().ok()?);
            let of_children = children.get(&process.pid).copied().unwrap_or_default();
            Some(Used { cpu: own + of_children, bytes: resident(&process) })
        };
        Self { used: watched.iter().map(used).collect() }
    }

    /// Returns the usage from `earlier` to this sample: per task, for `task_count` tasks, and as a
    /// share of one core over `span`.
    pub fn since(
        &self,
        earlier: &Self,
        watched: &[WatchedProcess],
        task_count: u64,
        span: Duration,
    ) -> Vec<Usage> {
        let pairs = watched.iter().zip(self.used.iter().zip(&earlier.used));
        let usage = |(watched, (now, then)): (&WatchedProcess, (&Option<Used>, &Option<Used>))| {
            let now = (*now)?;
            let cpu = now.cpu.saturating_sub(then.unwrap_or_default().cpu);
            Some(Usage {
                name: watched.name.clone(),
                us_per_task: ratio(cpu.as_secs_f64() * 1e6, float(task_count)),
                cores: ratio(cpu.as_secs_f64(), span.as_secs_f64()),
                resident_bytes: now.bytes,
            })
        };
        pairs.filter_map(usage).collect()
    }

    /// Returns the resident memory of the watched processes by name.
    pub fn resident(&self, watched: &[WatchedProcess]) -> Vec<(String, u64)> {
        watched
            .iter()
            .zip(&self.used)
            .filter_map(|(watched, used)| Some((watched.name.clone(), (*used)?.bytes)))
            .collect()
    }
}

fn process_of(number: u32) -> Option<Process> {
    Process::new(i32::try_from(number).ok()?).ok()
}

/// Returns the CPU time of a process and of its children that have ended and were waited for.
fn cpu_of(stat: &Stat) -> Duration {
    let of_children = stat.cutime.saturating_add(stat.cstime).saturating_as::<u64>();
    let ticks = stat.utime.saturating_add(stat.stime).saturating_add(of_children);
    let micros_per_tick = 1_000_000 / procfs::ticks_per_second().max(1);
    Duration::from_micros(ticks.saturating_mul(micros_per_tick))
}

fn resident(process: &Process) -> u64 {
    let kibibytes = process.status().ok().and_then(|status| status.vmrss);
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Returns the CPU time of the children of each process.
fn cpu_of_children() -> HashMap<i32, Duration> {
    let mut children: HashMap<i32, Duration> = HashMap::new();
    let Ok(processes) = procfs::process::all_processes() else { return children };
    for stat in processes.flatten().filter_map(|process| process.stat().ok()) {
        *children.entry(stat.ppid).or_default() += cpu_of(&stat);
    }
    children
}

#[cfg(test)]
mod tests {
    use procfs::FromRead as _;

    use super::*;

    #[test]
    fn a_process_is_named_by_its_number_or_by_a_file() {
        let number = WatchedProcess { name: "node".to_owned(), process: WatchedId::Number(12) };
        assert_eq!("node=12".parse(), Ok(number));
        let file = WatchedProcess {
            name: "node".to_owned(),
            process: WatchedId::File("run/node.pid".into()),
        };
        assert_eq!("node=run/node.pid".parse(), Ok(file));
        for wrong in ["node", "=1", "node="] {
            assert!(wrong.parse::<WatchedProcess>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_are_read_whatever_the_program_is_called() {
        let fields = "S 5 7 7 0 -1 4194560 1 0 0 0 150 50 3 4 20 0 4 0 12345 1 1 1 ".to_owned();
        let text = format!("7 (a) b) {fields}{}", "0 ".repeat(27));
        let stat = Stat::from_read(text.as_bytes()).unwrap();
        assert_eq!((stat.ppid, cpu_of(&stat)), (5, Duration::from_millis(2070)));
        assert!(Stat::from_read("7 (x) S 1".as_bytes()).is_err());
    }

    #[test]
    fn what_was_used_is_told_by_task_and_by_core() {
        let watched = [WatchedProcess { name: "node".to_owned(), process: WatchedId::Number(1) }];
        let sample = |millis| CpuSample {
            used: vec![Some(Used { cpu: Duration::from_millis(millis), bytes: 7 })],
        };
        let usage = sample(1500).since(&sample(500), &watched, 1000, Duration::from_secs(10));
        assert_eq!(
            (usage[0].us_per_task, usage[0].cores, usage[0].resident_bytes),
            (1000.0, 0.1, 7)
        );
    }

    #[test]
    fn this_process_can_be_watched_and_one_that_is_not_there_is_left_out() {
        let watched = [format!("me={}", std::process::id()), "gone=4294967295".to_owned()]
            .map(|text| text.parse().unwrap());
        let sample = CpuSample::take(&watched);
        let usage = sample.since(&CpuSample::take(&watched), &watched, 1, Duration::from_secs(1));
        assert_eq!(usage.iter().map(|usage| usage.name.as_str()).collect::<Vec<_>>(), ["me"]);
        assert!(usage[0].resident_bytes > 0);
    }
}
