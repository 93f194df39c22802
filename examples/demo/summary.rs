//! Compares the guarantees with the records that a consumer saw and with the execlog.

use std::collections::{HashMap, HashSet};

use punctual::domain::TaskId;
use uuid::Uuid;

use crate::consumer::Arrival;
use crate::servers::FinalLine;
use crate::story::lateness;

/// The default session TTL, plus one second that a take-over may take.
const TAKE_OVER_MS: i64 = 3000 + 1000;

pub struct Kill {
    /// Milliseconds since the epoch.
    pub at: i64,
    /// The tasks that the node had claimed and not settled. Only these may have duplicates.
    pub in_flight: HashSet<Uuid>,
    /// The shards that had no owner after the kill.
    pub shards: HashSet<u64>,
}

pub struct Facts {
    /// The due time of each accepted task in milliseconds since the epoch.
    pub due_at: HashMap<Uuid, i64>,
    pub kill: Kill,
    pub arrivals: Vec<Arrival>,
    pub final_lines: Vec<FinalLine>,
}

/// A distribution of lateness in milliseconds.
#[derive(Clone, Copy, Default)]
pub struct Spread {
    pub count: usize,
    pub p50: i64,
    pub p99: i64,
    pub max: i64,
}

impl Spread {
    pub fn of(mut late: Vec<i64>) -> Self {
        late.sort_unstable();
        let at = |percent: usize| {
            late.get((late.len() * percent / 100).min(late.len().saturating_sub(1)))
                .copied()
                .unwrap_or(0)
        };
        Self { count: late.len(), p50: at(50), p99: at(99), max: at(100) }
    }
}

impl Facts {
    /// Prints the summary. Returns true when every guarantee was kept.
    pub fn summarise(&self) -> bool {
        let first = self.first_arrivals();
        let lost = self.due_at.keys().filter(|id| !first.contains_key(*id)).count();
        let early = self
            .arrivals
            .iter()
            .filter(|arrival| lateness(arrival, &self.due_at).is_some_and(|late| late < 0))
            .count();
        let unknown = first.keys().filter(|id| !self.due_at.contains_key(*id)).count();
        let duplicates = self.duplicates();
        let excused = duplicates.iter().filter(|id| self.kill.in_flight.contains(*id)).count();
        let unexcused = duplicates.len() - excused;
        let wrong_ends = self.wrong_ends();

        println!("\n  submitted     {:>6} tasks", self.due_at.len());
        println!("  published     {:>6} tasks", self.due_at.len() - lost);
        println!("  lost          {lost:>6} tasks");
        println!("  early         {early:>6} tasks");
        println!(
            "  duplicates    {:>6} records; {} tasks were in flight on the killed node",
            duplicates.len(),
            self.kill.in_flight.len()
        );
        println!(
            "  final lines   {:>6} in the execlog, one for each task, its receipt where its record \
             is",
            self.final_lines.len()
        );
        let (undisturbed, disturbed): (Vec<_>, Vec<_>) =
            first.values().partition(|arrival| !self.is_disturbed(arrival));
        self.print_lateness("lateness without the take-over", &undisturbed);
        self.print_lateness("lateness in the take-over     ", &disturbed);

        let broken: Vec<String> = [
            (lost, "tasks lost"),
            (early, "records early"),
            (unknown, "records of tasks that nobody submitted"),
            (unexcused, "duplicates of tasks that were not in flight on the killed node"),
            (wrong_ends, "tasks without exactly one final line and a true receipt"),
        ]
        .into_iter()
        .filter(|(count, _)| *count > 0)
        .map(|(count, what)| format!("{count} {what}"))
        .collect();
        if broken.is_empty() {
            println!("\nEvery promise was kept.");
        } else {
            println!("\nBROKEN: {}", broken.join(", "));
        }
        broken.is_empty()
    }

    fn first_arrivals(&self) -> HashMap<Uuid, &Arrival> {
        let mut first: HashMap<Uuid, &Arrival> = HashMap::new();
        for arrival in &self.arrivals {
            let earliest = first.entry(arrival.id).or_insert(arrival);
            if arrival.appended_at < earliest.appended_at {
                *earliest = arrival;
            }
        }
        first
    }

    /// Returns one entry for each record beyond the first of its task.
    fn duplicates(&self) -> Vec<Uuid> {
        let mut seen = HashSet::new();
        self.arrivals.iter().map(|arrival| arrival.id).filter(|id| !seen.insert(*id)).collect()
    }

    /// Counts the tasks without exactly one published line whose receipt names one of the records.
    fn wrong_ends(&self) -> usize {
        let mut lines: HashMap<Uuid, Vec<&FinalLine>> = HashMap::new();
        for line in &self.final_lines {
            lines.entry(line.id).or_default().push(line);
        }
        let places: HashSet<(Uuid, i32, i64)> = self
            .arrivals
            .iter()
            .map(|arrival| (arrival.id, arrival.partition, arrival.offset))
            .collect();
        let is_true = |line: &FinalLine| {
            let place = line.partition.zip(line.offset);
            line.state == "published"
                && place.is_some_and(|(partition, offset)| {
                    places.contains(&(line.id, partition, offset))
                })
        };
        let is_right =
            |id: &Uuid| matches!(lines.get(id).map(Vec::as_slice), Some([line]) if is_true(line));
        self.due_at.keys().filter(|id| !is_right(id)).count()
    }

    /// Returns true for a task delayed by the take-over: in flight on the killed node, or due while
    /// the shard had no owner.
    fn is_disturbed(&self, arrival: &Arrival) -> bool {
        let task = TaskId::from_uuid(arrival.id);
        let due_after = task.due_at().as_millis() - self.kill.at;
        let was_orphaned = self.kill.shards.contains(&u64::from(task.shard().number()))
            && (0..TAKE_OVER_MS).contains(&due_after);
        was_orphaned || self.kill.in_flight.contains(&arrival.id)
    }

    fn print_lateness(&self, what: &str, arrivals: &[&Arrival]) {
        let spread = Spread::of(
            arrivals.iter().filter_map(|arrival| lateness(arrival, &self.due_at)).collect(),
        );
        println!(
            "  {what}   p50 {} ms, p99 {} ms, max {} ms ({} tasks)",
            spread.p50, spread.p99, spread.max, spread.count
        );
    }
}
