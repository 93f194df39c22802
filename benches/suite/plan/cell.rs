//! A scenario of the suite: its size, its figures and its job.

use std::time::Duration;

use crate::contender::{Door, Who};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Size {
    /// A few seconds for each scenario: checks that the suite works. The figures mean nothing.
    Tiny,
    /// All scenarios within half an hour.
    Short,
    /// All scenarios within two hours.
    Full,
}

impl Size {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tiny => "tiny",
            Self::Short => "short",
            Self::Full => "full",
        }
    }

    /// Returns the value for this size.
    pub(super) fn of<T>(self, tiny: T, short: T, full: T) -> T {
        match self {
            Self::Tiny => tiny,
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// One scenario.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Name for files and for `--only`.
    pub name: &'static str,
    pub title: String,
    /// The target of the figures, for readers of the page.
    pub goal: &'static str,
    /// The limiting factor, and how to move it.
    pub limit: &'static str,
    /// Number of topics, and of the partitions of each.
    pub topics: u16,
    pub partitions: i32,
    pub contenders: Vec<Who>,
    pub job: Job,
}

#[derive(Clone, Debug)]
pub enum Job {
    Drain {
        count: u32,
        lead: u64,
        spread: u64,
    },
    Burst {
        count: u32,
        lead: u64,
    },
    Steady(Steady),
    Submit {
        call: usize,
        connections: usize,
        poller_call: usize,
        poller_connections: usize,
        seconds: u64,
        at_half: bool,
    },
    Cancel {
        count: u32,
    },
    Finish {
        count: u32,
        call: usize,
        connections: usize,
        at_half: bool,
    },
    Tracked(Tracked),
    WithoutKafka(WithoutKafka),
    Immediate {
        rate: u32,
        seconds: u64,
    },
    Inbound(Inbound),
    Resume(Resume),
    Spread {
        count: u32,
        lead: u64,
        spread: u64,
    },
    Schedules(Schedules),
    Idle {
        pending: u64,
        seconds: u64,
    },
    TakeOver {
        rounds: u32,
        is_kill: bool,
    },
}

/// Submits by a way in beside REST.
#[derive(Clone, Copy, Debug)]
pub struct Inbound {
    pub door: Door,
    pub pace: InboundPace,
    /// True while an old snapshot is held in the database of the application.
    pub is_held: bool,
}

#[derive(Clone, Copy, Debug)]
pub enum InboundPace {
    Rate { rate: u32, seconds: u64 },
    Full { count: u32, call: u32 },
}

/// Tracked tasks at a steady rate, and a consumer.
#[derive(Clone, Copy, Debug)]
pub struct Tracked {
    pub rate: u32,
    pub seconds: u64,
    pub pending: u64,
    /// The number of tasks in a hundred that are not finished at their first attempt.
    pub unfinished: u8,
    /// False for untracked tasks, to compare with.
    pub is_tracked: bool,
}

impl Tracked {
    pub const TTR: Duration = Duration::from_secs(2);
    pub const BACKOFF: Duration = Duration::from_secs(1);

    /// Returns how long after an unanswered attempt the next one is due.
    pub fn silence(&self) -> Duration {
        Self::TTR + Self::BACKOFF
    }
}

/// Tracked tasks at a steady rate, and consumers without Kafka.
#[derive(Clone, Copy, Debug)]
pub struct WithoutKafka {
    pub rate: u32,
    pub seconds: u64,
    pub consumers: Consumers,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Consumers {
    /// So many callers of `pop`.
    Pop(u16),
    Callback,
}

/// A paused topic that is resumed, beside another topic at a steady rate.
#[derive(Clone, Copy, Debug)]
pub struct Resume {
    pub rate: u32,
    pub seconds: u64,
    /// Number of tasks that wait in the paused topic.
    pub count: u32,
    /// Minimum number of seconds that it is paused.
    pub pause: u64,
}

/// Schedules with one period.
#[derive(Clone, Copy, Debug)]
pub struct Schedules {
    pub count: u32,
    pub every: u64,
    pub seconds: u64,
    /// Number of schedules that are not due.
    pub others: u32,
    /// True when all are due at the same instants.
    pub is_together: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Steady {
    pub rate: u32,
    pub seconds: u64,
    /// Minimum and maximum number of seconds that tasks are submitted ahead.
    pub ahead: (u64, u64),
    pub pending: u64,
    /// True when Postgres holds an old snapshot during the run.
    pub is_held: bool,
    /// Number of tasks of a burst on another topic, due in the middle of the run.
    pub burst: u32,
    /// True for the soak. Leaves are then 2 minutes wide, so they come and go. Growth is observed,
    /// as it is while an old snapshot is held.
    pub is_soak: bool,
}

/// Returns the warm-up at the full rate. It is the same for all contenders and not measured.
pub fn warm_up(size: Size) -> Duration {
    Duration::from_secs(size.of(1, 5, 5))
}
