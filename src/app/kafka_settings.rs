//! Converts the settings of a node for Kafka.

use crate::config::{Property, SettingProblem, Settings};
use crate::kafka::{self, KafkaSettings};

/// Headroom of the producer's queue above the in-flight limit of the node, so that a full queue is
/// rare. A claim may exceed the limit by its own size.
const HEADROOM_TASKS: usize = 20_000;

pub fn of(settings: &Settings) -> KafkaSettings {
    KafkaSettings {
        bootstrap: settings.kafka.bootstrap.clone(),
        properties: Property::pairs(&settings.kafka.properties).into(),
        client_id: format!("punctual-{}", settings.node_name),
        producers: settings.kafka.producers,
        linger: settings.kafka.linger,
        publish_deadline: settings.kafka.publish_deadline,
        records_in_flight_max: settings.limits.in_flight_tasks.saturating_add(HEADROOM_TASKS),
        bytes_in_flight_max: settings.limits.in_flight_bytes.saturating_mul(2),
    }
}

/// Returns all problems of librdkafka properties. No value is repeated.
pub fn problems(properties: &[Property]) -> Vec<SettingProblem> {
    let of_property = |text| SettingProblem { flag: "--kafka-property", text };
    let is_nameless =
        |property: &&Property| property.is_from_list && !kafka::is_property(&property.name);
    let named = Property::pairs(properties.iter().filter(|property| !is_nameless(property)));
    let mut problems: Vec<SettingProblem> =
        kafka::problems_of_properties(&named).into_iter().map(of_property).collect();
    if properties.iter().any(|property| is_nameless(&property)) {
        problems.push(of_property(
            "PUNCTUAL_KAFKA_PROPERTIES has a property that librdkafka does not know; its name is \
             not shown, because it may be part of a password. A value with commas goes into \
             --kafka-property or --kafka-properties-file"
                .to_owned(),
        ));
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use crate::config::{self, CommandRefusal};

    fn said(flags: [&str; 2]) -> Vec<String> {
        let servers = if flags[0] == "--kafka" { &[][..] } else { &["--kafka", "b:1"] };
        let words = ["punctual", "serve", "--database-url", "postgres://localhost/punctual"];
        let words = words.iter().chain(servers).chain(&flags).map(OsString::from);
        match config::read(words, crate::app::problems) {
            Ok(_) => Vec::new(),
            Err(CommandRefusal::Problems(problems)) => {
                problems.iter().map(ToString::to_string).collect()
            }
            Err(CommandRefusal::Usage(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn an_unknown_property_is_named_unless_it_may_be_part_of_a_password() {
        let said_of_flag = said(["--kafka-property", "no.such.property=1"]);
        assert!(
            said_of_flag.len() == 1 && said_of_flag[0].contains("no.such.property"),
            "{said_of_flag:?}"
        );
        let said_of_list = said(["--kafka-properties", "sasl.password=a,hunter2=b"]);
        assert!(said_of_list.len() == 1 && said_of_list[0].contains("commas"), "{said_of_list:?}");
        assert!(!said_of_list[0].contains("hunter2"), "{said_of_list:?}");
        let known = said(["--kafka-properties", "acks=1,linger.ms=x"]);
        assert!(
            known.len() == 2 && known[0].contains("acks") && known[1].contains("linger.ms"),
            "{known:?}"
        );
        for said in [said_of_flag, said_of_list, known].concat() {
            assert!(said.starts_with("--kafka-property: "), "{said}");
        }
        let servers = said(["--kafka", "b:1,,b:2"]);
        assert!(servers.len() == 1 && servers[0].starts_with("--kafka: "), "{servers:?}");
    }
}
