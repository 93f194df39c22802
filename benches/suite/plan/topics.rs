//! The scenarios with policies of topics, and with schedules.

use super::{Cell, Job, Resume, Schedules, Size};
use crate::contender::Who;

pub(super) fn resume(size: Size) -> Cell {
    let count = size.of(10_000, 200_000, 7_200_000);
    let rate = size.of(100, 500, 500);
    Cell {
        name: "resume",
        title: format!("{rate} tasks/s on one topic while another is resumed, with {count} tasks"),
        goal: "the p99 of the other topic as before, within 20 % or 5 ms; the paused topic at the \
               speed of a drain",
        limit: "Tasks of a long pause wait in a table of their own, and go back among the others \
                in pieces.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1)],
        job: Job::Resume(Resume {
            rate,
            seconds: size.of(3, 10, 60),
            count,
            pause: size.of(0, 0, 900),
        }),
    }
}

pub(super) fn spread(size: Size) -> Cell {
    let (count, spread) = size.of((10_000, 5), (100_000, 20), (1_000_000, 600));
    Cell {
        name: "spread",
        title: format!("{count} tasks for one instant in a topic with a spread of {spread} s"),
        goal: "each twentieth of the spread has the mean, within 10 %",
        limit: "The hash of the key decides.",
        job: Job::Spread { count, lead: size.of(6, 15, 90), spread },
        ..resume(size)
    }
}

pub(super) fn schedules(size: Size) -> Cell {
    let count = size.of(500, 2_000, 2_000);
    let others = size.of(0, 0, 100_000);
    Cell {
        name: "schedules",
        title: format!("{count} schedules that run each second, {others} others"),
        goal: "p99 at most 5 ms; nothing early",
        limit: "A run costs a transaction's share that makes it, a row of `schedule_run`, and what \
                a named task costs.",
        job: Job::Schedules(Schedules {
            count,
            every: 1,
            seconds: size.of(3, 15, 60),
            others,
            is_together: false,
        }),
        ..resume(size)
    }
}

pub(super) fn schedules_together(size: Size) -> Cell {
    let count = size.of(1_000, 5_000, 10_000);
    let (every, seconds) = size.of((5, 6), (15, 16), (60, 121));
    Cell {
        name: "schedules-together",
        title: format!("{count} schedules that run at the same instant, each {every} s"),
        goal: "none early or missing",
        limit: "As for a burst. Runs are made up to a minute ahead.",
        job: Job::Schedules(Schedules { count, every, seconds, others: 0, is_together: true }),
        ..schedules(size)
    }
}
