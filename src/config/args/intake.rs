//! The flags of intake topics.

use clap::Args;

#[derive(Args, Debug)]
#[command(next_help_heading = "Intake topics")]
pub(in crate::config) struct IntakeTopics {
    /// A topic of Kafka whose records are submits; repeatable. Give all nodes the same topics.
    ///
    /// A record says in headers (punctual-topic, punctual-delay, ..) what to do with its key and
    /// its value. Wrong records go to the topic NAME.rejected, which must exist. With --auth-file,
    /// the records are submitted by the principal NAME, with its rights and limits.
    #[arg(long, env = "PUNCTUAL_INTAKE_TOPIC", value_name = "NAME", value_delimiter = ',')]
    pub intake_topic: Vec<String>,
    /// What to do with a wrong record when there is no topic NAME.rejected: wait (its partition
    /// waits), or skip (the record is lost).
    #[arg(long, env = "PUNCTUAL_INTAKE_ON_ERROR", value_name = "ACTION", default_value = "wait")]
    pub intake_on_error: String,
}
