//! Connections and callers, as the limits count them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use az::SaturatingAs as _;
use parking_lot::{Mutex, MutexGuard};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::api::server::hang_up::HangUp;
use crate::domain::Monotonic;

/// The counters of one connection: requests, open requests, and the idle time.
#[derive(Debug)]
pub struct CallerConnection {
    pub caller: Caller,
    is_multiplexed: AtomicBool,
    asked: AtomicU64,
    open: AtomicUsize,
    idle_since_millis: AtomicU64,
    has_rest: AtomicBool,
    left: Mutex<Option<TcpStream>>,
    /// Tells a request that its caller is gone.
    pub hang_up: HangUp,
}

impl CallerConnection {
    pub fn new(caller: Caller, now: Monotonic) -> Self {
        Self {
            caller,
            is_multiplexed: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            open: AtomicUsize::new(0),
            idle_since_millis: AtomicU64::new(millis_of(now)),
            has_rest: AtomicBool::new(false),
            left: Mutex::new(None),
            hang_up: HangUp::default(),
        }
    }

    /// Counts a request whose header has been read.
    pub fn opened(&self, is_multiplexed: bool) {
        self.is_multiplexed.store(is_multiplexed, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.asked.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts the end of a request: its answer is written, or its caller is gone.
    pub fn closed(&self, now: Monotonic) {
        self.idle_since_millis.store(millis_of(now), Ordering::Relaxed);
        self.open.fetch_sub(1, Ordering::Release);
    }

    /// Records that an HTTP/1 request was answered before the whole body had arrived. No other
    /// request can follow on the connection.
    pub fn leaves_rest(&self) {
        self.has_rest.store(true, Ordering::Release);
    }

    pub fn has_rest(&self) -> bool {
        self.has_rest.load(Ordering::Acquire)
    }

    /// Keeps the socket of the connection for the lingering close.
    pub fn leave(&self, stream: TcpStream) {
        *self.left.lock() = Some(stream);
    }

    /// Returns the socket after the connection has ended, if the other side may still be sending.
    pub fn take_left(&self) -> Option<TcpStream> {
        self.left.lock().take()
    }

    /// True for an HTTP/2 connection that has had a request.
    pub fn is_multiplexed(&self) -> bool {
        self.is_multiplexed.load(Ordering::Relaxed)
    }

    /// True while a request is being answered.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire) > 0
    }

    /// Returns the number of requests since the connection began.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }

    /// Returns how long the connection has been without a request; `None` while it has one.
    pub fn idle_for(&self, now: Monotonic) -> Option<Duration> {
        if self.is_open() {
            return None;
        }
        let since = self.idle_since_millis.load(Ordering::Relaxed);
        Some(Duration::from_millis(millis_of(now).saturating_sub(since)))
    }
}

fn millis_of(moment: Monotonic) -> u64 {
    moment.since_start().as_millis().saturating_as::<u64>()
}

/// The connected callers. Each address with an open connection has one entry, so the limit on
/// connections also limits the entries.
#[derive(Clone, Debug, Default)]
pub struct Callers(Arc<Mutex<HashMap<IpAddr, Entered>>>);

#[derive(Debug, Default)]
struct Entered {
    connections: usize,
    places: Arc<Places>,
}

/// The use of a place. Each purpose has its own places, so callers that take all places of one kind
/// cannot block the platform's health checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlacePurpose {
    Work,
    /// `/livez` and `/readyz`.
    Health,
    /// `/metrics`.
    Metrics,
    /// The documents that everybody may read.
    Documents,
}

/// The places that a caller has taken.
#[derive(Debug, Default)]
struct Places {
    work: AtomicUsize,
    health: AtomicUsize,
    metrics: AtomicUsize,
    documents: AtomicUsize,
    /// Set by the first request with a body or with a large answer.
    memory: OnceLock<MemoryShare>,
}

impl Places {
    fn of(&self, purpose: PlacePurpose) -> &AtomicUsize {
        match purpose {
            PlacePurpose::Work => &self.work,
            PlacePurpose::Health => &self.health,
            PlacePurpose::Metrics => &self.metrics,
            PlacePurpose::Documents => &self.documents,
        }
    }
}

/// The share of one caller in the memory of bodies and large answers. All requests of the caller
/// take from it.
#[derive(Clone, Debug)]
pub struct MemoryShare {
    free: Arc<Semaphore>,
    bytes_max: u32,
}

impl MemoryShare {
    pub fn new(bytes_max: u32) -> Self {
        let permits = usize::try_from(bytes_max).unwrap_or(Semaphore::MAX_PERMITS);
        Self { free: Arc::new(Semaphore::new(permits)), bytes_max }
    }

    /// Takes `bytes` more for a request that has `held` bytes of the share. Returns `None` when
    /// other requests of the caller leave too little. One request never needs more than the whole
    /// share, so a larger body passes alone.
    pub fn take(&self, bytes: u32, held: u32) -> Option<OwnedSemaphorePermit> {
        let wanted = bytes.min(self.bytes_max.saturating_sub(held));
        Arc::clone(&self.free).try_acquire_many_owned(wanted).ok()
    }

    /// Takes `bytes` for an answer, after other requests of the caller have left enough.
    pub async fn wait_for(&self, bytes: u32) -> Option<OwnedSemaphorePermit> {
        let wanted = bytes.min(self.bytes_max);
        Arc::clone(&self.free).acquire_many_owned(wanted).await.ok()
    }
}

impl Callers {
    /// Counts a new connection from `address`. Returns `None` when the caller has reached its limit
    /// of connections.
    pub fn enter(&self, address: IpAddr, connections_max: usize) -> Option<Caller> {
        let (address, peer) = (caller_of(address), address.to_canonical());
        let mut all = self.lock();
        let entered = all.entry(address).or_default();
        if entered.connections > 0 && entered.connections >= connections_max {
            return None;
        }
        entered.connections += 1;
        Some(Caller { places: entered.places.clone(), address, peer, callers: self.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<IpAddr, Entered>> {
        self.0.lock()
    }
}

/// Returns the address that identifies a caller. For IPv6 this is the /64 network, because one host
/// usually gets a whole one.
fn caller_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & (u128::MAX << 64)))
        }
        of_version_4 => of_version_4,
    }
}

/// One caller. Each of its connections has a handle.
#[derive(Debug)]
pub struct Caller {
    places: Arc<Places>,
    address: IpAddr,
    peer: IpAddr,
    callers: Callers,
}

impl Caller {
    /// Returns the caller's address. All addresses of an IPv6 /64 network are one caller.
    pub const fn address(&self) -> IpAddr {
        self.address
    }

    /// Returns the address of the connection's other side.
    pub const fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Takes one of the caller's `max` places for `purpose`. Returns false when all are taken.
    pub fn take_place(&self, purpose: PlacePurpose, max: usize) -> bool {
        let more = |taken: usize| (taken < max).then_some(taken + 1);
        self.places.of(purpose).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    pub fn free_place(&self, purpose: PlacePurpose) {
        self.places.of(purpose).fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the caller's share of the memory of bodies: `bytes_max`, which is the same for all
    /// callers of a port.
    pub fn memory_share(&self, bytes_max: u32) -> MemoryShare {
        self.places.memory.get_or_init(|| MemoryShare::new(bytes_max)).clone()
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Entry::Occupied(mut entered) = self.callers.lock().entry(self.address) {
            entered.get_mut().connections -= 1;
            if entered.get().connections == 0 {
                entered.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_is_forgotten_with_its_last_connection() {
        let callers = Callers::default();
        let [first, second] = ["::ffff:10.0.0.1", "10.0.0.1"]
            .map(|address| callers.enter(address.parse().unwrap(), 2).unwrap());
        assert!(
            first.take_place(PlacePurpose::Work, 1) && !second.take_place(PlacePurpose::Work, 1),
            "they are one caller"
        );
        second.free_place(PlacePurpose::Work);
        assert!(second.take_place(PlacePurpose::Work, 1));
        drop(first);
        assert_eq!(callers.lock().len(), 1);
        drop(second);
        assert!(callers.lock().is_empty());
    }

    #[test]
    fn a_network_of_ipv6_is_one_caller() {
        let callers = Callers::default();
        let [first, second, other] = ["2001:db8::1", "2001:db8::2:3", "2001:db8:0:1::1"]
            .map(|address| callers.enter(address.parse().unwrap(), 2).unwrap());
        let take = |caller: &Caller| caller.take_place(PlacePurpose::Work, 1);
        assert!(take(&first) && !take(&second) && take(&other));
    }

    #[test]
    fn a_caller_has_so_many_connections_and_others_have_theirs() {
        let callers = Callers::default();
        let enter = |address: &str| callers.enter(address.parse().unwrap(), 2);
        let (first, second) = (enter("10.0.0.1"), enter("10.0.0.1"));
        assert!(first.is_some() && second.is_some() && enter("10.0.0.1").is_none());
        let other = enter("10.0.0.2");
        assert!(other.is_some());
        drop(first);
        assert!(enter("10.0.0.1").is_some());
        drop((second, other));
        assert!(callers.lock().is_empty());
    }

    #[test]
    fn each_purpose_has_places_of_its_own() {
        let caller = Callers::default().enter(Ipv6Addr::LOCALHOST.into(), 1).unwrap();
        use PlacePurpose::{Documents, Health, Metrics, Work};
        for purpose in [Work, Metrics, Health, Documents] {
            assert!(caller.take_place(purpose, 1) && !caller.take_place(purpose, 1), "{purpose:?}");
        }
    }

    #[test]
    fn the_requests_of_a_caller_share_its_memory_and_a_larger_one_passes_alone() {
        let callers = Callers::default();
        let entered = ["10.0.0.1", "10.0.0.1", "10.0.0.2"]
            .map(|address| callers.enter(address.parse().unwrap(), 2).unwrap());
        let [first, second, other] = entered.each_ref().map(|caller| caller.memory_share(10));
        let held = first.take(6, 0).unwrap();
        assert!(second.take(5, 0).is_none() && other.take(10, 0).is_some());
        assert_eq!(first.take(9, 6).unwrap().num_permits(), 4, "up to the whole share");
        drop(held);
        assert_eq!(second.take(11, 0).unwrap().num_permits(), 10);
        assert_eq!(second.take(1, 10).unwrap().num_permits(), 0);
    }

    #[test]
    fn a_connection_is_idle_from_the_end_of_its_last_request() {
        let at = |seconds| Monotonic::from_start(Duration::from_secs(seconds));
        let connection = CallerConnection::new(
            Callers::default().enter(Ipv6Addr::LOCALHOST.into(), 1).unwrap(),
            at(1),
        );
        assert_eq!(connection.idle_for(at(3)), Some(Duration::from_secs(2)));
        connection.opened(true);
        connection.opened(true);
        connection.closed(at(4));
        assert_eq!(connection.idle_for(at(5)), None);
        connection.closed(at(6));
        assert_eq!(
            (connection.idle_for(at(9)), connection.asked()),
            (Some(Duration::from_secs(3)), 2)
        );
    }
}
