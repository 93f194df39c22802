//! The place of a request among those in flight, and the answer with this place.

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use az::SaturatingAs as _;
use hyper::body::{Body as HttpBody, Frame, Incoming, SizeHint};
use hyper::rt::Executor as _;
use hyper_util::rt::TokioExecutor;
use tokio::sync::OwnedSemaphorePermit;

use super::linger::LingerLimits;
use super::unread_body::{self, Left, UnreadBody};
use crate::access::limits::InProgress;
use crate::api::callers::{CallerConnection, MemoryShare, PlacePurpose};
use crate::api::problems::problem::Problem;
use crate::api::shared::{ApiShared, BODY_MEMORY_SHARE};
use crate::clock;

/// The largest piece of an answer that a connection gets at once. The next piece follows when the
/// one before is on its way. An unread answer thus keeps its place and its share of the memory
/// until the connection is cut off.
const PIECE_BYTES: usize = 64 << 10;
/// The last byte of a longer answer is a piece of its own. HTTP/2 takes the last piece only when
/// the connection has taken all bytes before, and the place is kept until then.
const TAIL_BYTES: usize = 1;
/// An answer up to this size goes in one piece, and may wait in the connection without a place.
const SMALL_BYTES: usize = 1 << 10;
/// Places of each caller for health checks, and as many for metrics. A platform has one or two of
/// each in progress.
const PROBES_AT_ONCE_MAX: usize = 16;

/// The resources of a request, from the header until the answer is written or the caller has gone.
#[derive(Debug)]
pub struct RequestPlace {
    shared: Arc<ApiShared>,
    connection: Arc<CallerConnection>,
    /// The purpose of the place, once the place is taken.
    taken_for: Option<PlacePurpose>,
    memory: Option<(AnswerMemory, u32)>,
    /// Only for requests with a body.
    left: Option<Left>,
    /// Counts the request for its principal.
    _in_progress: Option<InProgress>,
}

/// The memory of an answer: of all answers and bodies, and of the caller's share.
#[derive(Debug)]
struct AnswerMemory {
    _of_all: OwnedSemaphorePermit,
    _of_share: OwnedSemaphorePermit,
}

impl RequestPlace {
    pub fn new(
        shared: Arc<ApiShared>,
        connection: Arc<CallerConnection>,
        is_multiplexed: bool,
    ) -> Self {
        connection.opened(is_multiplexed);
        shared.metrics.in_flight.inc();
        Self { shared, connection, taken_for: None, memory: None, left: None, _in_progress: None }
    }

    pub fn caller(&self) -> IpAddr {
        self.connection.caller.address()
    }

    /// Returns the caller's own address.
    pub fn address(&self) -> IpAddr {
        self.connection.caller.peer()
    }

    /// Says where the request's body leaves its unread rest.
    pub fn note_unread_rest(&mut self, left: Left) {
        self.left = Some(left);
    }

    /// Counts the request among those of its principal until the answer is written.
    pub fn count(&mut self, in_progress: Option<InProgress>) {
        self._in_progress = in_progress;
    }

    /// Handles the unread rest of the request's body before the answer is written. `may_read` is
    /// true when the caller sends the body without waiting for a `100 Continue`. Returns true when
    /// no other request can follow.
    pub async fn settle_rest(&mut self, may_read: bool) -> bool {
        let mut rest = match self.left.take().map(|left| left.take()) {
            None | Some(UnreadBody::Nothing) => return false,
            Some(UnreadBody::Unread(rest)) if may_read => rest,
            Some(UnreadBody::Broken | UnreadBody::Unread(_)) => return self.leaves_rest(),
        };
        if unread_body::is_read(&mut rest).await {
            return false;
        }
        if self.connection.is_multiplexed() {
            self.read_on(rest);
        }
        self.leaves_rest()
    }

    /// Marks an HTTP/1 connection as one with a rest to read. Returns true over HTTP/1.
    fn leaves_rest(&self) -> bool {
        let is_last = !self.connection.is_multiplexed();
        if is_last {
            self.connection.leaves_rest();
        }
        is_last
    }

    /// Reads the rest of a body beside the answer. The connection's limit on streams limits these
    /// readers, too; they hold no place.
    fn read_on(&self, rest: Incoming) {
        let shared = self.shared.clone();
        let limits =
            LingerLimits::new(shared.settings.body_bytes_max, shared.settings.answer_timeout);
        TokioExecutor::new().execute(async move {
            let is_at_end =
                unread_body::read_on(rest, limits, || !shared.service.is_draining()).await;
            if !is_at_end {
                shared.metrics.cut_off("rest");
            }
        });
    }

    /// Takes one of the caller's places for `purpose`, and one of the node's.
    pub fn take(&mut self, purpose: PlacePurpose) -> Result<(), Problem> {
        let shared = &self.shared;
        let (caller_max, caller_limit, set_by) = match purpose {
            PlacePurpose::Work => {
                (shared.settings.caller_requests_max, "caller_requests", "--caller-requests-max")
            }
            PlacePurpose::Health => {
                (PROBES_AT_ONCE_MAX, "caller_probes", "for /livez and /readyz, not a setting")
            }
            PlacePurpose::Metrics => {
                (PROBES_AT_ONCE_MAX, "caller_probes", "for /metrics, not a setting")
            }
            PlacePurpose::Documents => {
                (PROBES_AT_ONCE_MAX, "caller_probes", "for documents, not a setting")
            }
        };
        if !self.connection.caller.take_place(purpose, caller_max) {
            shared.metrics.rejected(caller_limit);
            shared.log_refused_caller(caller_limit, self.caller());
            return Err(Problem::too_many_requests(self.caller(), caller_max, set_by));
        }
        if let Some((places, limit)) = shared.places(purpose) {
            let Ok(permit) = places.try_acquire() else {
                self.connection.caller.free_place(purpose);
                return Err(Problem::busy(limit));
            };
            permit.forget();
        }
        self.taken_for = Some(purpose);
        Ok(())
    }

    /// Gives the place back before the answer is written, which must be small. Callers without
    /// rights could otherwise hold all places by not reading their answers. The limits on
    /// connections and streams limit these answers.
    pub fn give_back(&mut self) {
        let Some(purpose) = self.taken_for.take() else { return };
        if let Some((places, _)) = self.shared.places(purpose) {
            places.add_permits(1);
        }
        self.connection.caller.free_place(purpose);
    }

    /// Returns the caller's share of the memory of bodies and large answers.
    pub fn memory_share(&self) -> MemoryShare {
        self.connection.caller.memory_share(self.shared.body_memory_share)
    }

    /// Reserves `bytes` of memory for the answer. When the memory or the caller's share of it is
    /// used up, an answer to a request that changed nothing is refused. An answer that reports a
    /// change waits until others are written.
    pub async fn hold_answer(
        &mut self,
        bytes: u64,
        has_changed_nothing: bool,
    ) -> Result<(), Problem> {
        let permits = bytes.saturating_as::<u32>().min(self.shared.body_memory_max);
        let memory = match self.take_memory(permits) {
            Ok(memory) => memory,
            Err(limit) if has_changed_nothing => return Err(Problem::busy(limit)),
            Err(limit) => self.wait_for_memory(permits, limit).await.ok_or_else(|| {
                self.shared.metrics.rejected(limit);
                Problem::answer_lost(limit)
            })?,
        };
        self.shared.metrics.body_memory.inc_by(i64::from(permits));
        self.memory = Some((memory, permits));
        Ok(())
    }

    /// Takes memory that is free now. Fails with the limit that is reached.
    fn take_memory(&self, permits: u32) -> Result<AnswerMemory, &'static str> {
        let of_share = self.memory_share().take(permits, 0).ok_or(BODY_MEMORY_SHARE)?;
        match self.shared.body_memory.clone().try_acquire_many_owned(permits) {
            Ok(of_all) => Ok(AnswerMemory { _of_all: of_all, _of_share: of_share }),
            Err(_none_left) => Err("body_memory"),
        }
    }

    /// Waits until other answers are written, because a limit is reached. A waiting answer is in
    /// memory already, so only some may wait. A caller at its share leaves half of the places to
    /// the others.
    async fn wait_for_memory(&self, permits: u32, limit: &str) -> Option<AnswerMemory> {
        let shared = &self.shared;
        let (places, places_max) = (&shared.waiting_answers, shared.waiting_answers_max);
        let kept = if limit == BODY_MEMORY_SHARE { places_max / 2 } else { 0 };
        // A larger answer may wait, too: it counts as all the places that it may take.
        let wanted = permits.min(places_max - kept);
        if places.available_permits().saturating_as::<u32>() < wanted.saturating_add(kept) {
            return None;
        }
        let _waits = places.try_acquire_many(wanted).ok()?;
        let share = self.memory_share();
        let waiting = async {
            // The share comes first: an answer that waits for it holds nothing of the others'.
            let of_share = share.wait_for(permits).await?;
            let of_all = shared.body_memory.clone().acquire_many_owned(permits).await.ok()?;
            Some(AnswerMemory { _of_all: of_all, _of_share: of_share })
        };
        shared.deadline().hold(waiting).await.ok()?
    }

    /// True when an answer of `bytes` must reserve its memory. The limit on places limits smaller
    /// answers. The same holds for answers to probes, which are sent even when the memory is used
    /// up, and for documents: the only large one is shared.
    pub fn must_hold(&self, bytes: u64) -> bool {
        !matches!(
            self.taken_for,
            Some(PlacePurpose::Health | PlacePurpose::Metrics | PlacePurpose::Documents)
        ) && is_large(bytes)
    }
}

impl Drop for RequestPlace {
    fn drop(&mut self) {
        self.give_back();
        if let Some((_, bytes)) = &self.memory {
            self.shared.metrics.body_memory.dec_by(i64::from(*bytes));
        }
        self.shared.metrics.in_flight.dec();
        self.connection.closed(clock::monotonic());
    }
}

/// True for an answer that goes in several pieces.
pub fn is_large(bytes: u64) -> bool {
    u64::try_from(PIECE_BYTES).is_ok_and(|piece| bytes > piece)
}

/// The body of an answer, together with the place of its request.
#[derive(Debug)]
pub struct Answer {
    body: Body,
    /// The unsent rest of a large piece of `body`.
    rest: Bytes,
    _place: RequestPlace,
}

impl Answer {
    pub fn new(body: Body, place: RequestPlace) -> Self {
        Self { body, rest: Bytes::new(), _place: place }
    }

    /// Returns the next piece. The piece of a larger answer is a copy: a slice would keep the whole
    /// answer in memory until the piece is written.
    fn next_piece(&mut self) -> Frame<Bytes> {
        let length = match self.rest.len() {
            small @ ..=SMALL_BYTES => small,
            large => (large - TAIL_BYTES).min(PIECE_BYTES),
        };
        let piece = self.rest.split_to(length);
        Frame::data(if self.rest.is_empty() { piece } else { Bytes::copy_from_slice(&piece) })
    }
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.rest.is_empty() {
            return Poll::Ready(Some(Ok(self.next_piece())));
        }
        let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(cx));
        let Some(Ok(frame)) = frame else { return Poll::Ready(frame) };
        match frame.into_data() {
            Ok(data) => {
                self.rest = data;
                Poll::Ready(Some(Ok(self.next_piece())))
            }
            Err(trailers) => Poll::Ready(Some(Ok(trailers))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len().saturating_as::<u64>();
        let mut hint = self.body.size_hint();
        if let Some(upper) = hint.upper() {
            hint.set_upper(upper.saturating_add(rest));
        }
        hint.set_lower(hint.lower().saturating_add(rest));
        hint
    }
}
