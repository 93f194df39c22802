//! The topics of the latest batches: a node that starts fetches their metadata before it publishes, for its first second is its worst.

use std::time::Duration;

use super::connection::error::Error;
use super::connection::{Connection, Purpose, Settings};
use crate::domain::TopicName;

const PURPOSE: Purpose = Purpose { name: "recent topics", deadline: Duration::from_secs(2), settings: &[] };

const RECENT: &str = "-- recent topics
select distinct unnest(topic_names) as topic
from (select topic_names from execlog_batch where settled_at is not null order by batch desc limit 200) latest
limit 100";

/// At most 100 topics of the latest 200 batches.
pub async fn recent_topics(settings: &Settings) -> Result<Vec<TopicName>, Error> {
    let mut connection = Connection::new(settings, PURPOSE);
    let names = connection
        .run("read the topics of the latest batches", async |open| sqlx::query_scalar::<_, String>(RECENT).fetch_all(open).await)
        .await?;
    Ok(names.iter().map(|name| TopicName::stored(name)).collect())
}
