//! The parsed settings of intake topics.

use crate::config::args::IntakeTopics;
use crate::config::reader::SettingsReader;
use crate::config::units::printable;
use crate::domain::TopicName;

/// The intake topics that a node reads.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct IntakeSettings {
    pub topics: Vec<IntakeTopic>,
    /// A rejected record is dropped when there is no rejected topic.
    pub skips: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IntakeTopic {
    /// Also the name of a principal.
    pub topic: TopicName,
    /// The topic for records that cannot be tasks.
    pub rejected_topic: TopicName,
}

/// The most intake topics of a node. Each has a consumer and a connection of its own.
const TOPICS_MAX: usize = 16;
/// The longest name of a principal.
const NAME_BYTES_MAX: usize = 100;
const SUFFIX: &str = ".rejected";
const FLAG: &str = "--intake-topic";
const ON_ERROR: &str = "--intake-on-error";

/// Parses the intake topics of a node.
pub(in crate::config) fn intakes(
    args: &IntakeTopics,
    reader: &mut SettingsReader,
) -> IntakeSettings {
    let mut topics: Vec<IntakeTopic> = Vec::new();
    for name in args.intake_topic.iter().map(|name| name.trim()) {
        let (topic, rejected) = (TopicName::new(name), TopicName::new(&format!("{name}{SUFFIX}")));
        let (topic, rejected_topic) = match (topic, rejected) {
            (Ok(topic), Ok(rejected)) => (topic, rejected),
            (Err(error), _) | (_, Err(error)) => {
                reader.problem(FLAG, format!("{}: {error}", printable(name)));
                continue;
            }
        };
        if topic.is_internal() || name.len() > NAME_BYTES_MAX {
            let text = "an internal topic of Kafka, or a name of more than 100 characters";
            reader.problem(FLAG, format!("{name}: {text}"));
        }
        if topics.iter().any(|other| other.topic == topic) {
            reader.problem(FLAG, format!("{name}: the topic is given twice"));
        }
        topics.push(IntakeTopic { topic, rejected_topic });
    }
    if let Some(both) =
        topics.iter().find(|one| topics.iter().any(|other| other.rejected_topic == one.topic))
    {
        let text = format!("{}: this topic takes the rejected records of another", both.topic);
        reader.problem(FLAG, text);
    }
    if topics.len() > TOPICS_MAX {
        reader.problem(FLAG, format!("a node reads {TOPICS_MAX} intake topics at most"));
    }
    let skips = match args.intake_on_error.trim() {
        "wait" => false,
        "skip" => true,
        other => {
            reader.problem(ON_ERROR, format!("{}: expected wait or skip", printable(other)));
            false
        }
    };
    IntakeSettings { topics, skips }
}
