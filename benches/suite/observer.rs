//! Observes a long run: the rows left behind in Postgres, and the time of the claims. The report
//! compares the same parts of the run as a soak.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use punctual::bench::results::report::BenchReport;
use punctual::bench::scenarios::lateness;
use punctual::shutdown::TaskFailure;
use sqlx::{Connection as _, PgConnection, Row as _};

const LOOK_EVERY: Duration = Duration::from_secs(5);

/// Autovacuum decides by `n_live_tup` and `n_dead_tup`. Leaves are never analyzed, so their count
/// of dead rows is exact up to the counters' delay of a second.
const LOOK: &str = "-- look at a long run
select
  (select count(*)::float8 from pg_class where relkind = 'r'
    and relnamespace = 'public'::regnamespace) as tables,
  (select count(*)::float8 from pg_inherits where inhparent = to_regclass('task')) as leaves,
  (select coalesce(sum(n_dead_tup), 0)::float8 from pg_stat_user_tables) as dead_rows,
  pg_database_size(current_database()) / 1048576.0::float8 as mebibytes";

/// One observation, with its time after the first.
#[derive(Clone, Debug, Default)]
struct Look {
    at: Duration,
    tables: f64,
    leaves: f64,
    dead_rows: f64,
    mebibytes: f64,
    /// Claims since the start of the node: their total time in seconds, and their count.
    claims: Option<(f64, f64)>,
}

type Looks = Arc<Mutex<Vec<Look>>>;

/// Takes observations until ended.
pub struct Observer {
    looking: tokio::task::JoinHandle<Result<(), TaskFailure>>,
    looks: Looks,
}

impl Observer {
    /// Observes a database, and the metrics of a node if the contender is Punctual.
    pub fn start(url: &str, node: Option<&str>) -> Self {
        let looks = Looks::default();
        let looking =
            tokio::spawn(look(url.to_owned(), node.map(str::to_owned), Arc::clone(&looks)));
        Self { looking, looks }
    }

    /// Adds the observations to a report. `measured` began `lead` after the observer.
    pub async fn end(
        self,
        report: &mut BenchReport,
        lead: Duration,
        measured: Duration,
    ) -> Result<(), TaskFailure> {
        if self.looking.is_finished() {
            self.looking.await??;
            return Err("the observer of the run ended before it".into());
        }
        self.looking.abort();
        let looks = std::mem::take(&mut *self.looks.lock());
        for (name, range) in lateness::spans(&report.scenario, measured) {
            let range = lead + range.start..lead + range.end;
            let within: Vec<&Look> = looks.iter().filter(|look| range.contains(&look.at)).collect();
            let mut most = |what: &str, of: fn(&Look) -> f64| {
                report.fact(
                    &format!("most {what} in the {name}"),
                    within.iter().map(|look| of(look)).fold(0.0, f64::max),
                );
            };
            most("tables", |look| look.tables);
            most("leaves", |look| look.leaves);
            most("dead rows", |look| look.dead_rows);
            most("MiB of database", |look| look.mebibytes);
            if let [first, .., last] = within.as_slice()
                && let (Some(first), Some(last)) = (first.claims, last.claims)
                && last.1 > first.1
            {
                report.fact(
                    &format!("mean claim of the {name}, ms"),
                    (last.0 - first.0) / (last.1 - first.1) * 1000.0,
                );
            }
        }
        Ok(())
    }
}

async fn look(url: String, node: Option<String>, looks: Looks) -> Result<(), TaskFailure> {
    let mut connection = PgConnection::connect(&url).await?;
    let client = reqwest::Client::builder().no_proxy().timeout(LOOK_EVERY).build()?;
    let began = Instant::now();
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    loop {
        ticks.tick().await;
        let at = began.elapsed();
        let row = sqlx::query(LOOK).fetch_one(&mut connection).await?;
        let number = |name: &str| row.try_get::<f64, _>(name);
        let claims = match &node {
            Some(node) => {
                Some(claims(&client.get(format!("{node}/metrics")).send().await?.text().await?)?)
            }
            None => None,
        };
        let look = Look {
            at,
            tables: number("tables")?,
            leaves: number("leaves")?,
            dead_rows: number("dead_rows")?,
            mebibytes: number("mebibytes")?,
            claims,
        };
        looks.lock().push(look);
    }
}

/// Returns the total time in seconds and the count of the claims that took tasks.
fn claims(metrics: &str) -> Result<(f64, f64), TaskFailure> {
    let value = |name: &str| -> Result<f64, TaskFailure> {
        let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Ok(line.ok_or_else(|| format!("the node does not tell {name}"))?.trim().parse()?)
    };
    Ok((
        value("punctual_claim_duration_seconds_sum")?,
        value("punctual_claim_duration_seconds_count")?,
    ))
}
