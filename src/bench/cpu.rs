//! Reads the cost of processes from `/proc`: CPU time with that of their children, and memory.

use std::collections::HashMap;
use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use super::results::report::Usage;
use super::results::{float, ratio};

/// Linux counts the times of processes in ticks of 1/100 s on every platform that this program is
/// built for.
const TICK: Duration = Duration::from_millis(10);

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

    /// Parses `node=123`, or `node=FILE` with a file that holds the process id.
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
        self.number().is_some_and(|number| stat_of(number).is_some())
    }
}

impl CpuSample {
    /// Takes a sample. A process that does not exist has none.
    pub fn take(watched: &[WatchedProcess]) -> Self {
        let children = if watched.is_empty() { HashMap::new() } else { children() };
        let used = |watched: &WatchedProcess| {
            let number = watched.number()?;
            let own = stat_of(number)?;
            let mut used = Used { cpu: own.cpu + own.ended_children, bytes: resident(number) };
            for child in children.get(&number).into_iter().flatten() {
                used.cpu +=
                    stat_of(*child).map_or(Duration::ZERO, |stat| stat.cpu + stat.ended_children);
            }
            Some(used)
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

struct Stat {
    parent: u32,
    cpu: Duration,
    /// CPU time of children that have ended and were waited for.
    ended_children: Duration,
}

fn stat_of(number: u32) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{number}/stat")).ok()?)
}

fn parse(stat: &str) -> Option<Stat> {
    // The program's name stands in brackets and may itself contain spaces and brackets. The third
    // field follows the last bracket.
    let (_, fields) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_ascii_whitespace().collect();
    let field = |number: usize| fields.get(number.checked_sub(3)?)?.parse::<u32>().ok();
    let ticks = |number: usize| field(number).map(|ticks| TICK * ticks);
    Some(Stat {
        parent: field(4)?,
        cpu: ticks(14)? + ticks(15)?,
        ended_children: ticks(16)? + ticks(17)?,
    })
}

fn resident(number: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes =
        line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kibibytes.unwrap_or(0).saturating_mul(1024)
}

/// Returns the children of each process.
fn children() -> HashMap<u32, Vec<u32>> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    let Ok(entries) = fs::read_dir("/proc") else { return children };
    for entry in entries.flatten() {
        let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if let Some(stat) = stat_of(number) {
            children.entry(stat.parent).or_default().push(number);
        }
    }
    children
}

#[cfg(test)]
mod tests {
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
        let stat =
            parse("7 (a) b) S 5 7 7 0 -1 4194560 1 0 0 0 150 50 3 4 20 0 4 0 12345 1 1").unwrap();
        assert_eq!(
            (stat.parent, stat.cpu, stat.ended_children),
            (5, Duration::from_secs(2), Duration::from_millis(70))
        );
        assert!(parse("7 (x) S 1").is_none());
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

    #[cfg(target_os = "linux")]
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
