//! Finds out that the caller of an HTTP/1 request has hung up, while the request runs.
//!
//! hyper does not read from a connection during a request, so that a caller may close its sending
//! side. A call that waits for a task must know it all the same: the task would be given to nobody.
//! The handler asks for a second handle of the socket. [`super::watched`] gives it when hyper next
//! flushes the connection, which it does after each poll of a handler. With HTTP/2, hyper drops the
//! request of a caller that is gone.

use std::future::pending;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::sync::oneshot;

/// The handle of a connection's socket that a request waits for.
#[derive(Debug, Default)]
pub struct HangUp {
    /// Each flush of the connection reads it, hence without a lock.
    is_wanted: AtomicBool,
    wanted: Mutex<Option<oneshot::Sender<OwnedFd>>>,
}

impl HangUp {
    /// Waits until the caller has closed the connection, or its sending side.
    pub async fn wait(&self) {
        let (sender, receiver) = oneshot::channel();
        *self.wanted.lock() = Some(sender);
        self.is_wanted.store(true, Ordering::Release);
        // Without a handle, the call waits as if the caller were there.
        let Ok(socket) = receiver.await else { return pending().await };
        if let Err(error) = closed(socket).await {
            tracing::debug!(%error, "cannot see whether a caller hangs up");
            pending().await
        }
    }

    /// Gives a handle to the request that waits for one.
    pub fn give(&self, stream: &TcpStream) {
        if !self.is_wanted.load(Ordering::Acquire) {
            return;
        }
        self.is_wanted.store(false, Ordering::Release);
        let Some(wanted) = self.wanted.lock().take() else { return };
        match stream.as_fd().try_clone_to_owned() {
            Ok(socket) => {
                if wanted.send(socket).is_err() {
                    tracing::trace!("the request has ended");
                }
            }
            Err(error) => tracing::debug!(%error, "a second handle of a socket"),
        }
    }
}

/// Waits until the other side has closed its sending side. Bytes that come before stay unread.
async fn closed(socket: OwnedFd) -> io::Result<()> {
    let socket = TcpStream::from_std(socket.into())?;
    while !socket.ready(Interest::READABLE).await?.is_read_closed() {
        // Waits for the next event. What has come is for hyper, which has a readiness of its own.
        let waits = || Err::<(), _>(io::ErrorKind::WouldBlock.into());
        if let Err(error) = socket.try_io(Interest::READABLE, waits)
            && error.kind() != io::ErrorKind::WouldBlock
        {
            return Err(error);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let caller = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (caller, listener.accept().await.unwrap().0)
    }

    #[tokio::test]
    async fn a_caller_that_sends_more_has_not_hung_up_and_nothing_is_read() {
        let (mut caller, mut stream) = pair().await;
        let (hang_up, is_gone) = (HangUp::default(), Cell::new(false));
        let flushes = async {
            while hang_up.wanted.lock().is_none() {
                tokio::task::yield_now().await;
            }
            hang_up.give(&stream);
            caller.write_all(b"more").await.unwrap();
            tokio::time::timeout(Duration::from_millis(50), pending::<()>()).await.unwrap_err();
            is_gone.set(true);
            drop(caller);
        };
        let waits = async {
            hang_up.wait().await;
            assert!(is_gone.get(), "it has only sent more");
        };
        let waits = tokio::time::timeout(Duration::from_secs(60), waits);
        let (waited, ()) = tokio::join!(waits, flushes);
        waited.unwrap();
        let mut rest = String::new();
        stream.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "more");
    }

    #[tokio::test]
    async fn a_flush_gives_no_handle_unless_a_request_wants_one() {
        let (_caller, stream) = pair().await;
        let hang_up = HangUp::default();
        hang_up.give(&stream);
        assert!(hang_up.wanted.lock().is_none() && !hang_up.is_wanted.load(Ordering::Relaxed));
    }
}
