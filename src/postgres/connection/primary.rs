//! Finds the primary among the hosts of a URL, and leaves a former one.
//!
//! **The timeline is the authority.** Each promotion begins a new timeline of the WAL, with a
//! higher number. A server that takes writes and has the highest timeline is the primary. A server
//! on a lower timeline than the highest seen by this process is a former primary, unaware of the
//! failover: tasks accepted there never reach the primary.
//!
//! - A new connection asks all hosts at once. A silent host costs at most [`OTHERS_MAX`]. A standby
//!   and a former primary are left at once.
//! - A session on a lower timeline ends before the next statement. So one connection with a new
//!   primary takes all others along.
//! - A hanging former primary (waiting for a lost standby) is left when a statement has reached the
//!   deadline: the next connection asks all hosts again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use sqlx::Row as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};

use super::error::Cause;
use super::login::log_in;

/// How long each of the other hosts may take to answer after a primary has.
const OTHERS_MAX: Duration = Duration::from_millis(500);

/// Through the simple protocol, so that a pooler in between may lead each statement elsewhere.
const ASK: &str = "-- is this the primary
select pg_is_in_recovery() as is_standby,
  case when pg_is_in_recovery() then '0' else substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)
  end as timeline";

/// The number of a timeline of the WAL. 0 for a session whose server was not asked, because the URL
/// has one host.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub(super) struct Timeline(u32);

/// The primary as found by the connections of this process, shared by all clones.
#[derive(Clone, Debug, Default)]
pub(super) struct Primary(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    found: Mutex<Option<Found>>,
    changes: AtomicU64,
}

#[derive(Clone, Debug)]
struct Found {
    place: String,
    timeline: Timeline,
}

/// Counts how often another server became the primary of this process.
#[derive(Clone, Debug)]
pub struct PrimaryChanges(Primary);

impl PrimaryChanges {
    pub fn get(&self) -> u64 {
        self.0.0.changes.load(Ordering::Acquire)
    }
}

/// A server that takes writes.
struct Candidate {
    place: String,
    timeline: Timeline,
    open: PgConnection,
}

impl Primary {
    pub(super) fn changes(&self) -> PrimaryChanges {
        PrimaryChanges(self.clone())
    }

    /// Returns true when another connection has found a primary with a higher timeline.
    pub(super) fn is_past(&self, timeline: Timeline) -> bool {
        self.0.found.lock().as_ref().is_some_and(|found| found.timeline > timeline)
    }

    /// Opens a session on the primary among `hosts`. Each of them has `deadline` to answer.
    pub(super) async fn connect(
        &self,
        hosts: Vec<PgConnectOptions>,
        deadline: Duration,
    ) -> Result<(PgConnection, Timeline), Cause> {
        let mut asked: FuturesUnordered<_> =
            hosts.into_iter().map(|host| ask(host, deadline)).collect();
        let mut best: Option<Candidate> = None;
        let mut against = Vec::new();
        loop {
            let next = match best {
                None => asked.next().await,
                // The others had their time: they are down, or too slow to be preferred.
                Some(_) => tokio::time::timeout(OTHERS_MAX, asked.next()).await.unwrap_or_default(),
            };
            match next {
                None => break,
                Some(Ok(found)) if best.as_ref().is_none_or(|b| found.timeline > b.timeline) => {
                    best = Some(found);
                }
                Some(Ok(former)) => against.push(format!("{} is a former primary", former.place)),
                Some(Err(reason)) => against.push(reason),
            }
        }
        match best {
            Some(found) => match self.note(&found.place, found.timeline) {
                Ok(()) => Ok((found.open, found.timeline)),
                Err(former) => {
                    against.push(former);
                    Err(Cause::NoPrimary(against.join("; ")))
                }
            },
            None => Err(Cause::NoPrimary(against.join("; "))),
        }
    }

    /// Notes the primary that a connection has found, or returns why it is a former one.
    fn note(&self, place: &str, timeline: Timeline) -> Result<(), String> {
        let mut noted = self.0.found.lock();
        let before = noted.take();
        if let Some(known) = &before
            && known.timeline > timeline
        {
            let why = format!(
                "{place} is a former primary (timeline {}; that of {} is {})",
                timeline.0, known.place, known.timeline.0
            );
            *noted = before;
            return Err(why);
        }
        let is_new = before.as_ref().is_none_or(|known| known.place != place);
        *noted = Some(Found { place: place.to_owned(), timeline });
        drop(noted);
        if is_new && let Some(before) = before {
            self.0.changes.fetch_add(1, Ordering::AcqRel);
            tracing::warn!(
                primary = place,
                timeline = timeline.0,
                before = before.place,
                "Postgres has another primary; connecting to it"
            );
        }
        Ok(())
    }
}

/// Asks a host whether it is a primary. Returns why it is none.
async fn ask(host: PgConnectOptions, deadline: Duration) -> Result<Candidate, String> {
    let place = place_of(&host);
    let asked = async {
        let mut open = log_in(&host).await?;
        let row = sqlx::raw_sql(ASK).fetch_one(&mut open).await?;
        let (is_standby, timeline): (bool, String) =
            (row.try_get("is_standby")?, row.try_get("timeline")?);
        Ok::<_, sqlx::Error>((open, is_standby, timeline))
    };
    let (open, is_standby, timeline) = match tokio::time::timeout(deadline, asked).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(format!("{place}: {}", Cause::from(error))),
        Err(_elapsed) => return Err(format!("{place}: no answer within {deadline:?}")),
    };
    if is_standby {
        return Err(format!("{place} is a standby"));
    }
    match u32::from_str_radix(&timeline, 16) {
        Ok(timeline) => Ok(Candidate { place, timeline: Timeline(timeline), open }),
        Err(error) => Err(format!("{place}: its timeline cannot be read: {error}")),
    }
}

/// Returns the host (or socket folder) and port, for messages.
pub(super) fn place_of(host: &PgConnectOptions) -> String {
    let name = match (host.get_socket(), host.get_host()) {
        (Some(path), _) => path.display().to_string(),
        (None, address) if address.contains(':') => format!("[{address}]"),
        (None, name) => name.to_owned(),
    };
    format!("{name}:{}", host.get_port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_former_primary_is_refused_and_its_sessions_are_left() {
        let (primary, first, second) = (Primary::default(), Timeline(1), Timeline(2));
        primary.note("a:1", first).unwrap();
        assert!(!primary.is_past(first) && primary.changes().get() == 0);
        primary.note("b:1", second).unwrap();
        assert!(primary.is_past(first) && !primary.is_past(second));
        let why = primary.note("a:1", first).unwrap_err();
        assert_eq!(why, "a:1 is a former primary (timeline 1; that of b:1 is 2)");
        primary.note("b:1", second).unwrap();
        assert!(primary.is_past(first) && primary.changes().get() == 1);
        // A switch back, by a promotion of the former primary.
        primary.note("a:1", Timeline(3)).unwrap();
        assert_eq!(primary.changes().get(), 2);
    }

    #[test]
    fn a_session_with_one_host_is_never_left() {
        assert!(!Primary::default().is_past(Timeline::default()));
    }

    #[tokio::test]
    async fn each_host_has_its_reason_when_none_is_the_primary() {
        let host = |port| PgConnectOptions::new().host("127.0.0.1").port(port);
        let failed =
            Primary::default().connect(vec![host(1), host(2)], Duration::from_secs(5)).await;
        let said = failed.map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("127.0.0.1:1: ") && said.contains("127.0.0.1:2: "), "{said}");
    }
}
