//! The plan of the suite: the scenarios, their sizes and their contenders.

mod cell;
mod topics;

pub use cell::{
    Cell, Consumers, Inbound, InboundPace, Job, Resume, Schedules, Size, Steady, Tracked,
    WithoutKafka, warm_up,
};

use crate::contender::{Door, Who};

const EVERYBODY: [Who; 5] =
    [Who::Floor, Who::Nodes(1), Who::Nodes(2), Who::Poller(10), Who::Poller(100)];

pub fn cells(size: Size) -> Vec<Cell> {
    let mut cells = vec![drain(size), burst(size)];
    for (name, rate) in [("lateness-2k", 2_000), ("lateness-5k", 5_000), ("lateness-10k", 10_000)] {
        // Two nodes and the slow poller are measured at one rate only.
        let contenders = if rate == 2_000 {
            &EVERYBODY[..]
        } else {
            &[Who::Floor, Who::Nodes(1), Who::Poller(10)]
        };
        if rate != 5_000 || size == Size::Full {
            cells.push(lateness(size, name, rate, size.of(0, 0, 1_000_000), contenders));
        }
    }
    let ours = [Who::Nodes(1)];
    if size == Size::Full {
        // The size between these two, a million, is `lateness-2k`.
        cells.push(lateness(size, "pending-100k", 2_000, 100_000, &ours));
    }
    cells.push(lateness(size, "pending", 2_000, size.of(10_000, 1_000_000, 10_000_000), &ours));
    for (name, partitions, title) in
        [("partitions-1", 1, "one partition"), ("partitions-64", 64, "64 partitions")]
    {
        let title = format!("Lateness on a topic of {title}, 2,000 tasks/s");
        cells.push(Cell { partitions, title, ..lateness(size, name, 2_000, 0, &ours) });
    }
    cells.push(many_topics(size));
    cells.push(precision(size));
    cells.push(neighbour(size));
    cells.extend([
        immediate(size),
        submit_one(size),
        submit_one_at_half(size),
        submit_batch(size),
        cancel(size),
        finish(size, 1),
        finish_at_half(size),
        finish(size, 1_000),
        tracked(size, true),
        tracked(size, false),
        retries(size),
        pop(size),
        callback(size),
        inbound_at_rate(size, Door::Outbox),
        inbound_at_full_speed(size, Door::Outbox),
        inbound_at_rate(size, Door::Intake),
        inbound_at_full_speed(size, Door::Intake),
        topics::resume(size),
        topics::spread(size),
        topics::schedules(size),
        topics::schedules_together(size),
        idle(size),
    ]);
    cells.extend([take_over(size, true), take_over(size, false)]);
    cells.extend([old_snapshot(size), outbox_old_snapshot(size), soak(size)]);
    cells
}

/// Returns the warm-up scenario, which runs first and is not measured. A new broker costs two to
/// three times as much, because the JVM has not compiled the code yet.
pub fn warm_up_cell() -> Cell {
    let job = Job::Drain { count: 500_000, lead: 15, spread: 2 };
    Cell { name: "warm-up", title: "Warm-up".to_owned(), job, ..drain(Size::Short) }
}

fn drain(size: Size) -> Cell {
    let count = size.of(20_000, 200_000, 500_000);
    Cell {
        name: "drain",
        title: format!("{count} overdue tasks"),
        goal: "at least 0.8 of the floor on the same data, 3x the poller; CPU of the node at most \
               1.5x the floor's",
        limit: "The two cores: Postgres takes about half of them (the claim's delete and the two \
                inserts of its batch), the node and the broker share the rest. A machine for \
                Postgres of its own would move it first.",
        topics: 1,
        partitions: 8,
        contenders: vec![
            Who::FloorInOrder,
            Who::Floor,
            Who::Nodes(1),
            Who::Nodes(2),
            Who::Poller(10),
            Who::FourPollers(100),
        ],
        job: Job::Drain { count, lead: size.of(6, 15, 30), spread: size.of(2, 10, 60) },
    }
}

fn burst(size: Size) -> Cell {
    let count = size.of(10_000, 100_000, 100_000);
    Cell {
        name: "burst",
        title: format!("{count} tasks due at one instant"),
        goal: "at least 100 k/s, the first one out within 10 ms, 3x the poller",
        limit: "Claims: what is due at the instant is claimed from a window before it on, so a \
                part is in memory at the instant, as much as `--topic-in-flight-tasks` lets one \
                topic have; the rest is claimed at the speed of a drain.",
        topics: 1,
        partitions: 8,
        contenders: vec![
            Who::Floor,
            Who::Nodes(1),
            Who::Nodes(2),
            Who::Poller(10),
            Who::Poller(100),
            Who::FourPollers(100),
        ],
        job: Job::Burst { count, lead: size.of(6, 15, 20) },
    }
}

fn lateness(size: Size, name: &'static str, rate: u32, pending: u64, contenders: &[Who]) -> Cell {
    let ahead = size.of((1, 2), (1, 5), (5, 60));
    let seconds = size.of(3, 12, 60);
    let background = if pending > 0 { format!(", {pending} pending") } else { String::new() };
    let rate = if size == Size::Tiny { rate / 4 } else { rate };
    Cell {
        name,
        title: format!("Lateness at {rate} tasks/s{background}"),
        goal: "p50 at most 2 ms, p99 5, p99.9 15; nothing early",
        limit: "The linger (0.5 ms), the timer, and the broker's answer make the median. The tail \
                is whatever stalls a core or the disk: a window of 200 ms hides a slow claim, \
                nothing hides a slow append.",
        topics: 1,
        partitions: 8,
        contenders: contenders.to_vec(),
        job: Job::Steady(Steady {
            rate,
            seconds,
            ahead,
            pending,
            is_held: false,
            burst: 0,
            is_soak: false,
        }),
    }
}

fn many_topics(size: Size) -> Cell {
    let topics = size.of(20, 1_000, 1_000);
    let cell = lateness(size, "many-topics", 5_000, 0, &[Who::Nodes(1)]);
    Cell {
        title: format!("{}, in turn to {topics} topics of one partition each", cell.title),
        goal: "p99 at most twice that of one topic at the same rate; no topic held back",
        limit: "Requests of the broker: each has the records of one partition, and at 5,000/s over \
                1,000 partitions nearly every record is a request of its own.",
        topics,
        partitions: 1,
        ..cell
    }
}

fn precision(size: Size) -> Cell {
    let precise = ["5ms", "20ms", "50ms"].map(Who::Precise);
    let contenders =
        [&[Who::Floor, Who::Nodes(1)], &precise[..], &[Who::Poller(10), Who::Poller(100)]].concat();
    Cell {
        title: "What precision costs, 2,000 tasks/s".to_owned(),
        goal: "CPU of all processes below the 10 ms poller's at the default precision, below the \
               100 ms poller's at 50 ms",
        limit: "Wake-ups and requests: at 2,000/s and 1 ms nearly every record is a request of its \
                own. `--precision` gathers them.",
        job: Job::Steady(Steady {
            rate: size.of(500, 2_000, 2_000),
            seconds: size.of(3, 12, 60),
            ahead: size.of((1, 2), (1, 5), (1, 5)),
            pending: 0,
            is_held: false,
            burst: 0,
            is_soak: false,
        }),
        ..lateness(size, "precision", 2_000, 0, &contenders)
    }
}

fn neighbour(size: Size) -> Cell {
    let burst = size.of(10_000, 200_000, 500_000);
    let seconds = size.of(6, 20, 30);
    Cell {
        title: format!("500 tasks/s on one topic while {burst} are due at one instant on another"),
        goal: "the p99 of the quiet topic at most 50 ms",
        limit: "What the broker and Postgres have left. The burst's claims take turns with the \
                watermark, and one topic may have only so many tasks in flight.",
        job: Job::Steady(Steady {
            rate: 500,
            seconds,
            ahead: (1, 3),
            pending: 0,
            is_held: false,
            burst,
            is_soak: false,
        }),
        ..lateness(size, "neighbour", 500, 0, &[Who::Nodes(1)])
    }
}

fn immediate(size: Size) -> Cell {
    let rate = size.of(500, 2_000, 2_000);
    Cell {
        name: "immediate",
        title: format!("Tasks without a delay, {rate} requests/s"),
        goal: "from the request to the append p50 at most 3 ms, p99 10",
        limit: "One commit of Postgres and one append of Kafka, one after the other; at 2,000/s \
                the submits of a commit's time share the next one.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1), Who::Nodes(2), Who::Poller(10), Who::Poller(100)],
        job: Job::Immediate { rate, seconds: size.of(3, 10, 30) },
    }
}

const SUBMIT_GOAL: &str =
    "at least as many as bare INSERTs over 16 connections into the poller's table";
const SUBMIT_LIMIT: &str = "The node's and the load generator's HTTP, a request each, beside \
                            Postgres on the same two cores; commits are shared (group commit \
                            on one connection).";

fn submit_one(size: Size) -> Cell {
    Cell {
        name: "submit-one",
        title: "Submits of one task each, 64 connections (the poller: bare INSERTs over 16)"
            .to_owned(),
        goal: SUBMIT_GOAL,
        limit: SUBMIT_LIMIT,
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1), Who::Nodes(2), Who::Poller(100)],
        job: Job::Submit {
            call: 1,
            connections: 64,
            poller_call: 1,
            poller_connections: 16,
            seconds: size.of(3, 10, 30),
            at_half: false,
        },
    }
}

fn submit_one_at_half(size: Size) -> Cell {
    Cell {
        name: "submit-one-half",
        title: "The same at half of that rate".to_owned(),
        goal: "the answers' p99 at most 10 ms",
        limit: "The disk: an answer waits for its commit, and for the one before it.",
        contenders: vec![Who::Nodes(1), Who::Nodes(2)],
        job: Job::Submit {
            call: 1,
            connections: 64,
            poller_call: 1,
            poller_connections: 16,
            seconds: size.of(3, 10, 30),
            at_half: true,
        },
        ..submit_one(size)
    }
}

fn submit_batch(size: Size) -> Cell {
    Cell {
        name: "submit-batch",
        title: "Submits in batches of 1,000 (the poller: COPY by 10,000)".to_owned(),
        goal: "at least 80 k tasks/s",
        limit: "Postgres's insert into the leaf and its index, on one connection.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Floor, Who::Nodes(1), Who::Nodes(2), Who::Poller(100)],
        job: Job::Submit {
            call: 1_000,
            connections: 8,
            poller_call: 10_000,
            poller_connections: 2,
            seconds: size.of(3, 10, 30),
            at_half: false,
        },
    }
}

fn cancel(size: Size) -> Cell {
    Cell {
        name: "cancel",
        title: "Cancels, 64 connections".to_owned(),
        goal: "every one has a verdict",
        limit: "As for submits of one task: a request each, commits shared.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1), Who::Nodes(2)],
        job: Job::Cancel { count: size.of(2_000, 50_000, 200_000) },
    }
}

fn finish(size: Size, call: usize) -> Cell {
    let (name, title, goal, count, connections) = if call == 1 {
        let count = size.of(2_000, 100_000, 300_000);
        ("finish", "Finishes of one task each, 64 connections", "at least 12,000/s", count, 64)
    } else {
        let count = size.of(10_000, 300_000, 1_000_000);
        ("finish-batch", "Finishes in batches of 1,000", "at least 60,000/s", count, 4)
    };
    Cell {
        name,
        title: title.to_owned(),
        goal,
        limit: "Postgres: a finish deletes the row of the next attempt and that of `task_follow`, \
                and writes the final line, in one commit that all waiting finishes share.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1)],
        job: Job::Finish { count, call, connections, at_half: false },
    }
}

fn finish_at_half(size: Size) -> Cell {
    Cell {
        name: "finish-half",
        title: "Finishes of one task each at half of that rate".to_owned(),
        goal: "the answers' p99 at most 15 ms",
        job: Job::Finish {
            count: size.of(2_000, 60_000, 200_000),
            call: 1,
            connections: 64,
            at_half: true,
        },
        ..finish(size, 1)
    }
}

fn tracked(size: Size, is_tracked: bool) -> Cell {
    let pending = size.of(10_000, 1_000_000, 1_000_000);
    let rate = size.of(500, 2_000, 2_000);
    let (name, kind) = if is_tracked {
        ("tracked", "tracked tasks/s, finished within 50 ms")
    } else {
        ("tracked-not", "untracked tasks/s with the same reader")
    };
    Cell {
        name,
        title: format!("Lateness of {rate} {kind}, {pending} pending"),
        goal: "p99 of tracked tasks as of untracked ones, within 20 % or 1 ms; CPU of all \
               processes at most 2.5x",
        limit: "A tracked task costs a row of a next attempt and its deletion, a row of \
                `task_follow`, and a request.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1)],
        job: Job::Tracked(Tracked {
            rate,
            seconds: size.of(3, 30, 60),
            pending,
            unfinished: 0,
            is_tracked,
        }),
    }
}

fn retries(size: Size) -> Cell {
    let rate = size.of(500, 2_000, 2_000);
    Cell {
        name: "retries",
        title: format!("{rate} tasks/s, one in ten not finished: lateness of the second attempt"),
        goal: "p99 at most 10 ms",
        limit: "As for first attempts. A retry topic keeps the order of a partition: its consumer \
                waits for the first record, and then reads again.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1), Who::RetryTopics],
        job: Job::Tracked(Tracked {
            rate,
            seconds: size.of(3, 30, 60),
            pending: 0,
            unfinished: 10,
            is_tracked: true,
        }),
    }
}

fn pop(size: Size) -> Cell {
    let rate = size.of(500, 5_000, 5_000);
    let pollers = size.of(20, 200, 200);
    Cell {
        name: "pop",
        title: format!("{rate} tasks/s to {pollers} callers of pop, which finish them"),
        goal: "from the append to the answer p99 at most 20 ms",
        limit: "The two cores: each task costs what a tracked one does, and its parts of a request \
                to pop and of one that finishes.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1)],
        job: Job::WithoutKafka(WithoutKafka {
            rate,
            seconds: size.of(3, 15, 60),
            consumers: Consumers::Pop(pollers),
        }),
    }
}

fn callback(size: Size) -> Cell {
    let rate = size.of(300, 3_000, 3_000);
    Cell {
        name: "callback",
        title: format!("{rate} tasks/s to a service that is called back"),
        goal: "from the append to the request p99 at most 30 ms",
        limit: "The two cores: each task costs what a tracked one does, and a request to the \
                service.",
        job: Job::WithoutKafka(WithoutKafka {
            rate,
            seconds: size.of(3, 15, 60),
            consumers: Consumers::Callback,
        }),
        ..pop(size)
    }
}

fn inbound_at_rate(size: Size, door: Door) -> Cell {
    let seconds = size.of(3, 10, 30);
    let (name, way, goal, rate) = match door {
        Door::Outbox => {
            let goal = "from the insert to the append p99 at most 150 ms";
            ("outbox", "rows of an outbox/s, one in a transaction", goal, 1_000)
        }
        Door::Intake => {
            let goal = "from the record to the append p99 at most 50 ms";
            ("intake", "records of an intake topic/s", goal, 2_000)
        }
    };
    let rate = size.of(rate / 4, rate, rate);
    Cell {
        name,
        title: format!("Tasks without a delay as {rate} {way}"),
        goal,
        limit: "A turn of the node: read what has come, store it in one commit, publish it. What \
                comes during a turn waits for the next one. Nobody is told of a new row, so a node \
                looks at an empty outbox every 50 ms.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1)],
        job: Job::Inbound(Inbound {
            door,
            pace: InboundPace::Rate { rate, seconds },
            is_held: false,
        }),
    }
}

fn outbox_old_snapshot(size: Size) -> Cell {
    let (rate, seconds) = (size.of(250, 1_000, 1_000), size.of(3, 10, 300));
    let pace = InboundPace::Rate { rate, seconds };
    Cell {
        name: "outbox-old-snapshot",
        title: format!(
            "{rate} rows of an outbox/s for {seconds} s while an old snapshot is held in its \
             database"
        ),
        goal: "from the insert to the append p99 of the last fifth as of the first",
        limit: "Postgres cannot clean up: a look passes over the dead rows of the tables that are \
                not truncated yet. Each of the four takes the rows of ten seconds in turn.",
        job: Job::Inbound(Inbound { door: Door::Outbox, pace, is_held: true }),
        ..inbound_at_rate(size, Door::Outbox)
    }
}

fn inbound_at_full_speed(size: Size, door: Door) -> Cell {
    let count = size.of(10_000, 200_000, 600_000);
    let (name, title, goal, call) = match door {
        Door::Outbox => {
            let goal = "at least 20,000/s";
            ("outbox-full", format!("{count} rows of an outbox, by 500"), goal, 500)
        }
        Door::Intake => {
            let goal = "at least 40,000/s";
            ("intake-full", format!("{count} records of an intake topic"), goal, 1_000)
        }
    };
    Cell {
        name,
        title,
        goal,
        limit: "Postgres's inserts, for an outbox three of them beside two deletes, on the cores \
                that also write the load.",
        job: Job::Inbound(Inbound {
            door,
            pace: InboundPace::Full { count, call },
            is_held: false,
        }),
        ..inbound_at_rate(size, door)
    }
}

fn idle(size: Size) -> Cell {
    Cell {
        name: "idle",
        title: "Nothing is due".to_owned(),
        goal: "a node and its connections under 3 % of a core",
        limit: "Ticks and heartbeats.",
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(1), Who::Poller(10), Who::Poller(100)],
        job: Job::Idle { pending: size.of(1_000, 100_000, 1_000_000), seconds: size.of(3, 15, 30) },
    }
}

fn take_over(size: Size, is_kill: bool) -> Cell {
    let (name, title, goal, limit) = if is_kill {
        (
            "take-over",
            "One of two nodes is killed (-9) with unsettled work, 500 tasks/s",
            "worst lateness at most the TTL (3 s) and 1 s",
            "The session's TTL: until it has passed nobody knows that the node is dead.",
        )
    } else {
        (
            "leave",
            "One of two nodes leaves (SIGTERM), 500 tasks/s",
            "worst lateness at most 100 ms",
            "The node says that it leaves; the other node claims its shards at its next look at \
             the heartbeats.",
        )
    };
    Cell {
        name,
        title: title.to_owned(),
        goal,
        limit,
        topics: 1,
        partitions: 8,
        contenders: vec![Who::Nodes(2)],
        job: Job::TakeOver { rounds: size.of(1, 2, if is_kill { 10 } else { 5 }), is_kill },
    }
}

fn old_snapshot(size: Size) -> Cell {
    let contenders = [Who::Nodes(1), Who::Poller(10)];
    let seconds = size.of(3, 30, 300);
    Cell {
        title: format!("5,000 tasks/s for {seconds} s while an old snapshot is held in Postgres"),
        goal: "lateness and claims of the last sixth as of the first",
        limit: "Postgres cannot clean up: reading through dead entries is slow. A claim \
                reads only from a slack behind the watermark.",
        job: Job::Steady(Steady {
            rate: size.of(500, 5_000, 5_000),
            seconds,
            ahead: size.of((1, 2), (1, 5), (1, 5)),
            pending: 0,
            is_held: true,
            burst: 0,
            is_soak: false,
        }),
        ..lateness(size, "old-snapshot", 5_000, 0, &contenders)
    }
}

fn soak(size: Size) -> Cell {
    let seconds = size.of(4, 40, 1800);
    Cell {
        title: format!("Soak: 3,000 tasks/s for {seconds} s, leaves of 2 minutes"),
        goal: "lateness and memory of the last sixth as of the second; dead rows and tables \
               bounded, leaves retired",
        limit: "Nothing grows: leaves are retired, payloads dropped by the hour.",
        job: Job::Steady(Steady {
            rate: size.of(500, 3_000, 3_000),
            seconds,
            ahead: size.of((1, 2), (1, 5), (1, 5)),
            pending: 0,
            is_held: false,
            burst: 0,
            is_soak: true,
        }),
        ..lateness(size, "soak", 3_000, 0, &[Who::Nodes(1)])
    }
}
