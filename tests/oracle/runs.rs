//! Tests the rules about the runs of schedules.

use super::history::{Arrival, History, Line, SCHEDULED};
use super::oracle::{Rule, judge};
use super::plan::Kind;
use super::schedule_history::{Command, MadeRun, Order, Put, RunHeaders, Timing};
use super::{START, history, id, line, operation, record, rules};

const PERIOD: i64 = 1000;
/// The instant of the first run.
const FIRST: i64 = START + 3000;
const RUNS: u64 = 5;

fn put(serial: u64) -> Put {
    let timing = Timing { period_ms: PERIOD, is_cron: false };
    Put { serial, timing, skips: false, payload_hash: serial }
}

fn command(history: &mut History, sent_at: i64, order: Order) {
    let schedule = "s".to_owned();
    let command = Command { schedule, sent_at, answered_at: sent_at + 20, order };
    history.commands.push(command);
}

/// Adds the record and the line of a run, whose number is also that of its task.
fn run(history: &mut History, number: u64, at: i64, serial: u64) {
    let headers = RunHeaders { schedule: "s".to_owned(), at, number: Some(number), missed: 0 };
    history.records.push(Arrival {
        run: Some(headers),
        serial: Some(serial),
        payload_hash: Some(serial),
        ..record(number, SCHEDULED, at)
    });
    history.lines.push(line(history, number, SCHEDULED, at, "published"));
    history.runs.push(MadeRun { schedule: "s".to_owned(), at, id: id(number) });
}

/// Returns a history with a schedule of a run each second, and five runs.
fn scheduled() -> History {
    let mut history = history();
    command(&mut history, FIRST - 900, Order::Put(put(77)));
    for number in 1..=RUNS {
        run(&mut history, number, FIRST + (number as i64 - 1) * PERIOD, 77);
    }
    command(&mut history, FIRST + 4500, Order::Pause);
    history
}

fn headers(history: &mut History, index: usize) -> &mut RunHeaders {
    history.records[index].run.as_mut().expect("a run")
}

#[test]
fn a_schedule_that_keeps_every_promise_is_found_so() {
    let history = scheduled();
    assert_eq!(rules(&history), []);
    assert_eq!(judge(&history, false).counts.runs, 5);
}

#[test]
fn no_instant_has_two_runs() {
    let mut history = scheduled();
    let again = Arrival { id: id(9), ..history.records[2].clone() };
    history.records.push(again);
    history.lines.push(Line { id: id(9), ..history.lines[2].clone() });
    assert_eq!(rules(&history), [Rule::WrongRun]);
    // A run that was withdrawn, and made again.
    history.records.pop();
    history.lines[5] = line(&history, 9, SCHEDULED, FIRST, "cancelled");
    assert_eq!(rules(&history), []);
}

#[test]
fn no_run_is_missing_and_each_counts_the_instants_before_it() {
    let mut history = scheduled();
    history.records.remove(2);
    history.lines.remove(2);
    assert_eq!(rules(&history), [Rule::Lost], "it was made");
    history.runs.remove(2);
    assert_eq!(rules(&history), [], "perhaps withdrawn by the last order, a moment later");
    let end = &mut history.commands[1];
    (end.sent_at, end.answered_at) = (FIRST + 18_000, FIRST + 18_020);
    assert_eq!(rules(&history), [Rule::WrongRun], "nothing withdrew it");
    (headers(&mut history, 2).number, headers(&mut history, 3).number) = (Some(3), Some(4));
    headers(&mut history, 2).missed = 2;
    assert_eq!(rules(&history), [Rule::WrongRun], "one instant too many is counted");
    headers(&mut history, 2).missed = 1;
    assert_eq!(rules(&history), []);
    headers(&mut history, 2).number = Some(4);
    assert_eq!(rules(&history), [Rule::WrongRun], "the third run");
    headers(&mut history, 2).number = Some(3);
    headers(&mut history, 3).missed = 1;
    assert_eq!(rules(&history), [Rule::WrongRun], "counted, and had a run");
    headers(&mut history, 3).missed = 0;
    headers(&mut history, 0).number = Some(2);
    assert_eq!(rules(&history), [Rule::WrongRun], "the first run");
}

#[test]
fn what_a_change_withdraws_is_made_again_or_counted() {
    // Runs 3 and 4 are not claimed when run 5 is, and a change withdraws them.
    let changed = |again: &[(usize, u64, i64)], missed: i64| {
        let mut history = scheduled();
        history.commands.pop();
        command(&mut history, FIRST + 4100, Order::Put(put(78)));
        run(&mut history, 6, FIRST + 5000, 78);
        headers(&mut history, 5).missed = missed;
        command(&mut history, FIRST + 5500, Order::Pause);
        let mut number = 4;
        for (index, serial, claimed_at) in again {
            history.records[*index].serial = Some(*serial);
            history.records[*index].payload_hash = Some(*serial);
            history.lines[*index].claimed_at = Some(*claimed_at);
            headers(&mut history, *index).number = Some(number);
            number += 1;
        }
        headers(&mut history, 5).number = Some(number);
        history
    };
    let later = FIRST + 4300;
    let again = [(2, 78, later), (3, 78, later)];
    assert_eq!(rules(&changed(&again, 0)), []);
    assert_eq!(rules(&changed(&again, 1)), [Rule::WrongRun], "both were made again");
    // Or they are missed: then the next run counts them.
    for (missed, broken) in [(2, &[][..]), (3, &[Rule::WrongRun])] {
        let mut history = changed(&[], missed);
        history.records.drain(2..4);
        history.lines.drain(2..4);
        history.runs.drain(2..4);
        assert_eq!(rules(&history), broken, "{missed} counted");
    }
}

#[test]
fn a_run_before_which_others_were_withdrawn_keeps_its_number() {
    // Each run from `first` on has counted two earlier ones, which a change withdrew.
    let behind = |first: usize, put_at: i64| {
        let mut history = scheduled();
        history.commands[0].sent_at = put_at;
        history.commands[0].answered_at = put_at + 20;
        let gone = if first == 0 { 0..0 } else { first - 2..first };
        history.records.drain(gone.clone());
        history.lines.drain(gone.clone());
        history.runs.drain(gone.clone());
        if first == 0 {
            (0..5).for_each(|index| headers(&mut history, index).number = Some(index as u64 + 3));
        }
        history
    };
    assert_eq!(rules(&behind(0, FIRST - 2100)), [], "before the first run");
    assert_eq!(rules(&behind(0, FIRST - 900)), [Rule::WrongRun], "there was no earlier one");
    assert_eq!(rules(&behind(0, FIRST - 1100)), [Rule::WrongRun], "there was one earlier one");
    assert_eq!(rules(&behind(3, FIRST - 900)), [], "runs 4 and 5 are both behind the gap");
}

#[test]
fn a_run_counts_instants_that_were_withdrawn_before_a_claimed_one() {
    // Runs 2 and 3 are withdrawn when 4 is claimed. Run 5 is made after the change.
    let counted = |missed: i64| {
        let mut history = scheduled();
        history.commands.pop();
        command(&mut history, FIRST + 3100, Order::Put(put(78)));
        command(&mut history, FIRST + 4500, Order::Pause);
        history.records[4].serial = Some(78);
        history.records[4].payload_hash = Some(78);
        history.records.drain(1..3);
        history.lines.drain(1..3);
        history.runs.drain(1..3);
        (headers(&mut history, 2).number, headers(&mut history, 2).missed) = (Some(3), missed);
        rules(&history)
    };
    assert_eq!(counted(2), []);
    assert_eq!(counted(0), [], "perhaps made again, and withdrawn by the last order");
    assert_eq!(counted(3), [Rule::WrongRun]);
}

#[test]
fn a_run_counts_instants_that_were_withdrawn_before_the_first_claimed_one() {
    // Runs 1 to 3 were put at first, and withdrawn when 4 is claimed. Run 5 is made after that.
    let counted = |missed: i64| {
        let mut history = scheduled();
        history.commands.pop();
        command(&mut history, FIRST + 2400, Order::Put(put(78)));
        command(&mut history, FIRST + 3100, Order::Put(put(79)));
        command(&mut history, FIRST + 4500, Order::Pause);
        for (index, serial) in [(3, 78), (4, 79)] {
            history.records[index].serial = Some(serial);
            history.records[index].payload_hash = Some(serial);
        }
        history.records.drain(..3);
        history.lines.drain(..3);
        history.runs.drain(..3);
        (headers(&mut history, 1).number, headers(&mut history, 1).missed) = (Some(2), missed);
        rules(&history)
    };
    assert_eq!(counted(3), []);
    assert_eq!(counted(4), [Rule::WrongRun], "there are three");
}

#[test]
fn a_run_is_that_of_its_schedule_and_not_early() {
    type Spoil = fn(&mut Arrival);
    let spoil: [(Spoil, Rule); 4] = [
        (|record| record.payload_hash = Some(3), Rule::Changed),
        (|record| record.serial = Some(3), Rule::Changed),
        (|record| record.run = None, Rule::Changed),
        (|record| record.at -= 3, Rule::Early),
    ];
    for (spoil, rule) in spoil {
        let mut history = scheduled();
        spoil(&mut history.records[1]);
        assert!(rules(&history).contains(&rule), "{rule:?}");
    }
    let mut history = scheduled();
    history.lines[1].state = "cancelled".to_owned();
    assert_eq!(rules(&history), [Rule::WrongRun], "a run of the schedule is not cancelled");
}

#[test]
fn a_run_has_the_record_of_the_last_change_before_its_claim() {
    let changed_at = |at: i64| {
        let mut history = scheduled();
        history.commands.pop();
        command(&mut history, at, Order::Put(put(78)));
        history.records[4].serial = Some(78);
        history.records[4].payload_hash = Some(78);
        command(&mut history, FIRST + 4500, Order::Pause);
        rules(&history)
    };
    // Runs are claimed 150 ms before their instants.
    assert_eq!(changed_at(FIRST + 3500), []);
    assert_eq!(changed_at(FIRST + 2500), [Rule::WrongRun]);
}

#[test]
fn a_run_that_is_due_at_a_change_keeps_its_record_until_another_one_withdraws_it() {
    // Run 4 is claimed 600 ms after its instant.
    let changed = |orders: &[(i64, Order)]| {
        let mut history = scheduled();
        history.commands.pop();
        for (at, order) in orders {
            command(&mut history, FIRST + at, order.clone());
        }
        command(&mut history, FIRST + 4500, Order::Pause);
        history.lines[3].claimed_at = Some(FIRST + 3600);
        history.records[4].serial = Some(78);
        history.records[4].payload_hash = Some(78);
        rules(&history)
    };
    let cron = Put { timing: Timing { period_ms: PERIOD, is_cron: true }, ..put(78) };
    let (change, others) = (Order::Put(put(78)), [Rule::WrongRun]);
    assert_eq!(changed(&[(3100, change.clone())]), []);
    assert_eq!(changed(&[(2900, change.clone())]), others, "it was not due");
    assert_eq!(changed(&[(3100, Order::Put(cron))]), others, "another timing");
    let pause = [(3100, change.clone()), (3300, Order::Pause), (3400, Order::Resume)];
    assert_eq!(changed(&pause), others, "a pause after the change");
    assert_eq!(changed(&[(3100, Order::Pause), (3300, change)]), others, "a pause before");
}

#[test]
fn a_paused_schedule_has_no_run() {
    let mut history = scheduled();
    history.commands.pop();
    command(&mut history, FIRST + 500, Order::Pause);
    command(&mut history, FIRST + 1500, Order::Resume);
    command(&mut history, FIRST + 4500, Order::Pause);
    assert_eq!(rules(&history), [Rule::WrongRun]);
    history.lines[1].claimed_at = Some(FIRST + 1550);
    assert_eq!(rules(&history), [], "made after the resume");
}

#[test]
fn runs_of_a_schedule_that_skips_do_not_overlap() {
    let mut history = scheduled();
    if let Order::Put(put) = &mut history.commands[0].order {
        put.skips = true;
    }
    let mut finished = line(&history, 1, SCHEDULED, FIRST, "finished");
    history.lines[0].state = "attempted".to_owned();
    finished.claimed_at = Some(FIRST + 500);
    history.lines.push(finished);
    assert_eq!(rules(&history), []);
    history.lines[5].claimed_at = Some(FIRST + 900);
    assert_eq!(rules(&history), [Rule::WrongRun]);
}

#[test]
fn runs_are_made_to_the_end_and_on_time() {
    let mut history = scheduled();
    (history.commands[1].sent_at, history.commands[1].answered_at) =
        (FIRST + 24_000, FIRST + 24_020);
    assert_eq!(rules(&history), [Rule::Late], "the last one came 20 s before the end");
    operation(&mut history, Kind::PostgresStop, FIRST + 4000, FIRST + 12_000);
    assert_eq!(rules(&history), []);
    let mut late = scheduled();
    late.records[4].at += 20_000;
    assert_eq!(rules(&late), [Rule::Late]);
}

#[test]
fn a_task_of_a_schedule_was_triggered_or_is_a_run() {
    let mut history = scheduled();
    let at = FIRST + 2200;
    let mut record = record(9, SCHEDULED, at);
    record.run = Some(RunHeaders { schedule: "s".to_owned(), at, number: None, missed: 0 });
    history.records.push(record);
    history.lines.push(line(&history, 9, SCHEDULED, at, "published"));
    assert_eq!(rules(&history), [Rule::Stranger]);
    for triggered in [Some(id(9)), None] {
        let mut history = scheduled();
        command(&mut history, at - 10, Order::Trigger(triggered));
        assert_eq!(rules(&history), if triggered.is_some() { &[Rule::Lost][..] } else { &[] });
    }
    command(&mut history, at - 10, Order::Trigger(Some(id(9))));
    assert_eq!(rules(&history), []);
}
