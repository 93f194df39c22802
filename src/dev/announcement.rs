//! The announcement of a dev server: where everything is, lines to paste, and its limits.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use crate::app::Handles;
use crate::clock;
use crate::config::{DevKafka, DevPostgres, DevSettings, RELEASE};
use crate::domain::Monotonic;
use crate::shutdown::TaskFailure;

/// Interval of the looks whether the node is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub struct Announcement {
    pub began_at: Monotonic,
    pub kafka: String,
    /// The URL of dev's own Postgres. That of a real one may have a password.
    pub database_url: Option<String>,
    pub settings: DevSettings,
}

impl Announcement {
    /// Waits until the node is ready, and prints the announcement.
    pub async fn make(self, handles: Handles) -> Result<(), TaskFailure> {
        while !handles.service.missing().is_empty() {
            tokio::select! {
                () = clock::sleep(POLL_INTERVAL) => {}
                () = handles.tasks.draining.cancelled() => return Ok(()),
            }
        }
        let Some(address) = handles.address.get() else { return Ok(()) };
        let text = if self.settings.json { self.json(*address) } else { self.text(*address) };
        let mut out = std::io::stdout().lock();
        // Nobody may read it. The server goes on.
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
        Ok(())
    }

    fn json(&self, address: SocketAddr) -> String {
        let line = serde_json::json!({
            "url": format!("http://{address}"),
            "kafka": self.kafka,
            "database_url": self.database_url,
        });
        format!("{line}\n")
    }

    fn text(&self, address: SocketAddr) -> String {
        let took = clock::monotonic().since(self.began_at).as_secs_f64();
        let Self { kafka, database_url, .. } = self;
        let database = database_url
            .as_ref()
            .map_or_else(|| "that of --database-url".to_owned(), |url| format!("psql '{url}'"));
        let (topics, topic, reading) = match &self.settings.kafka {
            DevKafka::Own { topics, .. } => {
                let names: Vec<String> =
                    topics.iter().map(|(name, count)| format!("{name}:{count}")).collect();
                let topic = topics.first().map_or("demo", |(name, _)| name.as_str());
                let reading = format!("  curl 'http://{address}/dev/published?topic={topic}'\n");
                (format!("topics {}", names.join(", ")), topic, reading)
            }
            DevKafka::Real(_) => ("not its own".to_owned(), "demo", String::new()),
        };
        let data = match &self.settings.postgres {
            DevPostgres::Own(None) => "Nothing survives the end of this process.",
            DevPostgres::Own(Some(_)) => "Tasks survive in --data; records of dev's broker do not.",
            DevPostgres::Real(_) => "Tasks survive in --database-url; the broker's records do not.",
        };
        let header = "-H 'content-type: application/json'";
        format!(
            "
Punctual {RELEASE} for development, ready after {took:.1} s (Ctrl-C ends all of it)

  REST API   http://{address}
  Console    http://{address}/console
  Kafka      {kafka}   {topics}
  Postgres   {database}

Submit a task that is due in 5 seconds:

  curl http://{address}/v1/tasks {header} \\
    -d '{{\"topic\":\"{topic}\",\"delay\":\"5s\",\"key\":\"order-17\",\"payload\":{{\"remind\":17}}}}'

Watch it arrive, with any Kafka client or without one:

  kcat -C -b {kafka} -t {topic} -f '%T %k %s\\n'
{reading}
Let 30 days pass, and all that is due until then go out:

  curl http://{address}/dev/clock {header} -d '{{\"advance\":\"30d\"}}'

Limits: {data}
One broker in memory, one node, no etcd: no proof of what failures do to your tasks. Not for
production.

"
        )
    }
}
