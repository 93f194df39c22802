use super::*;

const SETTINGS: TopicSettings = TopicSettings {
    silence_max: Duration::from_secs(5),
    denial_max: Duration::from_secs(300),
    tasks_max: 100,
    bytes_max: 1_000,
};

fn second(n: u64) -> Monotonic {
    Monotonic::from_start(Duration::from_secs(n))
}

fn topic() -> TopicName {
    TopicName::stored("orders")
}

fn silent_topics() -> TopicBreakers {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    assert_eq!(topics.turn(second(4), true, |_| true), []);
    assert_eq!(topics.turn(second(5), true, |_| true), [Action::Opened(topic())]);
    topics
}

/// Returns topics whose topic is half-open from second 10 on, with no task in flight.
fn probed_topics() -> TopicBreakers {
    let mut topics = silent_topics();
    topics.released(&topic(), 1, 10);
    assert_eq!(topics.turn(second(10), true, |_| false), [Action::Probe(topic())]);
    assert_eq!(topics.probed(&topic(), Sight::There, second(10)), Some(Action::Closed(topic())));
    assert!(topics.takes_tasks(&topic()));
    topics
}

#[test]
fn a_silent_topic_becomes_unavailable_and_an_acknowledgement_ends_that() {
    let mut topics = silent_topics();
    assert_eq!(topics.left_out(), [topic()].into());
    assert_eq!(topics.acknowledged(&topic(), second(6)), Some(Action::Closed(topic())));
    assert!(topics.takes_tasks(&topic()));
}

#[test]
fn a_topic_that_refuses_what_it_is_probed_with_becomes_unavailable_again_at_once() {
    let mut topics = probed_topics();
    topics.add_in_flight(&topic(), 1, 10, second(10));
    topics.refused(&topic(), second(10));
    topics.released(&topic(), 1, 10);
    assert!(!topics.takes_tasks(&topic()), "nothing more is let through");
    assert_eq!(topics.turn(second(14), true, |_| false), []);
    assert_eq!(topics.turn(second(15), true, |_| false), [Action::Probe(topic())]);
    // One partition refuses records, another one accepts them.
    topics.probed(&topic(), Sight::There, second(15));
    topics.add_in_flight(&topic(), 2, 20, second(15));
    topics.refused(&topic(), second(15));
    assert_eq!(topics.acknowledged(&topic(), second(15)), Some(Action::Closed(topic())));
    assert!(topics.takes_tasks(&topic()));
}

#[test]
fn an_unavailable_topic_is_named_with_since_when_and_no_probe_ends_that() {
    let mut topics = silent_topics();
    let (name, other) = (topic(), TopicName::stored("refunds"));
    let unavailable =
        |topic, since| OpenBreaker { topic, is_gone: false, since: second(since), reason: None };
    assert_eq!(topics.open(), [unavailable(&name, 5)]);
    assert_eq!(topics.turn(second(10), true, |_| true), [Action::Probe(topic())]);
    topics.probed(&name, Sight::There, second(10));
    assert_eq!(topics.open(), [unavailable(&name, 5)], "it has tasks, and nothing is acknowledged");
    topics.add_in_flight(&other, 1, 10, second(11));
    topics.turn(second(16), true, |_| true);
    assert_eq!(topics.open(), [unavailable(&name, 5), unavailable(&other, 16)]);
    topics.acknowledged(&name, second(17));
    assert_eq!(topics.open(), [unavailable(&other, 16)]);
}

#[test]
fn why_a_topic_takes_nothing_is_known_until_it_takes_something() {
    let mut topics = silent_topics();
    assert_eq!(topics.open()[0].reason, None, "its records wait, none has failed");
    topics.failed(&topic(), "no leader");
    topics.failed(&topic(), "timed out");
    assert_eq!(
        (topics.open()[0].reason, topics.reason(&topic())),
        (Some("timed out"), Some("timed out"))
    );
    topics.acknowledged(&topic(), second(6));
    assert_eq!(topics.reason(&topic()), None);
}

#[test]
fn a_probe_lets_one_claim_through() {
    let mut topics = probed_topics();
    topics.add_in_flight(&topic(), 5, 50, second(11));
    assert!(!topics.takes_tasks(&topic()), "one claim is enough for a probe");
    assert_eq!(topics.turn(second(16), true, |_| false), []);
    assert_eq!(topics.turn(second(17), true, |_| true), []);
    assert_eq!(topics.left_out(), [topic()].into(), "unavailable again");
    assert_eq!(topics.turn(second(22), true, |_| true), [Action::Probe(topic())]);
}

#[test]
fn a_probe_of_tasks_that_are_not_due_yet_is_not_taken_for_silence() {
    let mut topics = silent_topics();
    topics.released(&topic(), 1, 10);
    topics.probed(&topic(), Sight::There, second(10));
    topics.add_in_flight(&topic(), 5, 50, second(11));
    assert_eq!(topics.turn(second(18), true, |_| false), [], "they are due at 19");
    assert_eq!(topics.acknowledged(&topic(), second(19)), Some(Action::Closed(topic())));
    assert!(topics.takes_tasks(&topic()));
}

#[test]
fn a_topic_that_metadata_denies_for_five_minutes_is_gone_and_may_come_back() {
    let mut topics = silent_topics();
    let in_five_minutes = Action::Denied(topic(), Duration::from_secs(300));
    assert_eq!(topics.probed(&topic(), Sight::Denied, second(10)), Some(in_five_minutes));
    for n in (20..310).step_by(10) {
        assert_eq!(topics.probed(&topic(), Sight::Denied, second(n)), None);
    }
    assert_eq!(topics.probed(&topic(), Sight::Denied, second(310)), Some(Action::Gone(topic())));
    assert!(
        topics.is_gone(&topic()) && topics.takes_tasks(&topic()),
        "its tasks are claimed, to become dead letters"
    );
    assert_eq!(topics.probed(&topic(), Sight::There, second(400)), Some(Action::Closed(topic())));
    assert!(!topics.is_gone(&topic()));
}

#[test]
fn a_topic_that_is_gone_stays_so_though_nothing_of_it_is_held() {
    let mut topics = silent_topics();
    topics.released(&topic(), 1, 10);
    for n in (10..=310).step_by(10) {
        topics.probed(&topic(), Sight::Denied, second(n));
    }
    assert_eq!(topics.turn(second(311), true, |_| false), []);
    assert!(topics.is_gone(&topic()), "a sweep brings its tasks only now");
    assert_eq!(topics.turn(second(611), true, |_| false), [Action::Probe(topic())]);
    assert!(!topics.is_gone(&topic()), "the table is bounded");
}

#[test]
fn a_topic_is_given_up_on_for_longer_than_any_attempt_is_put_off() {
    let mut topics =
        TopicBreakers::new(TopicSettings { denial_max: Duration::from_secs(6), ..SETTINGS });
    topics.refused(&topic(), second(0));
    topics.turn(second(5), true, |_| false);
    for n in [10, 15, 20] {
        topics.probed(&topic(), Sight::Denied, second(n));
    }
    topics.turn(second(90), true, |_| false);
    assert!(topics.is_gone(&topic()), "a task that was put off at 19 for 60 s meets it");
    topics.turn(second(141), true, |_| false);
    assert!(!topics.is_gone(&topic()), "the table is bounded");
}

#[test]
fn denials_with_a_gap_between_do_not_add_up() {
    let mut topics = silent_topics();
    let in_five_minutes = Some(Action::Denied(topic(), SETTINGS.denial_max));
    assert_eq!(topics.probed(&topic(), Sight::Denied, second(10)), in_five_minutes);
    assert_eq!(topics.probed(&topic(), Sight::Denied, second(400)), in_five_minutes);
    assert_eq!(topics.probed(&topic(), Sight::Denied, second(410)), None);
}

#[test]
fn a_topic_that_refuses_at_once_becomes_unavailable_though_nothing_waits() {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.refused(&topic(), second(0));
    assert_eq!(topics.turn(second(4), true, |_| false), []);
    topics.refused(&topic(), second(4));
    assert_eq!(topics.turn(second(5), true, |_| false), [Action::Opened(topic())]);
}

#[test]
fn a_probe_without_a_task_goes_on() {
    let mut topics = silent_topics();
    topics.released(&topic(), 1, 10);
    assert_eq!(topics.turn(second(10), true, |_| false), [Action::Probe(topic())]);
    assert_eq!(topics.probed(&topic(), Sight::There, second(10)), Some(Action::Closed(topic())));
    assert_eq!(topics.turn(second(100), true, |_| false), []);
    assert!(topics.takes_tasks(&topic()));
}

#[test]
fn no_topic_is_to_blame_while_all_of_kafka_is_away() {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    assert_eq!(topics.turn(second(60), false, |_| true), []);
    assert_eq!(topics.turn(second(64), true, |_| true), []);
    assert_eq!(topics.turn(second(65), true, |_| true), [Action::Opened(topic())]);
}

#[test]
fn a_topic_at_its_limit_is_left_out_until_there_is_room() {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 100, 10, second(0));
    assert!(!topics.takes_tasks(&topic()) && topics.full().contains(&topic()));
    assert_eq!(topics.in_flight_of_left_out(), (100, 10));
    topics.released(&topic(), 24, 0);
    assert!(!topics.full().is_empty(), "a claim's worth is no room");
    topics.released(&topic(), 1, 0);
    assert!(topics.takes_tasks(&topic()) && topics.full().is_empty());
    topics.add_in_flight(&topic(), 0, 990, second(0));
    assert!(!topics.takes_tasks(&topic()), "bytes count as well");
}

#[test]
fn records_of_a_topic_that_claims_skip_do_not_count_for_the_others() {
    let mut topics = silent_topics();
    topics.add_in_flight(&topic(), 100, 10, second(5));
    assert!(topics.full().is_empty() && !topics.takes_tasks(&topic()), "it is open");
    assert_eq!(topics.in_flight_of_left_out(), (101, 20));
}

#[test]
fn a_full_dead_topic_holds_back_the_topics_whose_verdict_rows_fill_it() {
    let [source, other] = ["payments", "mails"].map(TopicName::stored);
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 99, 10, second(0));
    topics.add_source(&topic(), &source);
    topics.add_source(&topic(), &source);
    assert!(topics.takes_tasks(&source) && topics.left_out().is_empty());
    topics.add_in_flight(&topic(), 1, 10, second(0));
    assert!(!topics.takes_tasks(&source) && topics.takes_tasks(&other));
    assert_eq!(topics.left_out(), [topic(), source.clone()].into());
    assert_eq!(topics.full(), topics.left_out(), "they will soon have room");
    topics.released(&topic(), 30, 10);
    assert!(topics.takes_tasks(&source));
    topics.released(&topic(), 70, 10);
    topics.add_in_flight(&topic(), 100, 10, second(1));
    topics.remove_source(&topic(), &source);
    assert!(!topics.takes_tasks(&source), "one of its rows is in flight");
    topics.remove_source(&topic(), &source);
    assert!(topics.takes_tasks(&source), "the records are of the dead topic's own tasks");
}

#[test]
fn an_open_dead_topic_gets_no_verdict_rows_and_a_half_open_one_gets_one() {
    let lets_through =
        |topics: &mut TopicBreakers, at: u64| topics.lets_through(&topic(), second(at));
    let mut topics = TopicBreakers::new(SETTINGS);
    assert!(lets_through(&mut topics, 0) && lets_through(&mut topics, 0), "nothing is known");
    let mut topics = silent_topics();
    assert!(!lets_through(&mut topics, 6));
    for at in [10, 20] {
        topics.probed(&topic(), Sight::There, second(at));
        assert!(lets_through(&mut topics, at), "the trial");
        assert!(!lets_through(&mut topics, at), "the others wait for its outcome");
        topics.refused(&topic(), second(at + 1));
        assert!(!lets_through(&mut topics, at + 9));
    }
    topics.probed(&topic(), Sight::There, second(30));
    assert!(lets_through(&mut topics, 30) && !lets_through(&mut topics, 34));
    assert!(lets_through(&mut topics, 35), "the trial has ended without a word about the topic");
    topics.acknowledged(&topic(), second(36));
    assert!(lets_through(&mut topics, 36) && lets_through(&mut topics, 36));
}

#[test]
fn a_topic_that_is_gone_and_full_is_full_so_that_the_rest_of_it_is_given_up_soon() {
    let mut topics = silent_topics();
    for n in (10..=310).step_by(10) {
        topics.probed(&topic(), Sight::Denied, second(n));
    }
    assert!(topics.is_gone(&topic()));
    topics.add_in_flight(&topic(), 100, 10, second(311));
    assert!(!topics.takes_tasks(&topic()) && topics.full().contains(&topic()));
}

#[test]
fn a_topic_that_was_in_trouble_and_has_no_tasks_is_forgotten_after_a_while() {
    let mut topics = silent_topics();
    topics.released(&topic(), 1, 10);
    assert_eq!(topics.probed(&topic(), Sight::There, second(10)), Some(Action::Closed(topic())));
    assert_eq!((topics.open_count(), topics.topics.len()), (0, 1));
    assert_eq!(topics.turn(second(300), true, |_| false), []);
    assert_eq!(topics.topics.len(), 1);
    assert_eq!(topics.turn(second(311), true, |_| false), []);
    assert_eq!(topics.topics.len(), 0);
}

#[test]
fn while_kafka_is_slow_silence_is_no_topics_fault_and_refusals_are() {
    for pace in [KafkaPace::Stalled, KafkaPace::Throttled] {
        let mut topics = TopicBreakers::new(SETTINGS);
        topics.set_pace(pace);
        topics.add_in_flight(&topic(), 1, 10, second(0));
        for n in 1..60 {
            assert_eq!(topics.turn(second(n), true, |_| true), [], "{pace:?}");
        }
        topics.set_pace(KafkaPace::Steady);
        assert_eq!(
            topics.turn(second(63), true, |_| true),
            [],
            "what was slow a moment ago gets its time"
        );
        assert_eq!(topics.turn(second(64), true, |_| true), [Action::Opened(topic())]);
        topics.set_pace(pace);
        let refusing = TopicName::stored("refusing");
        topics.refused(&refusing, second(70));
        assert!(
            topics.turn(second(75), true, |_| false).contains(&Action::Opened(refusing)),
            "{pace:?}"
        );
    }
}

#[test]
fn a_probe_is_not_unanswered_while_kafka_is_slow() {
    let mut topics = probed_topics();
    topics.add_in_flight(&topic(), 1, 10, second(11));
    topics.set_pace(KafkaPace::Throttled);
    assert_eq!(topics.turn(second(40), true, |_| true), []);
    assert_eq!(topics.acknowledged(&topic(), second(50)), Some(Action::Closed(topic())));
}

#[test]
fn a_topic_is_silent_only_for_longer_than_twice_what_others_wait_for_an_acknowledgement() {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    topics.waited(Duration::from_secs(8));
    assert_eq!(topics.turn(second(5), true, |_| true), []);
    topics.waited(Duration::from_secs(8));
    assert_eq!(topics.turn(second(15), true, |_| true), []);
    assert_eq!(topics.turn(second(16), true, |_| true), [Action::Opened(topic())]);
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    topics.waited(Duration::from_secs(8));
    assert_eq!(topics.turn(second(5), true, |_| true), []);
    assert_eq!(
        topics.turn(second(10), true, |_| true),
        [Action::Opened(topic())],
        "that was long ago"
    );
}

#[test]
fn while_kafka_throttles_a_topic_has_in_flight_what_went_out_of_it_lately() {
    let settings = TopicSettings { tasks_max: 1_000_000, bytes_max: 100 << 20, ..SETTINGS };
    let mut topics = TopicBreakers::new(settings);
    topics.add_in_flight(&topic(), 10, 1 << 20, second(0));
    assert!(topics.takes_tasks(&topic()));
    topics.set_pace(KafkaPace::Throttled);
    assert!(
        !topics.takes_tasks(&topic()) && topics.full().contains(&topic()),
        "nothing went out of it"
    );
    topics.released(&topic(), 8, 960 << 10);
    topics.add_in_flight(&topic(), 8, 500 << 10, second(1));
    assert!(topics.takes_tasks(&topic()), "564 KiB are in flight, and 960 went out");
    topics.add_in_flight(&topic(), 8, 500 << 10, second(2));
    assert!(!topics.takes_tasks(&topic()));
    topics.set_pace(KafkaPace::Steady);
    assert!(topics.takes_tasks(&topic()));
}

#[test]
fn a_topic_that_may_not_be_written_to_is_given_up_on_as_late_as_one_that_is_missing() {
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    assert_eq!(
        topics.forbidden(&topic(), second(0)),
        Some(Action::Forbidden(topic(), SETTINGS.denial_max))
    );
    assert_eq!(topics.turn(second(5), true, |_| false), [Action::Opened(topic())]);
    for n in (10..300).step_by(10) {
        topics.turn(second(n), true, |_| false);
        assert_eq!(
            topics.probed(&topic(), Sight::There, second(n)),
            Some(Action::Closed(topic())),
            "metadata does not tell"
        );
        assert_eq!(topics.forbidden(&topic(), second(n + 1)), None);
        assert!(!topics.is_gone(&topic()) && !topics.takes_tasks(&topic()), "unavailable at {n}");
    }
    topics.failed(&topic(), "not authorized");
    assert_eq!(topics.forbidden(&topic(), second(300)), Some(Action::Gone(topic())));
    assert_eq!(
        (topics.is_gone(&topic()), topics.forbidden_for(&topic())),
        (true, Some("not authorized"))
    );
    topics.probed(&topic(), Sight::There, second(305));
    assert_eq!(
        topics.forbidden(&topic(), second(305)),
        Some(Action::StillGone(topic())),
        "that is not told again"
    );
    topics.probed(&topic(), Sight::There, second(306));
    assert_eq!(topics.acknowledged(&topic(), second(306)), Some(Action::Closed(topic())));
    assert_eq!((topics.is_gone(&topic()), topics.forbidden_for(&topic())), (false, None));
}

#[test]
fn refusals_for_a_missing_right_with_an_acknowledgement_or_much_time_between_do_not_add_up() {
    let anew = Some(Action::Forbidden(topic(), SETTINGS.denial_max));
    let mut topics = TopicBreakers::new(SETTINGS);
    topics.add_in_flight(&topic(), 1, 10, second(0));
    assert_eq!(topics.forbidden(&topic(), second(0)), anew);
    assert_eq!(topics.forbidden(&topic(), second(80)), None);
    assert_eq!(topics.forbidden(&topic(), second(400)), anew, "nobody tried for long");
    topics.acknowledged(&topic(), second(410));
    assert_eq!(topics.forbidden(&topic(), second(411)), anew);
    topics.turn(second(412), false, |_| false);
    assert_eq!(topics.forbidden(&topic(), second(413)), anew, "all of Kafka was away");
}

#[test]
fn a_topic_that_is_not_shown_to_this_node_is_given_up_on_as_late_as_one_that_is_missing() {
    let mut topics = silent_topics();
    assert_eq!(
        topics.probed(&topic(), Sight::Forbidden, second(10)),
        Some(Action::Forbidden(topic(), SETTINGS.denial_max))
    );
    for n in (20..310).step_by(10) {
        assert_eq!(topics.probed(&topic(), Sight::Forbidden, second(n)), None);
    }
    assert_eq!(topics.probed(&topic(), Sight::Forbidden, second(310)), Some(Action::Gone(topic())));
    assert!(topics.forbidden_for(&topic()).is_some());
}
