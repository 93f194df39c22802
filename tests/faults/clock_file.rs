//! Moves Postgres's clock: writes the file that `scripts/lib/clock.c` reads in each Postgres
//! process.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::time::SystemTime;

use super::clock::{Change, PostgresClock, Reading};

/// The size of a record. The file has a header of the same size, whose first number says which
/// record is valid, and then 256 records of three numbers.
const RECORD_BYTES: u64 = 24;

/// The clock file, and everything written to it in this round.
#[derive(Debug)]
pub struct ClockFile {
    file: File,
    done: Mutex<PostgresClock>,
}

impl ClockFile {
    /// Opens the file of a breakable stack, and sets Postgres's clock to the machine's clock.
    pub fn open(path: &str) -> Self {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .expect("open the file of Postgres's clock");
        let clock = Self { file, done: Mutex::default() };
        clock.write(0, 0);
        clock
    }

    /// Steps Postgres's clock forward, and makes it run fast by `ppm` parts per million from then
    /// on. An earlier rate ends.
    pub fn step(&self, forward_ms: i64, ppm: i64) {
        let now = now_us();
        let offset = self.offset_us(now) + forward_ms * 1000;
        self.write(offset, ppm);
    }

    fn write(&self, offset_us: i64, ppm: i64) {
        let mut done = self.done.lock().unwrap();
        let mut valid = [0];
        self.file.read_exact_at(&mut valid, 0).expect("read which record of the clock is valid");
        let next = valid[0].wrapping_add(1);
        let before_us = now_us();
        let record = [before_us, offset_us, ppm].map(i64::to_ne_bytes).concat();
        self.file
            .write_all_at(&record, RECORD_BYTES * (1 + u64::from(next)))
            .expect("write a record of the clock");
        self.file.write_all_at(&[next], 0).expect("make the record of the clock valid");
        done.changes.push(Change { before_us, after_us: now_us(), offset_us, ppm });
    }

    fn offset_us(&self, at_us: i64) -> i64 {
        self.done.lock().unwrap().changes.last().map_or(0, |change| change.offset_at(at_us))
    }

    /// Returns how far Postgres's clock is ahead of the machine's clock, in whole milliseconds.
    pub fn offset_ms(&self) -> i64 {
        self.offset_us(now_us()).div_euclid(1000)
    }

    /// Asks Postgres for the time and records the answer.
    pub async fn note_reading(&self, sql: &sqlx::PgPool) -> Result<(), sqlx::Error> {
        let asked_us = now_us();
        let query = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        let shown_us = sqlx::query_scalar(query).fetch_one(sql).await?;
        let reading = Reading { asked_us, shown_us, answered_us: now_us() };
        self.done.lock().unwrap().readings.push(reading);
        Ok(())
    }

    /// Returns the changes of this round.
    pub fn done(&self) -> PostgresClock {
        self.done.lock().unwrap().clone()
    }
}

/// Returns the microseconds since the epoch by the machine's wall clock.
fn now_us() -> i64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    i64::try_from(since.as_micros()).unwrap()
}
